"""`tripower bench serving`: tokens a second over HTTP, beside another engine on the same file.

Both are started by this command in child processes and asked the same prompts for the same number of tokens, streamed, greedy, end
tokens ignored. While one is measured the other is stopped by a signal, so that it takes nothing. Every prompt begins unlike any before:
what is measured is evaluation, not what a cache remembers.

With `--peer own-llamacpp` both run llama.cpp: once under our scheduler, once under its own server.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence

import trio

from tripower.bench.children import module_command, running_server
from tripower.bench.host import describe_host
from tripower.bench.measured_model import MeasuredModel, add_model_options, find_measured_model
from tripower.bench.paired import Progress
from tripower.bench.peers.registry import PEERS, check_peer, peer_command
from tripower.bench.progress import progress_line
from tripower.bench.schema import Cell, add_report_options, finish, make_report
from tripower.bench.serving.cells import Measurement, Plan
from tripower.bench.serving.subject import Subject, words_for
from tripower.runtime.host import read_host_limits

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
    host = describe_host(*([PEERS[options.peer].module] if options.peer else []))
    with progress_line() as progress:
        model_file = _model_file(options, progress)
        plan = _plan(options, model_file)
        host |= {"model": plan.model, "threads": plan.threads, "peer": plan.peer, "backend": plan.backend}
        host |= model_file.described() if model_file else {}
        cells = trio.run(measure, plan, model_file, progress)
    return finish(make_report("serving", host, cells), options)


def _model_file(options: argparse.Namespace, progress: Progress) -> MeasuredModel | None:
    """The file, where it has to be known here: a peer opens it, or it is re-encoded."""
    if options.peer is None and options.encoding is None:
        return None
    return find_measured_model(options.model, options.encoding, progress)


def _plan(options: argparse.Namespace, model_file: MeasuredModel | None) -> Plan:
    backend = options.backend or (PEERS[options.peer].our_backend if options.peer else None)
    return Plan(
        model=str(model_file.path) if model_file and options.encoding else options.model,
        peer=options.peer,
        identity=(model_file.name, model_file.encoding) if model_file else ("", ""),
        concurrency=options.concurrency,
        tokens=min(options.tokens, 8) if options.quick else options.tokens,
        rounds=1 if options.quick else options.rounds,
        prefill_tokens=64 if options.quick else PREFILL_TOKENS,
        threads=options.threads or read_host_limits().cores,
        backend=backend,
        seconds=options.minutes * 60,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tripower bench serving", description="Tokens a second over HTTP, beside another engine on the same file."
    )
    add_model_options(parser)
    parser.add_argument("--concurrency", type=counts, default=(1, 4, 8, 16), metavar="N,N", help="streams at once (1,4,8,16)")
    parser.add_argument(
        "--peer",
        choices=sorted(PEERS),
        help="the engine to compare with; without one, ours alone is measured; "
        "own-llamacpp: our server with llama.cpp as its engine, beside llama.cpp's own server",
    )
    parser.add_argument("--backend", metavar="NAME", help="which of our backends (what `tripower serve` chooses itself)")
    parser.add_argument("--tokens", type=count, default=64, metavar="N", help="tokens of each answer (64)")
    parser.add_argument(
        "--rounds", type=count, default=8, metavar="N", help="rounds of three blocks for each cell, at most (8)"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=4.5,
        metavar="N",
        help="what the blocks of a run with a peer may take; slow peers get fewer (4.5)",
    )
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


async def measure(plan: Plan, model_file: MeasuredModel | None, progress: Progress) -> list[Cell]:
    """Start what is needed and measure every cell. Blocks, for minutes."""
    seats = max(plan.concurrency)
    progress("loading the model")
    async with contextlib.AsyncExitStack() as running:
        ours = await running.enter_async_context(
            running_server(our_command(plan, seats), name="tripower serve", ready_path="/ready")
        )
        subject = await Subject.open(ours)
        words = await words_for(subject, plan.prefill_tokens, plan.tokens)
        peer: Subject | None = None
        if plan.peer is not None and model_file is not None:
            context = plan.prefill_tokens + plan.tokens + CONTEXT_ROOM
            command = peer_command(plan.peer, model_file.path, threads=plan.threads, parallel=seats, context=context)
            with ours.paused():
                peer = Subject(await running.enter_async_context(running_server(command, name=plan.peer)), model="default")
        return await Measurement(plan, subject, peer, progress).cells(words)


def our_command(plan: Plan, seats: int) -> list[str]:
    """The command line of our server, for `running_server`."""
    backend = ("--backend", plan.backend) if plan.backend else ()
    settings = ("--set", f"engine.threads={plan.threads}", "--set", f"scheduler.batch_members={seats}")
    return module_command(
        "tripower", "serve", plan.model, "--host", "127.0.0.1", "--port", "{port}", "--quiet", *backend, *settings
    )
