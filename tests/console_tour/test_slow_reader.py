"""A client that does not read: the console tells that it is the client, since when, and lets go of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.console_tour.tour import COMPLETIONS, on_tour, path_of, toy
from tripower.actors.runtime import toy_plan
from tripower.api.console.client import ConsoleRefused


async def test_a_client_that_does_not_read_is_told_from_a_slow_model_and_cut_off(tmp_path: Path) -> None:
    answers: dict[str, object] = {}
    async with on_tour(toy_plan(source="toy:1000"), tmp_path) as tour, tour.client() as sleeper, trio.open_nursery() as nursery:
        sleeper.stream.socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
        await sleeper.send_request(COMPLETIONS, toy(stream=True, tokens=8000), headers={"x-request-id": "asleep"})
        # seen
        paths = await tour.see_until(lambda paths: (path := path_of(paths, "asleep")) and path.place == "socket", "requests")
        path = path_of(paths, "asleep")
        assert path.socket is not None and path.generated_tokens > 0
        nursery.start_soon(tour.ask, answers, "awake", toy(tokens=20))
        while "awake" not in answers:
            assert path_of(await tour.see("requests"), "asleep").place == "socket"
            await trio.lowlevel.checkpoint()
        assert answers["awake"].status == 200, "nobody else notices"  # type: ignore[attr-defined]
        # resolved
        await tour.see("cancel", "asleep")
        assert await tour.see("requests") == []
        assert tour.runtime.active() == 0
        with pytest.raises(ConsoleRefused, match="asleep"):
            await tour.see("cancel", "asleep")
