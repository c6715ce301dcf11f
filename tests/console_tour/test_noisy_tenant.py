"""A tenant whose requests take the seats: the console tells whose they are, and makes room for somebody else's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import trio

from tests.api.auth.test_authentication import KEY, OTHER, bearer, key_file
from tests.console_tour.tour import on_tour, path_of, toy
from tripower.actors.request_paths import RequestPath
from tripower.actors.runtime import toy_plan

SEATS = 4
"""One of them is held free for others than the noisy one, whatever it asks."""
NOISE = 6


def answering(paths: Sequence[RequestPath]) -> list[str]:
    return [path.id for path in paths if path.place == "answer"]


async def test_a_noisy_tenant_is_seen_by_its_label_and_gives_way(tmp_path: Path) -> None:
    answers: dict[str, object] = {}
    plan = toy_plan(members_max=SEATS, source="toy:5000")
    async with on_tour(plan, tmp_path, auth=key_file(tmp_path, KEY, OTHER)) as tour, trio.open_nursery() as nursery:
        for number in range(NOISE):
            nursery.start_soon(lambda n=number: tour.ask(answers, f"noise-{n}", toy(), **bearer(KEY)))  # type: ignore[misc]
        await tour.see_until(lambda paths: len(paths) == NOISE and len(answering(paths)) == SEATS - 1, "requests")
        nursery.start_soon(lambda: tour.ask(answers, "quiet-long", toy(), **bearer(OTHER)))
        await tour.see_until(lambda paths: getattr(path_of(paths, "quiet-long"), "place", "") == "answer", "requests")
        nursery.start_soon(lambda: tour.ask(answers, "quiet", toy(tokens=5), **bearer(OTHER)))
        # seen
        paths = await tour.see_until(lambda paths: getattr(path_of(paths, "quiet"), "place", "") == "waiting", "requests")
        quiet, noisy = path_of(paths, "quiet"), [path for path in paths if path.id.startswith("noise")]
        assert {path.label for path in noisy} == {noisy[0].label} != {quiet.label}
        shares = {each.label: (each.running, each.waiting) for each in (await tour.see("overview")).identities}
        assert shares == {noisy[0].label: (SEATS - 1, NOISE - SEATS + 1), quiet.label: (1, 1)}
        # resolved: those that wait go first, so that none of them takes a seat that becomes free
        for name in [path.id for path in noisy if path.place == "waiting"] + answering(noisy):
            await tour.see("cancel", name)
        await tour.see_until(lambda paths: path_of(paths, "quiet") is None, "requests")
        assert answers["quiet"].status == 200  # type: ignore[attr-defined]
        await tour.see("cancel", "quiet-long")
    assert len(answers) == NOISE + 2
