"""Many at once: who leaves, who is too many, who waits too long; by every route, and the books add up afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.api.serving import Answer, Server, until
from tests.robustness.routes import ROUTES, Route, serving_small
from tripower.actors.queueing import QueueStatistics

each_route = pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path.rpartition("v1/")[2])
SLOW = "toy:5000"
"""Five milliseconds a step."""
ENDLESS = "1247"
"""The toy's likeliest answer to this has no end token for thousands of tokens."""


def queue(server: Server) -> QueueStatistics:
    (found,) = [each.details for each in server.actors.statistics() if isinstance(each.details, QueueStatistics)]
    return found


def long_body(route: Route, **fields: Any) -> dict[str, Any]:
    """A request that takes far longer than a test."""
    body = route.body(ENDLESS, temperature=0, **fields) | {route.limit: 8000}
    return body | ({"ignore_eos": True} if "ignore_eos" in route.takes else {})


ASKED: list[tuple[Route, dict[str, Any]]] = [
    *((route, {}) for route in ROUTES),
    (ROUTES[0], {"n": 3}),
    (ROUTES[1], {"n": 3}),
    (ROUTES[1], {"prompt": ["a", "b", "c"]}),
    (ROUTES[1], {"prompt": ["a", "b"], "n": 2}),
]


# BB-001, BB-002, BB-079
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("route", "fields"), ASKED)
async def test_a_client_that_leaves_takes_all_it_asked_for_with_it(route: Route, fields: dict[str, Any], stream: bool) -> None:
    count = fields.get("n", 1) * len(fields.get("prompt", "x"))
    async with serving_small(source=SLOW, context=8192, members_max=2, waiting_max=16) as server:
        for turn in range(1, 4):
            client = await server.open_client()
            await client.send_request(route.path, long_body(route, stream=stream, **fields))
            await until(lambda: queue(server).live == count)  # two run, the others wait
            await client.stream.aclose()
            await until(lambda: queue(server).live == 0)
            assert queue(server).cancelled == turn * count
        await until(lambda: not queue(server).batch.members)
        assert queue(server).gate.active == queue(server).gate.waiting == 0
        assert (await server.ask(route.path, route.body() | {route.limit: 1})).status == 200


# BB-100
@each_route
async def test_who_is_too_many_is_told_at_once_and_the_others_are_answered(route: Route) -> None:
    answers: list[Answer] = []

    async def ask(server: Server, stream: bool) -> None:
        answers.append(await server.ask(route.path, route.body(stream=stream)))

    plan = {"source": "toy:20000", "context": 8192, "members_max": 1, "waiting_max": 2}
    async with serving_small(**plan) as server, server.client() as client:
        await client.send_request(route.path, long_body(route))
        await until(lambda: queue(server).gate.active == 1)
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(ask, server, bool(number % 2))
            await until(lambda: len(answers) == 8)  # refused while the first one still runs
            assert queue(server).gate.active == 1 and queue(server).gate.waiting == 2
            await client.stream.aclose()
    assert sorted(answer.status for answer in answers) == [200] * 2 + [503] * 8
    for answer in answers[:8]:
        assert route.error(answer)["message"]
        assert 1 <= int(answer.headers["retry-after"]) <= 120
        assert int(answer.headers["retry-after-ms"]) > 0


# BB-101
@each_route
@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline_in_the_waiting_room_is_kept_though_the_seat_is_taken(route: Route, stream: bool) -> None:
    async with serving_small(source=SLOW, context=8192, members_max=1) as server, server.client() as client:
        await client.send_request(route.path, long_body(route))
        await until(lambda: queue(server).gate.active == 1)
        late = await server.ask(route.path, route.body(stream=stream), headers={"x-tripower-deadline-ms": "60"})
        assert (late.status, late.headers["x-should-retry"]) == (504, "false")
        assert queue(server).gate.active == 1 and queue(server).gate.waiting == 0
        assert (queue(server).expired, queue(server).completed) == (1, 0)


# BB-106
@each_route
async def test_answers_beside_each_other_are_what_each_is_alone(route: Route) -> None:
    bodies = [route.body("abc" * (1 + number), temperature=0) | {route.limit: 30} for number in range(6)]
    together: dict[int, bytes] = {}

    async def ask(server: Server, number: int) -> None:
        answer = await server.ask(route.path, bodies[number])
        together[number] = _plain(answer)

    async with serving_small(members_max=2) as server:
        async with trio.open_nursery() as nursery:
            for number in range(len(bodies)):
                nursery.start_soon(ask, server, number)
        for number, body in enumerate(bodies):
            assert _plain(await server.ask(route.path, body)) == together[number]


def _plain(answer: Answer) -> bytes:
    """The parts of an answer that do not depend on when it was asked for."""
    assert answer.status == 200
    body = answer.json
    kept = body.get("choices") or body.get("content") or [item["content"] for item in body["output"]]
    return repr(kept).encode()
