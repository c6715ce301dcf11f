"""Stop strings by every route: never let out, also across tokens, and a stream says what the whole answer says."""

from __future__ import annotations

import pytest

from tests.robustness.routes import ROUTES, Route, serving_small, text_of


# BB-013, BB-014
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path.rpartition("v1/")[2])
async def test_the_text_ends_before_the_first_stop_string_whatever_asks_for_it(route: Route) -> None:
    async with serving_small(context=8192) as server:
        plain = route.body(temperature=0) | {route.limit: 60}
        text = text_of(route, await server.ask(route.path, plain))
        assert len(text) > 30
        for start, length in ((0, 1), (0, 5), (7, 1), (7, 4), (20, 12)):
            stop = text[start : start + length]
            body = plain | {route.stop: ["never!", stop]}
            whole = await server.ask(route.path, body)
            stream = await server.ask(route.path, body | {"stream": True})
            assert text_of(route, whole) == text_of(route, stream) == text.partition(stop)[0]
            assert route.reason(whole) in ("stop", "completed", "stop_sequence")
        held = plain | {route.stop: [text[-4:] + "!"]}
        assert text_of(route, await server.ask(route.path, held | {"stream": True})) == text
