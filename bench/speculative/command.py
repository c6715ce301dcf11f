"""`tripower bench speculative`: what guesses bring for work of several kinds, on the same engine, and that no token changes.

Each prompt runs without and with guesses, right after one another and in both orders, alone and four at a time; once with nothing kept of
its prompt, and once with its prompt evaluated before. Every answer is compared token by token, greedy and sampled. A further figure needs
no clock: what the answers cost by the number of rows of each step and the table of row costs that the engine measured when it was
loaded, for the worst prompt of all.

With `--out FILE.json` what has been measured is kept as it comes, in `FILE.unfinished.json`, for a run that ends early.

With `--peer llamacpp` our server is measured beside llama.cpp's own one instead, both with guesses and prompt caches: see `beside`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from tripower.bench.host import describe_host
from tripower.bench.measured_model import MeasuredModel, add_model_options, find_measured_model
from tripower.bench.paired import Progress
from tripower.bench.peers.guessing import NONE, TRIED, parse_guessing
from tripower.bench.peers.registry import PEERS, check_peer
from tripower.bench.progress import progress_line
from tripower.bench.schema import Cell, Keep, add_report_options, finish, keep_unfinished, make_report
from tripower.bench.serving.command import count, counts
from tripower.bench.speculative.beside import PeerPlan, compare
from tripower.bench.speculative.measurement import Plan, measure
from tripower.bench.speculative.samples import SAMPLES_MIN
from tripower.bench.workloads.prompts import REPETITIVE, workloads
from tripower.runtime.host import read_host_limits
from tripower.runtime.kernel import InvalidConfiguration

QUICK_TOKENS = 32
QUICK_KINDS = (NONE, "ngram-simple")


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status. Raises what loading the model, the servers and a pull raise. Blocks for many minutes.

    Raises `InvalidConfiguration` when the peer is not installed, and for work that there is not.
    """
    options = _parser().parse_args(argv)
    check_peer(options.peer)
    work = read_work(options.work, peer=options.peer)
    host = describe_host(*([PEERS[options.peer].module] if options.peer else []))
    with progress_line() as progress:
        file = find_measured_model(options.model, options.encoding, progress)
        host |= file.described() | {"threads": _threads(options), "mode": options.mode, "tokens": _tokens(options)}

        def keep(cells: Sequence[Cell]) -> None:
            keep_unfinished(make_report("speculative", host, cells), options)

        cells, plot, told = (_beside if options.peer else _alone)(options, file, work, progress, keep)
    path = options.plot or (options.out.with_suffix(".svg") if options.out is not None else None)
    if path is not None:
        path.write_text(plot)
    return finish(make_report("speculative", host | told, cells), options)


def _alone(
    options: argparse.Namespace, file: MeasuredModel, work: tuple[str, ...], progress: Progress, keep: Keep
) -> tuple[list[Cell], str, dict[str, Any]]:
    plan = Plan(
        model=str(file.path),
        mode=options.mode,
        tokens=_tokens(options),
        rounds=1 if options.quick else options.rounds,
        samples=1 if options.quick else SAMPLES_MIN,
        prompts=1 if options.quick else options.prompts,
        concurrency=options.concurrency,
        work=work,
        threads=_threads(options),
        each=options.each,
    )
    return (*trio.run(measure, plan, progress, keep), {})


def _beside(
    options: argparse.Namespace, file: MeasuredModel, work: tuple[str, ...], progress: Progress, keep: Keep
) -> tuple[list[Cell], str, dict[str, Any]]:
    plan = PeerPlan(
        path=file.path,
        encoding=file.encoding,
        chats=file.chats,
        mode=options.mode,
        guesses=options.peer_guesses,
        tokens=_tokens(options),
        rounds=1 if options.quick else options.rounds,
        samples=1 if options.quick else SAMPLES_MIN,
        prompts=1 if options.quick else options.prompts,
        concurrency=options.concurrency,
        work=work,
        threads=_threads(options),
        kinds=QUICK_KINDS if options.quick else TRIED,
    )
    cells, plot, guesses = trio.run(compare, plan, progress, keep)
    return cells, plot, {"peer": f"{options.peer} with {guesses}"}


def read_work(text: str | None, *, peer: str | None) -> tuple[str, ...]:
    """The kinds of work; without a word all of them, beside a peer those that repeat. Raises `InvalidConfiguration` for an unknown one."""
    names = tuple(workloads())
    if text is None:
        return REPETITIVE if peer else names
    chosen = tuple(text.split(","))
    if unknown := [name for name in chosen if name not in names]:
        raise InvalidConfiguration(f"there is no work called {unknown[0]!r}: there are {', '.join(names)}", param="work")
    return chosen


def _threads(options: argparse.Namespace) -> int:
    return options.threads or read_host_limits().cores


def _tokens(options: argparse.Namespace) -> int:
    return min(options.tokens, QUICK_TOKENS) if options.quick else int(options.tokens)


def _kind(text: str) -> str:
    """For argparse."""
    try:
        parse_guessing(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tripower bench speculative", description="Guessed tokens: what they bring, and that no answer changes."
    )
    add_model_options(parser)
    parser.add_argument("--mode", default="ngram-context", help="where guesses come from (ngram-context)")
    parser.add_argument("--peer", choices=["llamacpp"], help="compare our server with this one, with guesses on either side")
    parser.add_argument(
        "--peer-guesses",
        type=_kind,
        metavar="KIND",
        help="the peer's kind of guesses, such as ngram-mod (the best of all, tried first)",
    )
    parser.add_argument("--tokens", type=count, default=256, metavar="N", help="longest answer (256)")
    parser.add_argument(
        "--rounds",
        type=count,
        default=1,
        metavar="N",
        help="rounds of each order, at least (1, and 3 of several at a time)",
    )
    parser.add_argument("--prompts", type=count, default=12, metavar="N", help="prompts of each kind of work, at most (12)")
    parser.add_argument("--concurrency", type=counts, default=(1, 4), metavar="N,…", help="answers at a time (1,4)")
    parser.add_argument("--work", metavar="NAME,…", help="kinds of work (all; beside a peer those that repeat their prompts)")
    parser.add_argument("--each", action="store_true", help="a cell for each group of prompts as well (without a peer)")
    parser.add_argument("--threads", type=count, metavar="N", help="threads of either engine (the cores of this process)")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="write the gains of all rounds into FILE, as SVG (beside --out)"
    )
    add_report_options(parser)
    return parser
