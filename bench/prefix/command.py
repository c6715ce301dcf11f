"""`tripower bench prefix`: what prompts that begin alike gain, over HTTP, and whether one token of an answer changes.

A *cold* block sends a prompt whose beginning nobody has sent before, a *warm* one a prompt that begins like an earlier one and ends
otherwise; they alternate in both orders. Afterwards every warm prompt is sent once more with reuse switched off, and the texts are
compared. With `--peer llamacpp` the warm prompts go to llama.cpp's own server too, with its prompt cache, which is on by default.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from pathlib import Path

import attrs
import msgspec
import trio

from tripower.bench.children import Server, module_command, running_server
from tripower.bench.host import describe_host
from tripower.bench.measured_model import add_model_options, find_measured_model
from tripower.bench.paired import Progress, Rounds, Side, alternate_async, summarise
from tripower.bench.peers.registry import PEERS, check_peer, peer_command
from tripower.bench.plot import dots_svg
from tripower.bench.prefix.asking import Answered, ask, beginning, question
from tripower.bench.prefix.bookkeeping import miss_seconds
from tripower.bench.progress import progress_line
from tripower.bench.schema import Cell, Target, add_report_options, finish, make_report, paired_cell, single_cell
from tripower.bench.serving.command import count
from tripower.bench.serving.subject import Subject
from tripower.runtime.host import read_host_limits

PREFIX_TOKENS = 2000
ANSWER_TOKENS = 16
CONTEXT_ROOM = 400
SAFE_SHARE = 0.97
CALIBRATION_WORDS = 100
FIRST = Target("ratio", ">=", 13)
PREFILL = Target("ratio", ">=", 20)
SAME = Target("ours", ">=", 1)
MISS = Target("ours", "<=", 0.01)
NOBODY = -1
"""Of beginnings that are sent once and not measured."""


@attrs.frozen(kw_only=True)
class Plan:
    """How much is measured."""

    path: Path
    peer: str | None
    tokens: int
    rounds: int
    threads: int
    misses: int


@attrs.define
class Measurement:
    """Both servers, and everything that our own answered."""

    plan: Plan
    ours: Subject
    peer: Server | None
    words: int
    progress: Progress
    answers: dict[Side, list[Answered]] = attrs.Factory(lambda: {"ours": [], "peer": []})
    """`ours`: cold, `peer`: warm."""
    peers_warm: list[float] = attrs.Factory(list)
    _number: int = 0
    _warm: dict[str, str] = attrs.Factory(dict)

    async def cells(self) -> list[Cell]:
        """Blocks for minutes."""
        await self._ask(beginning(NOBODY, self.words))  # what the warm ones begin with
        rounds = await alternate_async(
            self._cold, self._warm_block, rounds=self.plan.rounds, label="first token", progress=self.progress
        )
        prompt = self.answers["ours"][-1].prompt_tokens
        note = f"ours: a beginning of {prompt} tokens that is new; peer: one that was sent before, another question"
        cells = [
            paired_cell(
                "first token, cold over warm", summarise(_column(rounds, "first_ms")), unit="ms", target=FIRST, note=note
            ),
            paired_cell("prefill, cold over warm", summarise(_column(rounds, "prefill_ms")), unit="ms", target=PREFILL),
            self._reused(),
            await self._identity(),
            self._miss(),
        ]
        if self.peer is not None:
            cells.append(await self._beside_peer())
        return cells

    async def _cold(self) -> Answered:
        self._number += 1
        return await self._ask(beginning(self._number, self.words) + question(self._number), side="ours")

    async def _warm_block(self) -> Answered:
        self._number += 1
        prompt = beginning(NOBODY, self.words) + question(self._number)
        answered = await self._ask(prompt, side="peer")
        self._warm[prompt] = answered.text
        return answered

    async def _ask(self, prompt: str, *, side: Side | None = None, reuse: bool = True) -> Answered:
        quiet = contextlib.nullcontext() if self.peer is None else self.peer.paused()
        with quiet:
            answered = await ask(self.ours.server, self.ours.model, prompt, tokens=ANSWER_TOKENS, reuse=reuse)
        if side is not None:
            self.answers[side].append(answered)
        return answered

    def _reused(self) -> Cell:
        share = min(each.cached_tokens / each.prompt_tokens for each in self.answers["peer"])
        none = max(each.cached_tokens for each in self.answers["ours"])
        return single_cell(
            "reused of a warm prompt", share, unit="share", note=f"the least; of a cold one at most {none} tokens"
        )

    async def _identity(self) -> Cell:
        self.progress("the same prompts without reuse")
        same = [(await self._ask(prompt, reuse=False)).text == text for prompt, text in self._warm.items()]
        note = f"{len(same)} warm prompts, {ANSWER_TOKENS} tokens each, against the same prompts with reuse off"
        return single_cell("identical answers", sum(same) / len(same), unit="share", target=SAME, note=note)

    def _miss(self) -> Cell:
        self.progress("what a miss costs")
        cold = self.answers["ours"]
        seconds = miss_seconds(cold[-1].prompt_tokens, self.plan.misses)
        prefill = min(each.prefill_ms for each in cold) / 1e3
        note = f"{seconds * 1e6:.0f} µs of processor time, with the cache full, of a prefill of {prefill * 1e3:.0f} ms"
        return single_cell("cost of a miss", seconds / prefill, unit="of prefill", target=MISS, note=note)

    async def _beside_peer(self) -> Cell:
        assert self.peer is not None
        self.progress("the peer's prompt cache")
        numbers = iter(range(1000, 1000 + 8 * self.plan.rounds))

        async def block(ours: bool) -> Answered:
            prompt = beginning(NOBODY, self.words) + question(next(numbers))
            if ours:
                return await self._ask(prompt)
            with self.ours.server.paused():
                return await ask(self.peer, "default", prompt, tokens=ANSWER_TOKENS)  # type: ignore[arg-type]

        for _ in range(2):
            await block(False)
        rounds = await alternate_async(
            lambda: block(True), lambda: block(False), rounds=self.plan.rounds, label="beside the peer", progress=self.progress
        )
        theirs = [each for order, values in rounds for side, each in zip(order, values, strict=True) if side == "peer"]
        self.peers_warm += [each.first_ms for each in theirs]
        reused = min(each.cached_tokens for each in theirs)
        note = (
            f"both warm; less is better; the peer is {self.plan.peer} with its own prompt cache, "
            f"which reused {reused} of {theirs[-1].prompt_tokens} tokens at least"
        )
        return paired_cell("first token beside the peer", summarise(_column(rounds, "first_ms")), unit="ms", note=note)

    def plot(self) -> str:
        """All measured blocks."""
        series = {
            "cold, first token": [each.first_ms for each in self.answers["ours"]],
            "warm, first token": [each.first_ms for each in self.answers["peer"]],
            "cold, prefill": [each.prefill_ms for each in self.answers["ours"]],
            "warm, prefill": [each.prefill_ms for each in self.answers["peer"]],
        }
        if self.peers_warm:
            series[f"{self.plan.peer}, warm, first token"] = self.peers_warm
        return dots_svg("Prompts that begin alike", series, unit="ms")


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status. Raises what a pull and the servers raise. Blocks for minutes."""
    parser = argparse.ArgumentParser(prog="tripower bench prefix", description="What prompts that begin alike gain.")
    add_model_options(parser)
    parser.add_argument("--peer", choices=["llamacpp"], help="a server to compare with, with its own prompt cache")
    parser.add_argument("--tokens", type=count, default=PREFIX_TOKENS, metavar="N", help=f"of the beginning ({PREFIX_TOKENS})")
    parser.add_argument("--rounds", type=count, default=4, metavar="N", help="rounds of three blocks (4)")
    parser.add_argument("--threads", type=count, metavar="N", help="threads of either engine (the cores of this process)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write every measured block into FILE, as SVG (beside --out)")
    add_report_options(parser)
    options = parser.parse_args(argv)
    check_peer(options.peer)
    with progress_line() as progress:
        file = find_measured_model(options.model, options.encoding, progress)
        plan = Plan(
            path=file.path,
            peer=options.peer,
            tokens=min(options.tokens, 150) if options.quick else options.tokens,
            rounds=1 if options.quick else options.rounds,
            threads=options.threads or read_host_limits().cores,
            misses=20 if options.quick else 200,
        )
        cells, plot = trio.run(measure, plan, progress)
    path = options.plot or (options.out.with_suffix(".svg") if options.out is not None else None)
    if path is not None:
        path.write_text(plot)
    host = describe_host(*([PEERS[options.peer].module] if options.peer else [])) | file.described() | {"threads": plan.threads}
    return finish(make_report("prefix", host, cells), options)


