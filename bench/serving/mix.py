"""`tripower bench mix`: what streams notice of a long prompt that arrives beside them.

Four clients stream without end. In turn the machine is left to them, and a fifth client sends a prompt of 8,000 tokens; the time between
two tokens, as each stream's client sees it, is collected in both phases. A prompt that was evaluated in one piece would stop every stream
for as long as that takes; in chunks, it makes each step longer by one chunk. Each round is an idle phase and the prompt after it, so the
ratio of their 99th percentiles compares neighbours in time.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Sequence

import attrs
import msgspec
import trio

from tripower.api.plan import is_toy
from tripower.bench.children import running_server
from tripower.bench.host import describe_host
from tripower.bench.http_client import EventSplitter, HttpConnection
from tripower.bench.measured_model import add_model_options, find_measured_model
from tripower.bench.paired import Paired, Progress, percentile, quartiles
from tripower.bench.progress import progress_line
from tripower.bench.schema import Cell, Target, add_report_options, finish, make_report, paired_cell, single_cell
from tripower.bench.serving.cells import Plan
from tripower.bench.serving.command import our_command
from tripower.bench.serving.subject import Subject, get_json, words_for
from tripower.bench.serving.workload import completion_request, generate, long_prompt, short_prompt
from tripower.runtime.host import read_host_limits
from tripower.runtime.kernel import Unavailable

STREAMS = 4
PROMPT_TOKENS = 8000
PROMPT_ROOM = 64
STREAM_ROOM = 128
"""Positions that a stream leaves free for its own prompt."""
TOKENS_MAX = 4096
GAPS_IDLE = 200
"""Gaps that each stream has in an idle phase, at least."""
RATIO_MAX = Target("ratio", "<=", 3.0)
MILLI = 1e3


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status. Raises `Unavailable` when the server does not start or fails, and what a pull raises."""
    parser = argparse.ArgumentParser(
        prog="tripower bench mix", description="Time between the tokens of running streams while a long prompt arrives."
    )
    add_model_options(parser)
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="prompts that arrive, one after the other (3)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the engine (the cores of this process)")
    parser.add_argument("--backend", metavar="NAME", help="which of our backends (what `tripower serve` chooses itself)")
    add_report_options(parser)
    options = parser.parse_args(argv)
    host = describe_host() | {"model": options.model, "streams": STREAMS}
    with progress_line() as progress:
        model = options.model
        if not is_toy(model):
            file = find_measured_model(options.model, options.encoding, progress)
            model, host = str(file.path) if options.encoding else model, host | file.described()
        plan = Plan(
            model=model,
            peer=None,
            concurrency=(STREAMS + 1,),
            tokens=16 if options.quick else GAPS_IDLE,
            rounds=1 if options.quick else options.rounds,
            prefill_tokens=128 if options.quick else PROMPT_TOKENS,
            threads=options.threads or read_host_limits().cores,
            backend=options.backend,
        )
        cells = trio.run(measure, plan, progress)
    return finish(make_report("mix", host | {"threads": plan.threads}, cells), options)


@attrs.define
class Gaps:
    """Seconds between tokens of all streams, as they come. A stream's first token has no gap before it."""

    values: list[float] = attrs.Factory(list)
    _wanted: float = math.inf
    _enough: trio.Event = attrs.Factory(trio.Event)

    def add(self, seconds: float) -> None:
        self.values.append(seconds)
        if len(self.values) >= self._wanted:
            self._enough.set()

    async def wait_for(self, count: int) -> None:
        """Until so many have come since the last `take`."""
        self._wanted, self._enough = count, trio.Event()
        if len(self.values) < count:
            await self._enough.wait()

    def take(self) -> list[float]:
        """Those since the last time."""
        taken, self.values = self.values, []
        return taken


class Phases(msgspec.Struct, frozen=True):
    """The gaps of one round, in seconds, and how long the prompt took."""

    idle: Sequence[float]
    during: Sequence[float]
    prompt_tokens: int
    prompt_seconds: float


