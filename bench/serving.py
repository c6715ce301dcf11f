"""`tripower bench serving`: tokens a second over HTTP, beside another engine on the same file.

Both are started by this command in child processes and asked the same prompts for the same number of tokens, streamed, greedy, end
tokens ignored. While one is measured the other is stopped by a signal, so that it takes nothing. Every prompt begins unlike any before:
what is measured is evaluation, not what a cache remembers.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import trio

from tripower.bench.children import Server, module_command, running_server
from tripower.bench.host import describe_host
from tripower.bench.http_client import HttpConnection, build_request
from tripower.bench.paired import Progress, Rounds, alternate_async, collected, quartiles, summarise
from tripower.bench.progress import progress_line
from tripower.bench.schema import Cell, add_report_options, finish, make_report, paired_cell, single_cell
from tripower.bench.workload import Generated, generate, long_prompt, short_prompt
from tripower.runtime.host import read_host_limits
from tripower.runtime.kernel import InvalidConfiguration, Unavailable

PREFILL_TOKENS = 2000
CALIBRATION_WORDS = 200
CONTEXT_ROOM = 256
MILLI = 1e3


class Peer(msgspec.Struct, frozen=True):
    """Another engine: the module that its wheel has, and the extra that installs it. Its child is `tripower.bench.peer_<name>`."""

    module: str
    extra: str


PEERS = {
    "llamacpp": Peer("xllamacpp", "llamacpp"),
    "mistralrs": Peer("mistralrs", "mistralrs"),
    "transformers": Peer("transformers", "transformers"),
}

Figures = dict[str, float]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured."""

    model: str
    peer: str | None
    concurrency: tuple[int, ...]
    tokens: int
    rounds: int
    prefill_tokens: int
    threads: int


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status.

    Raises `InvalidConfiguration` when the peer is not installed, `Unavailable` when a server does not start or fails, and what pulling
    a model raises.
    """
    options = _parser().parse_args(argv)
    check_peer(options.peer)
    plan = Plan(
        model=options.model,
        peer=options.peer,
        concurrency=options.concurrency,
        tokens=min(options.tokens, 8) if options.quick else options.tokens,
        rounds=1 if options.quick else options.rounds,
        prefill_tokens=64 if options.quick else PREFILL_TOKENS,
        threads=options.threads or read_host_limits().cores,
    )
    host = describe_host(*(peer.module for peer in PEERS.values())) | {"model": plan.model, "threads": plan.threads}
    model_file = find_model_file(plan.model) if plan.peer else None
    with progress_line() as progress:
        cells = trio.run(measure, plan, model_file, progress)
    return finish(make_report("serving", host, cells), options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tripower bench serving", description="Tokens a second over HTTP, beside another engine on the same file."
    )
    parser.add_argument("--model", default="smollm2", help="what `tripower serve` understands (smollm2)")
    parser.add_argument("--concurrency", type=_counts, default=(1, 4, 8), metavar="N,N", help="streams at once (1,4,8)")
    parser.add_argument("--peer", choices=sorted(PEERS), help="the engine to compare with; without one, ours alone is measured")
    parser.add_argument("--tokens", type=_count, default=64, metavar="N", help="tokens of each answer (64)")
    parser.add_argument("--rounds", type=_count, default=4, metavar="N", help="rounds of three blocks for each cell (4)")
    parser.add_argument("--threads", type=_count, metavar="N", help="threads of either engine (the cores of this process)")
    add_report_options(parser)
    return parser


def _count(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 4096:
        raise argparse.ArgumentTypeError(f"expected 1 to 4096, got {text}")
    return number


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_count(part) for part in text.split(","))


def check_peer(name: str | None) -> None:
    """Raises `InvalidConfiguration`, with the command that helps, when the peer's wheel is missing."""
    if name is None or find_spec(PEERS[name].module) is not None:
        return
    peer = PEERS[name]
    raise InvalidConfiguration(
        f"{name} is not installed here: pip install 'tripower[{peer.extra}]', which brings {peer.module}"
    )


def find_model_file(model: str) -> Path:
    """The file behind a model's name, pulled when it is not here. Blocks. Raises `InvalidConfiguration` for the toy."""
    from tripower.api.plan import is_toy
    from tripower.api.pull import ensure_model

    if is_toy(model):
        raise InvalidConfiguration("the toy is a model of ours only: leave out --peer")
    return ensure_model(model).resolve()


async def measure(plan: Plan, model_file: Path | None, progress: Progress) -> list[Cell]:
    """Start what is needed and measure every cell. Blocks, for minutes."""
    seats = max(plan.concurrency)
    progress("loading the model")
    async with contextlib.AsyncExitStack() as running:
        ours = await running.enter_async_context(
            running_server(_our_command(plan, seats), name="tripower serve", ready_path="/ready")
        )
        subject = await _Subject.open(ours)
        words = await _words_for(subject, plan.prefill_tokens, plan.tokens)
        peer: _Subject | None = None
        if plan.peer is not None:
            context = plan.prefill_tokens + plan.tokens + CONTEXT_ROOM
            command = _peer_command(plan.peer, model_file, plan.threads, seats, context)
            with ours.paused():
                peer = _Subject(await running.enter_async_context(running_server(command, name=plan.peer)), model="default")
        return await _all_cells(plan, subject, peer, words, progress)


