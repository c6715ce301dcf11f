"""`tripower bench soak`: many streams for many minutes, and the server's memory beside them.

Sixty-four clients ask again as soon as they are answered. What is looked for is growth: the server's own memory, resident or swapped,
without mapped files, must not be larger at the end than after the first minute. And nothing may be lost: every answer that was asked
for comes whole, with exactly its tokens and its regular end.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

import attrs
import trio

from tripower.bench.children import Server, module_command, running_server
from tripower.bench.host import describe_host
from tripower.bench.http_client import HttpConnection
from tripower.bench.paired import Progress
from tripower.bench.progress import progress_line
from tripower.bench.schema import Cell, Target, add_report_options, finish, make_report, single_cell
from tripower.bench.serving.subject import Subject
from tripower.bench.serving.workload import generate, short_prompt
from tripower.runtime.kernel import TripowerError

SAMPLE_SECONDS = 1.0
WARM_SECONDS = 60.0
GROWTH_MEGABYTES_MAX = 4.0
TOKENS = 48
QUICK_SECONDS = 3.0
QUICK_TOKENS = 8
MEGA = 1e6


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status. Raises `Unavailable` when the server does not start, and what pulling the model raises."""
    parser = argparse.ArgumentParser(
        prog="tripower bench soak", description="Many streams for many minutes: does memory grow, is anything lost?"
    )
    parser.add_argument("--model", default="toy:1000", help="what `tripower serve` understands (toy:1000)")
    parser.add_argument("--streams", type=int, default=64, metavar="N", help="streams at any time (64)")
    parser.add_argument("--minutes", type=float, default=10.0, metavar="N", help="how long (10)")
    parser.add_argument("--seats", type=int, metavar="N", help="members of the batch (as many as streams)")
    add_report_options(parser)
    options = parser.parse_args(argv)
    seats = options.seats or options.streams
    host = describe_host() | {"model": options.model, "streams": options.streams, "seats": seats}
    seconds = QUICK_SECONDS if options.quick else options.minutes * 60
    with progress_line() as progress:
        cells = trio.run(measure, options.model, options.streams, seats, seconds, progress)
    return finish(make_report("soak", host, cells), options)


@attrs.define
class Tally:
    """What happened so far."""

    whole: int = 0
    tokens: int = 0
    lost: int = 0
    first_loss: str = ""


async def measure(model: str, streams: int, seats: int, seconds: float, progress: Progress) -> list[Cell]:
    """Soak a server of our own. Blocks for that long."""
    command = module_command("tripower", "serve", model, "--host", "127.0.0.1", "--port", "{port}", "--quiet")
    command += ["--set", f"scheduler.batch_members={seats}", "--set", f"scheduler.waiting={streams}"]
    progress("loading the model")
    async with running_server(command, name="tripower serve", ready_path="/ready") as server:
        name = (await Subject.open(server)).model
        tally, ended = Tally(), trio.Event()
        tokens = QUICK_TOKENS if seconds <= QUICK_SECONDS else TOKENS
        async with trio.open_nursery() as nursery:
            for number in range(streams):
                nursery.start_soon(_stream, server.port, name, number, streams, tokens, tally, ended)
            samples = await _sample(server, seconds, tally, progress)
            ended.set()
    return cells_of(samples, tally, warm=WARM_SECONDS / seconds if seconds > 2 * WARM_SECONDS else 0.5)


async def _stream(port: int, model: str, number: int, step: int, tokens: int, tally: Tally, ended: trio.Event) -> None:
    """One client: ask, read to the end, ask again. The last answer is read to its end too."""
    while not ended.is_set():
        try:
            async with HttpConnection(port) as connection:
                while not ended.is_set():
                    result = await generate(connection, model, short_prompt(number), tokens)
                    number += step
                    if result.tokens == tokens and result.complete:
                        tally.whole += 1
                        tally.tokens += tokens
                    else:
                        raise TripowerError(f"an answer of {tokens} tokens had {result.tokens}")
        except TripowerError as error:
            tally.lost += 1
            tally.first_loss = tally.first_loss or error.message
            await trio.sleep(SAMPLE_SECONDS)


async def _sample(server: Server, seconds: float, tally: Tally, progress: Progress) -> list[tuple[float, float]]:
    """(own memory, resident memory) in megabytes, once a second."""
    samples = []
    began = trio.current_time()
    while (passed := trio.current_time() - began) < seconds:
        own, resident = server.anonymous_bytes() / MEGA, server.resident_bytes() / MEGA
        samples.append((own, resident))
        progress(f"{passed:.0f} of {seconds:.0f} s: {own:.1f} MB, {tally.whole} answers, {tally.lost} lost")
        await trio.sleep(min(SAMPLE_SECONDS, seconds / 10))
    return samples


def cells_of(samples: Sequence[tuple[float, float]], tally: Tally, *, warm: float) -> list[Cell]:
    """The cells. `warm` is the share of the samples that are warming up; then the first tenth is compared with the last."""
    settled = samples[int(len(samples) * warm) :]
    tenth = max(1, len(settled) // 10)
    own = [sample[0] for sample in settled]
    before, after = statistics.median(own[:tenth]), statistics.median(own[-tenth:])
    return [
        single_cell(
            "growth of own memory",
            after - before,
            unit="MB",
            target=Target("ours", "<=", GROWTH_MEGABYTES_MAX),
            note=f"after warming up: {before:.1f} MB at first, {after:.1f} MB at the end, {max(own):.1f} MB at most",
        ),
        single_cell("resident memory at the end", settled[-1][1], unit="MB", note="with the pages of mapped files"),
        single_cell("answers lost", tally.lost, unit="answers", target=Target("ours", "<=", 0), note=tally.first_loss or None),
        single_cell("answers whole", tally.whole, unit="answers", note=f"{tally.tokens} tokens"),
    ]
