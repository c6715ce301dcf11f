"""`tripower bench serving`: tokens a second over HTTP, beside another engine on the same file.

Both are started by this command in child processes and asked the same prompts for the same number of tokens, streamed, greedy, end
tokens ignored. While one is measured the other is stopped by a signal, so that it takes nothing. Every prompt begins unlike any before:
what is measured is evaluation, not what a cache remembers.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from pathlib import Path

import trio

from tripower.bench.children import module_command, running_server
from tripower.bench.host import describe_host
from tripower.bench.paired import Progress
from tripower.bench.peers import PEERS, check_peer, peer_command
from tripower.bench.progress import progress_line
from tripower.bench.schema import Cell, add_report_options, finish, make_report
from tripower.bench.serving_cells import Plan, Subject, all_cells, words_for
from tripower.runtime.host import read_host_limits
from tripower.runtime.kernel import InvalidConfiguration

PREFILL_TOKENS = 2000
CONTEXT_ROOM = 256
"""Positions that a peer gets beyond what a request should need, since its tokenizer may add some."""
COUNT_MAX = 4096


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
    parser.add_argument("--concurrency", type=counts, default=(1, 4, 8), metavar="N,N", help="streams at once (1,4,8)")
    parser.add_argument("--peer", choices=sorted(PEERS), help="the engine to compare with; without one, ours alone is measured")
    parser.add_argument("--tokens", type=count, default=64, metavar="N", help="tokens of each answer (64)")
    parser.add_argument("--rounds", type=count, default=4, metavar="N", help="rounds of three blocks for each cell (4)")
    parser.add_argument("--threads", type=count, metavar="N", help="threads of either engine (the cores of this process)")
    add_report_options(parser)
    return parser


def count(text: str) -> int:
    """A number from 1 on; for argparse."""
    number = int(text)
    if not 1 <= number <= COUNT_MAX:
        raise argparse.ArgumentTypeError(f"expected 1 to {COUNT_MAX}, got {text}")
    return number


def counts(text: str) -> tuple[int, ...]:
    """Numbers with commas between them; for argparse."""
    return tuple(count(part) for part in text.split(","))


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
        subject = await Subject.open(ours)
        words = await words_for(subject, plan.prefill_tokens, plan.tokens)
        peer: Subject | None = None
        if plan.peer is not None and model_file is not None:
            context = plan.prefill_tokens + plan.tokens + CONTEXT_ROOM
            command = peer_command(plan.peer, model_file, threads=plan.threads, parallel=seats, context=context)
            with ours.paused():
                peer = Subject(await running.enter_async_context(running_server(command, name=plan.peer)), model="default")
        return await all_cells(plan, subject, peer, words, progress)


def _our_command(plan: Plan, seats: int) -> list[str]:
    settings = ("--set", f"engine.threads={plan.threads}", "--set", f"scheduler.batch_members={seats}")
    return module_command("tripower", "serve", plan.model, "--host", "127.0.0.1", "--port", "{port}", "--quiet", *settings)
