"""A device that stands still: the console names the line that its thread waits in."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import trio

from tests.console_tour.tour import on_tour, path_of, toy
from tripower.actors.runtime import toy_plan
from tripower.backends.toy import ToyEngine, ToyText
from tripower.runtime.engine import LoadedModel, LoadSpecification, Progress, StepRow

STALL_SECONDS = 0.2


class Share:
    """Somewhere that the engine's weights are mapped from, and that does not always answer."""

    def __init__(self) -> None:
        self.answers = threading.Event()

    def read_page(self) -> None:
        self.answers.wait()


SHARE = Share()


class MappedEngine(ToyEngine):
    """A toy that touches its share in each step."""

    def step(self, rows: Sequence[StepRow]) -> list[int]:
        SHARE.read_page()
        return super().step(rows)


class MappedBackend:
    name = "toy"

    def load(self, specification: LoadSpecification, progress: Progress) -> Iterator[LoadedModel | None]:
        yield LoadedModel(MappedEngine(context=8192, sequences_max=specification.sequences_max), ToyText())


async def test_a_stuck_device_is_seen_where_it_waits_and_goes_on_when_that_is_over(tmp_path: Path) -> None:
    SHARE.answers.clear()
    answers: dict[str, object] = {}
    plan = toy_plan(backends={"toy": MappedBackend()}, stall_seconds=STALL_SECONDS)
    try:
        async with on_tour(plan, tmp_path) as tour, trio.open_nursery() as nursery:
            nursery.start_soon(tour.ask, answers, "stuck", toy(tokens=3))
            # seen
            (device,) = await tour.see_until(lambda devices: devices[0].state == "wedged", "devices")
            assert device.job.startswith("steps toy") and device.job_seconds >= STALL_SECONDS
            health = await tour.see("health")
            assert health.status == "failing" and "passes no step boundary" in health.reasons[0]
            assert path_of(await tour.see("requests"), "stuck").place == "prompt"
            where = await tour.see("where", f"device:{device.device}")
            assert where.lane.job == device.job
            innermost = where.lane.thread.frames[0]
            assert (innermost.function, innermost.text) == ("Share.read_page", "self.answers.wait()")
            # refused meanwhile
            async with tour.client() as client:
                assert (await client.ask("/health")).status == 503
            # resolved
            assert not (await tour.see("py", "import tests.console_tour.test_stuck_device as t; t.SHARE.answers.set()")).error
            await tour.see_until(lambda devices: devices[0].state == "idle", "devices")
            assert (await tour.see("health")).status == "ok"
    finally:
        SHARE.answers.set()
    assert answers["stuck"].status == 200  # type: ignore[attr-defined]