async def measure(plan: Plan, progress: Progress) -> list[Cell]:
    """Start the server, the streams, and let prompts arrive. Blocks for minutes."""
    progress("loading the model")
    async with running_server(our_command(plan, STREAMS + 1), name="tripower serve", ready_path="/ready") as server:
        subject = await Subject.open(server)
        words = await words_for(subject, plan.prefill_tokens, PROMPT_ROOM)
        context = (await get_json(server, "/v1/models"))["data"][0].get("max_model_len", TOKENS_MAX)
        tokens = min(TOKENS_MAX, context - STREAM_ROOM)
        rounds = []
        async with trio.open_nursery() as nursery:
            gaps = Gaps()
            for _ in range(STREAMS):
                nursery.start_soon(_stream_without_end, subject, tokens, gaps)
            await gaps.wait_for(STREAMS * plan.tokens // 4)  # everybody has begun
            for number in range(1, plan.rounds + 1):
                progress(f"round {number} of {plan.rounds}")
                rounds.append(await _round(subject, plan, words, gaps))
            nursery.cancel_scope.cancel()
    return mix_cells(rounds)


async def _round(subject: Subject, plan: Plan, words: int, gaps: Gaps) -> Phases:
    gaps.take()
    await gaps.wait_for(STREAMS * plan.tokens)
    idle = gaps.take()
    async with HttpConnection(subject.server.port) as connection:
        result = await generate(connection, subject.model, long_prompt(subject.next_number(), words), 1)
    return Phases(idle, gaps.take(), result.prompt_tokens, result.first_seconds)


async def _stream_without_end(subject: Subject, tokens: int, gaps: Gaps) -> None:
    """Ask, read to the end, ask again; every token but an answer's first leaves its gap."""
    while True:
        async with HttpConnection(subject.server.port) as connection:
            prompt = short_prompt(subject.next_number())
            await _read_gaps(connection, completion_request(subject.model, prompt, tokens), gaps)


async def _read_gaps(connection: HttpConnection, request: bytes, gaps: Gaps) -> None:
    status = await connection.begin(request)
    if status != 200:
        raise Unavailable(f"the server answered a stream with {status}")
    splitter, last = EventSplitter(), math.nan
    while piece := await connection.read_piece():
        for payload in splitter.feed(piece):
            if not msgspec.json.decode(payload).get("choices"):
                continue
            now = time.perf_counter()
            if not math.isnan(last):
                gaps.add(now - last)
            last = now


def mix_cells(rounds: Sequence[Phases]) -> list[Cell]:
    """The report of these rounds. A prompt that ended before any token came counts as one gap as long as it took."""
    idle = [percentile(each.idle, 0.99) * MILLI for each in rounds]
    during = [percentile(each.during or [each.prompt_seconds], 0.99) * MILLI for each in rounds]
    lower, ratio, upper = quartiles([loud / quiet if quiet else math.nan for loud, quiet in zip(during, idle, strict=True)])
    paired = Paired(
        ours=statistics.median(during), peer=statistics.median(idle), ratio=ratio, iqr=(lower, upper), rounds=len(rounds)
    )
    tokens = rounds[0].prompt_tokens
    gaps, prompts = sum(len(each.during) for each in rounds), f"{len(rounds)} prompt{'s' if len(rounds) > 1 else ''}"
    note = f"{STREAMS} streams, {gaps} gaps beside {prompts} of about {tokens} tokens; peer: the same streams before"
    typical = [percentile(each.during or [each.prompt_seconds], 0.5) * MILLI for each in rounds]
    rate = quartiles([each.prompt_tokens / each.prompt_seconds for each in rounds])[1]
    return [
        paired_cell("between tokens, p99", paired, unit="ms", target=RATIO_MAX, note=note),
        single_cell("between tokens, median during a prompt", statistics.median(typical), unit="ms"),
        single_cell("between tokens, median before", statistics.median(_medians(rounds)), unit="ms"),
        single_cell("prompt beside the streams", rate, unit="tokens/s", note="until its first token"),
    ]


def _medians(rounds: Sequence[Phases]) -> list[float]:
    return [percentile(each.idle, 0.5) * MILLI for each in rounds]
