"""`/v1/requests`: who sees what, and an answer to a cancellation only when it is true."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.api.auth.test_authentication import ADMIN, KEY, OTHER, bearer, key_file
from tests.api.fake_runtime import BIG, Script, finished, tokens
from tests.api.serving import (
    ASK,
    CHAT,
    COMPLETIONS,
    Answer,
    Server,
    serving,
    serving_toy,
    until,
)
from tripower.actors.queueing import QueueStatistics
from tripower.actors.runtime import toy_plan

RUNNING = Script([tokens("a"), math.inf])
TOY = {"model": "toy", "prompt": "xy", "max_tokens": 5000, "ignore_eos": True}


async def requests_of(server: Server, key: str) -> list[Any]:
    answer = await server.ask("/v1/requests", headers=bearer(key))
    assert answer.status == 200 and answer.json["object"] == "list"
    return list(answer.json["data"])


async def test_a_caller_sees_its_own_requests_and_an_administrator_all(tmp_path: Path) -> None:
    async with serving(RUNNING, auth=key_file(tmp_path, KEY, OTHER, ADMIN)) as server, trio.open_nursery() as nursery:
        for key in (KEY, OTHER):
            headers = bearer(key) | {"x-request-id": f"of-{key}"}
            nursery.start_soon(lambda headers=headers: server.ask(CHAT, ASK | {"stream": True}, headers=headers))  # type: ignore[misc]
            await server.runtime.wait_until(lambda: len(server.runtime.running) > (key == OTHER))  # noqa: B023
        while not all(each["completion_tokens"] for each in await requests_of(server, ADMIN)):
            pass
        mine = await requests_of(server, KEY)
        assert [each["id"] for each in mine] == [f"of-{KEY}"] and "identity" not in mine[0]
        assert (mine[0]["model"], mine[0]["route"], mine[0]["state"]) == ("fake", CHAT, "running")
        assert (mine[0]["prompt_tokens"], mine[0]["completion_tokens"]) == (3, 1) and mine[0]["age_seconds"] >= 0
        everything = await requests_of(server, ADMIN)
        assert [each["id"] for each in everything] == [f"of-{KEY}", f"of-{OTHER}"]
        assert everything[0]["identity"].startswith("key-") and everything[0]["identity"] != everything[1]["identity"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("verb", ["DELETE", "POST"])
@pytest.mark.parametrize("wanted", ["none", "mine", "%00", "a" * 3000])
async def test_an_id_that_is_unknown_or_of_another_is_not_found(tmp_path: Path, verb: str, wanted: str) -> None:  # BB-005
    path = f"/v1/requests/{wanted}" + ("/cancel" if verb == "POST" else "")
    async with serving(RUNNING, auth=key_file(tmp_path, KEY, OTHER)) as server, trio.open_nursery() as nursery:
        headers = bearer(KEY) | {"x-request-id": "mine"}
        nursery.start_soon(lambda: server.ask(CHAT, ASK, headers=headers))
        await server.runtime.wait_until(lambda: bool(server.runtime.running))
        answer = await server.ask(path, method=verb, headers=bearer(OTHER))
        assert (answer.status, answer.error["code"]) == (404, "request_not_found") and len(answer.body) < 1000
        assert len(server.runtime.running) == 1
        nursery.cancel_scope.cancel()


async def cancelled(server: Server, request: dict[str, Any], verb: str) -> tuple[Answer, Answer]:
    """The answer of a request that is cancelled once it runs, and that of its cancellation."""
    answers: list[Answer] = []

    async def ask() -> None:
        answers.append(await server.ask(COMPLETIONS, request, headers={"x-request-id": "mine"}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await until(lambda: server.actors.active() == 1)
        path = "/v1/requests/mine" + ("/cancel" if verb == "POST" else "")
        answer = await server.ask(path, method=verb)
        queue = queue_of(server)
        assert (queue.live, queue.gate.active, queue.gate.waiting) == (0, 0, 0)
        assert (await server.ask("/v1/requests")).json["data"] == []
    return answers[0], answer


def queue_of(server: Server) -> QueueStatistics:
    found = [each.details for each in server.actors.statistics() if isinstance(each.details, QueueStatistics)]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("verb", ["DELETE", "POST"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancellation_is_answered_when_the_seat_is_free(verb: str, stream: bool) -> None:  # BB-005
    async with serving_toy(toy_plan(source="toy:200")) as server:
        answer, cancellation = await cancelled(server, TOY | {"stream": stream}, verb)
        assert cancellation.status == 200 and cancellation.json == {
            "id": "mine", "object": "request.cancelled", "cancelled": True
        }  # fmt: skip
        error = answer.events[-2]["error"] if answer.status == 200 else answer.error
        assert error["code"] == "request_cancelled"
        again = await server.ask("/v1/requests/mine", method="DELETE")
        assert again.status == 404


async def test_a_request_whose_client_does_not_read_is_cut_off(autojump_clock: MockClock) -> None:
    whole = Script([[*tokens(*[BIG] * 300), *finished(generated=300)]])
    async with serving(whole) as server, server.client() as client:
        client.stream.socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
        await client.send_request(CHAT, ASK, headers={"x-request-id": "deaf"})
        await trio.sleep(5)
        answer = await server.ask("/v1/requests/deaf", method="DELETE")
        assert answer.status == 200 and trio.current_time() == 5
        assert (await server.ask("/v1/requests")).json["data"] == []