def _our_command(plan: Plan, seats: int) -> list[str]:
    settings = ("--set", f"engine.threads={plan.threads}", "--set", f"scheduler.batch_members={seats}")
    return module_command("tripower", "serve", plan.model, "--host", "127.0.0.1", "--port", "{port}", "--quiet", *settings)


def _peer_command(name: str, model_file: Path | None, threads: int, seats: int, context: int) -> list[str]:
    arguments = {"model": model_file, "port": "{port}", "threads": threads, "parallel": seats, "context": context}
    flat = [text for key, value in arguments.items() for text in (f"--{key}", str(value))]
    return module_command(f"tripower.bench.peer_{name}", *flat)


class _Subject:
    """A running server under measurement. Its prompts are numbered, and both subjects count alike."""

    def __init__(self, server: Server, *, model: str) -> None:
        self.server = server
        self.model = model
        self._number = 0

    @classmethod
    async def open(cls, server: Server) -> _Subject:
        """Ours, with the name under which it serves its model."""
        answer = await _get_json(server, "/v1/models")
        return cls(server, model=answer["data"][0]["id"])

    def next_number(self) -> int:
        self._number += 1
        return self._number

    async def run_streams(self, concurrency: int, tokens: int) -> Figures:
        """One answer of `tokens` tokens for each of so many clients at once: tokens a second of all, milliseconds to the first."""
        results: list[Generated] = []

        async def client(number: int) -> None:
            async with HttpConnection(self.server.port) as connection:
                results.append(await generate(connection, self.model, short_prompt(number), tokens))

        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(concurrency):
                nursery.start_soon(client, self.next_number())
        seconds = time.perf_counter() - began
        for result in results:
            if result.tokens != tokens or not result.complete:
                raise Unavailable(f"an answer of {tokens} tokens had {result.tokens}: the figures would not be comparable")
        first = statistics.median(result.first_seconds for result in results)
        return {"rate": concurrency * tokens / seconds, "first": first * MILLI}

    async def evaluate_prompt(self, words: int) -> Figures:
        """A long prompt and one token: prompt tokens a second."""
        async with HttpConnection(self.server.port) as connection:
            result = await generate(connection, self.model, long_prompt(self.next_number(), words), 1)
        return {"rate": result.prompt_tokens / result.first_seconds, "tokens": result.prompt_tokens}


async def _get_json(server: Server, path: str) -> Any:
    async with HttpConnection(server.port) as connection:
        answer = await connection.fetch(build_request("GET", path))
    if answer.status != 200:
        raise Unavailable(f"GET {path} was answered with {answer.status}")
    return msgspec.json.decode(answer.body)


async def _words_for(subject: _Subject, tokens: int, room: int) -> int:
    """How many words make a prompt of about so many tokens, or of as many as the model's context holds."""
    context = (await _get_json(subject.server, "/v1/models"))["data"][0].get("max_model_len", tokens + room)
    figures = await subject.evaluate_prompt(min(CALIBRATION_WORDS, tokens // 2))
    per_word = figures["tokens"] / min(CALIBRATION_WORDS, tokens // 2)
    return max(1, int(min(tokens, context - room) / per_word * 0.97))


async def _all_cells(plan: Plan, ours: _Subject, peer: _Subject | None, words: int, progress: Progress) -> list[Cell]:
    cells = []
    for concurrency in plan.concurrency:
        label = f"{concurrency} at once"
        rounds = await _rounds(
            plan, ours, peer, lambda subject, n=concurrency: subject.run_streams(n, plan.tokens), label, progress
        )
        cells.append(
            _cell(f"generation, {label}", rounds, "rate", "tokens/s", f"{plan.tokens} tokens each, all clients together")
        )
        cells.append(_cell(f"first token, {label}", rounds, "first", "ms", "median of the clients; less is better"))
    rounds = await _rounds(plan, ours, peer, lambda subject: subject.evaluate_prompt(words), "prefill", progress)
    tokens = int(rounds[0][1][0]["tokens"])
    cells.append(_cell("prefill", rounds, "rate", "tokens/s", f"a prompt of {tokens} tokens, one at a time"))
    return cells


async def _rounds(
    plan: Plan, ours: _Subject, peer: _Subject | None, block: Callable[[_Subject], Any], label: str, progress: Progress
) -> Rounds[Figures]:
    """Alternating blocks, or blocks of ours alone where there is no peer."""
    if peer is None:
        await block(ours)
        alone: list[Figures] = []
        for number in range(1, plan.rounds + 1):
            progress(f"{label}: block {number} of {plan.rounds}")
            with collected():
                alone.append(await block(ours))
        return [(("ours",), alone)]

    async def measured(subject: _Subject, other: _Subject) -> Figures:
        with other.server.paused():
            figures: Figures = await block(subject)
            return figures

    run_ours, run_peer = functools.partial(measured, ours, peer), functools.partial(measured, peer, ours)
    await run_ours(), await run_peer()
    return await alternate_async(run_ours, run_peer, rounds=plan.rounds, label=label, progress=progress)


def _cell(name: str, rounds: Rounds[Figures], key: str, unit: str, note: str) -> Cell:
    picked = [(order, [figures[key] for figures in values]) for order, values in rounds]
    if len(picked[0][0]) > 1:
        return paired_cell(name, summarise(picked), unit=unit, note=note)
    lower, median, upper = quartiles(picked[0][1])
    return msgspec.structs.replace(single_cell(name, median, unit=unit, note=note), iqr=(lower, upper))
