"""`overview` and `watch`: one look at a server, and one after the other."""

from __future__ import annotations

from contextlib import aclosing

import msgspec
import pytest
import trio
import trio.testing
from rich.console import Console

from tests.actors.rigs import open_toy
from tripower.api.console.verb import Subject
from tripower.api.console.verbs.overview import VERBS, look, show, watch
from tripower.api.overview.figures import Overview
from tripower.runtime.kernel import InvalidRequest


async def test_one_look_is_an_overview(autojump_clock: trio.testing.MockClock) -> None:
    async with open_toy() as (runtime, _):
        await runtime.load("toy")
        overview = await look(Subject(runtime=runtime), ())
        assert overview.models[0].name == "toy"
    console = Console(width=100)
    with console.capture() as capture:
        console.print(show(overview))
    assert "toy" in capture.get()
    assert msgspec.json.decode(msgspec.json.encode(overview), type=VERBS[0].answer) == overview


async def test_watching_gives_a_look_at_every_interval(autojump_clock: trio.testing.MockClock) -> None:
    seen: list[tuple[float, Overview]] = []
    async with open_toy() as (runtime, _):
        items = watch(Subject(runtime=runtime), ("2",))
        async with aclosing(items):  # type: ignore[type-var]
            async for overview in items:
                seen.append((trio.current_time(), overview))
                if len(seen) == 3:
                    break
    times = [at for at, _ in seen]
    assert times == pytest.approx([0.5, 2, 4])
    assert len(seen[-1][1].history) == 2


@pytest.mark.parametrize("words", [("soon",), ("0",), ("nan",), ("0.2",), ("3601",), ("1", "2")])
async def test_an_interval_that_makes_no_sense_is_refused(words: tuple[str, ...]) -> None:
    async with open_toy() as (runtime, _):
        with pytest.raises(InvalidRequest, match="watch 2"):
            await anext(aiter(watch(Subject(runtime=runtime), words)))
        with pytest.raises(InvalidRequest, match="takes no argument"):
            await look(Subject(runtime=runtime), words)
