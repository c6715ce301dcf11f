"""A part that dies under a request: whoever waits hears of it at once, health says so, and the next request is answered."""

from __future__ import annotations

from typing import Any

import pytest

from tests.actors.rigs import Saboteur
from tests.api.serving import serving_toy, until
from tests.robustness.routes import ROUTES
from tripower.actors.runtime import toy_plan
from tripower.runtime.kernel import Supervision

DEAD_SECONDS = 0.8
"""A part that crashed stays away for so long."""


# BB-082
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("part", "route"), [("device:cpu0", ROUTES[0]), *(("queue:toy", route) for route in ROUTES)])
async def test_a_part_that_dies_is_told_to_who_waits_and_seen_in_health(route: Any, stream: bool, part: str) -> None:
    saboteur = Saboteur()
    supervision = Supervision(backoff_first=DEAD_SECONDS, backoff_max=DEAD_SECONDS)
    plan = toy_plan(source="toy:2000", steps_per_job=4, supervision=supervision, on_instance=saboteur.on_instance)
    async with serving_toy(plan) as server, server.client() as client:
        body = route.body("1247", temperature=0, stream=stream) | {route.limit: 1000}
        await client.send_request(route.path, body)
        await until(lambda: bool(server.actors.active()))
        saboteur.arm(part, skip=2)
        answer = await client.read_answer()
        assert b'"error"' in answer.body and (stream or answer.status >= 500)
        if part.startswith("device"):
            health = await server.ask("/health")
            assert health.status == 503 and part in health.body.decode()
        while (await server.ask("/health")).status != 200:
            pass
        assert (await server.ask(route.path, route.body(temperature=0))).status == 200
