"""A model that takes long to load: the console tells how far it is and who waits, and ends it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import trio

from tests.console_tour.tour import on_tour, path_of, toy
from tripower.actors.runtime import toy_plan
from tripower.backends.toy import ToyEngine, ToyText
from tripower.runtime.engine import LoadedModel, LoadSpecification, Progress

BOUNDARIES = 100_000


class SlowBackend:
    """Reads a file in very many pieces."""

    name = "toy"
    stopped = 0

    def load(self, specification: LoadSpecification, progress: Progress) -> Iterator[LoadedModel | None]:
        try:
            for number in range(BOUNDARIES):
                progress("weights", number / BOUNDARIES)
                _read_piece()
                yield None
        except GeneratorExit:
            self.stopped += 1
            raise
        yield LoadedModel(ToyEngine(context=8192, sequences_max=specification.sequences_max), ToyText())


def _read_piece() -> None:
    time.sleep(0.002)


async def test_a_slow_load_is_seen_with_its_line_and_ends_with_the_request_that_wants_it(tmp_path: Path) -> None:
    backend = SlowBackend()
    answers: dict[str, object] = {}
    async with on_tour(toy_plan(backends={"toy": backend}), tmp_path, load=False) as tour, trio.open_nursery() as nursery:
        nursery.start_soon(tour.ask, answers, "first", toy(tokens=3))
        # seen
        (model,) = await tour.see_until(lambda models: models[0].state == "loading", "models")
        path = path_of(await tour.see("requests"), "first")
        assert (path.place, path.model) == ("arriving", "toy") and path.arriving > 0
        (device,) = await tour.see("devices")
        assert device.job == "load toy"
        await tour.see_until(lambda where: "_read_piece" in repr(where), "where", f"device:{device.device}")
        # resolved
        await tour.see("cancel", "first")
        (model,) = await tour.see_until(lambda models: models[0].state != "loading", "models")
        await tour.see_until(lambda devices: devices[0].state == "idle", "devices")
        assert backend.stopped == 1
    assert answers["first"].error["code"] == "request_cancelled"  # type: ignore[attr-defined]
    assert model.name == "toy"