async def measure(plan: Plan, progress: Progress) -> tuple[list[Cell], str]:
    """Start the servers, measure, and plot. Blocks for minutes."""
    progress("loading the model")
    context = plan.tokens + CONTEXT_ROOM
    command = module_command("tripower", "serve", str(plan.path), "--host", "127.0.0.1", "--port", "{port}", "--quiet")
    for setting in (f"engine.threads={plan.threads}", f"engine.context={context}", "scheduler.batch_members=4"):
        command += ["--set", setting]
    async with contextlib.AsyncExitStack() as running:
        server = await running.enter_async_context(running_server(command, name="tripower serve", ready_path="/ready"))
        ours, peer = await Subject.open(server), None
        calibration = await ask(server, ours.model, beginning(-2, CALIBRATION_WORDS), tokens=1, reuse=False)
        words = int(plan.tokens * SAFE_SHARE * CALIBRATION_WORDS / calibration.prompt_tokens)
        if plan.peer is not None:
            started = peer_command(plan.peer, plan.path, threads=plan.threads, parallel=1, context=context)
            with server.paused():
                peer = await running.enter_async_context(running_server(started, name=plan.peer))
        measurement = Measurement(plan, ours, peer, words, progress)
        cells = await measurement.cells()
    return cells, measurement.plot()


def _column(rounds: Rounds[Answered], name: str) -> Rounds[float]:
    return [(order, [float(msgspec.structs.asdict(each)[name]) for each in values]) for order, values in rounds]
