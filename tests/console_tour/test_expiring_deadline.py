"""A deadline that expires: the console tells what a request has spent its time on, while there is still some left."""

from __future__ import annotations

from pathlib import Path

import trio

from tests.console_tour.tour import on_tour, path_of, toy
from tripower.actors.runtime import toy_plan

DEADLINE = "x-tripower-deadline-ms"
PATIENT_MS, HURRIED_MS = 15_000, 150


async def test_a_request_that_runs_out_of_time_in_the_queue_is_seen_there_and_let_through(tmp_path: Path) -> None:
    answers: dict[str, object] = {}
    async with on_tour(toy_plan(members_max=1, source="toy:5000"), tmp_path) as tour, trio.open_nursery() as nursery:
        nursery.start_soon(tour.ask, answers, "long", toy())
        await tour.see_until(lambda paths: (path := path_of(paths, "long")) and path.place == "answer", "requests")
        nursery.start_soon(lambda: tour.ask(answers, "late", toy(tokens=3), **{DEADLINE: str(HURRIED_MS)}))
        nursery.start_soon(lambda: tour.ask(answers, "hurried", toy(tokens=3), **{DEADLINE: str(PATIENT_MS)}))
        # seen
        paths = await tour.see_until(lambda paths: path_of(paths, "hurried") is not None, "requests")
        hurried = path_of(paths, "hurried")
        assert hurried.place == "waiting" and hurried.prompt is None
        assert 0 < hurried.deadline_left <= PATIENT_MS / 1000
        await tour.see_until(lambda paths: path_of(paths, "late") is None, "requests")
        # resolved, for the one that has time left
        await tour.see("cancel", "long")
        await tour.see_until(lambda paths: paths == [], "requests")
    assert answers["late"].status == 504 and answers["late"].error["code"] == "deadline_exceeded"  # type: ignore[attr-defined]
    assert answers["hurried"].status == 200  # type: ignore[attr-defined]
