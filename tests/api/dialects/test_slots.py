"""`/slots`: the seats of the batches, without a word of what is said there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec

from tests.api.serving import CHAT, serving_toy, until
from tripower.actors.queueing import QueueStatistics, SeatStatistics
from tripower.actors.runtime import toy_plan
from tripower.api.http.slots.endpoint import slots_of
from tripower.runtime.admission import Caller
from tripower.runtime.batching import BatchStatistics
from tripower.runtime.engine import SamplingParameters

LONG = {"model": "toy", "max_tokens": 4000, "seed": 5, "ignore_eos": True, "messages": [{"role": "user", "content": "whisper"}]}


async def test_a_taken_seat_tells_of_its_request_and_nothing_of_what_is_said() -> None:
    async with serving_toy(toy_plan(members_max=2, source="toy:2000")) as server:
        free = await server.ask("/slots")
        client = await server.open_client()
        await client.send_request(CHAT, LONG, headers={"x-request-id": "mine"})
        await until(lambda: server.actors.active() == 1)
        taken = await server.ask("/slots?model=toy&fail_on_no_slot=1")
        await client.stream.aclose()
        await until(lambda: not server.actors.active())
    context = free.json[0]["n_ctx"]
    idle = [{"id": id, "model": "toy", "n_ctx": context, "is_processing": False, "id_task": -1} for id in range(2)]
    assert free.json == idle
    first, second = taken.json
    assert second == idle[1]
    assert (first["is_processing"], first["request_id"], first["id_task"] >= 0) == (True, "mine", True)
    assert (first["params"]["seed"], first["params"]["n_predict"]) == (5, 4000)
    assert first["next_token"]["n_remain"] + first["next_token"]["n_decoded"] == 4000
    assert b"whisper" not in taken.body


async def test_a_full_model_can_be_asked_for_by_its_status() -> None:
    async with serving_toy(toy_plan(members_max=1, source="toy:2000")) as server:
        client = await server.open_client()
        await client.send_request(CHAT, LONG)
        await until(lambda: server.actors.active() == 1)
        full = await server.ask("/slots?fail_on_no_slot=1")
        await client.stream.aclose()
        await until(lambda: not server.actors.active())
        missing = await server.ask("/slots?model=none")
    assert (full.status, full.error["code"], full.headers["retry-after"]) == (503, "no_slot_available", "1")
    assert (missing.status, missing.error["code"]) == (404, "model_not_found")


def test_only_its_caller_and_an_administrator_hear_whose_seat_it_is() -> None:
    seat = SeatStatistics(
        ticket=3, identity="alice", request_id="r", prompt_tokens=9, evaluated=4, generated=0, tokens_max=5,
        sampling=SamplingParameters(seed=1),
    )  # fmt: skip
    zeros: Any = [0] * (len(BatchStatistics.__struct_fields__) - 1)
    batch = BatchStatistics(*zeros)
    batch = msgspec.structs.replace(batch, members=2, members_max=3)
    queue: Any = SimpleNamespace(model="m", batch=batch, seats=(seat,))
    assert {"model", "batch", "seats"} <= set(QueueStatistics.__struct_fields__)

    def seen(identity: str, *, admin: bool = False) -> list[dict[str, Any]]:
        exchange: Any = SimpleNamespace(caller=Caller(identity=identity), admin=admin)
        found: list[dict[str, Any]] = msgspec.to_builtins(list(slots_of(queue, 64, exchange)))
        return found

    mine = seen("alice")
    assert [slot["is_processing"] for slot in mine] == [True, True, False]
    assert mine == seen("bob", admin=True)
    assert (mine[0]["request_id"], mine[0]["params"]["seed"], mine[0]["n_prompt_tokens_processed"]) == ("r", 1, 4)
    assert {"request_id", "params"}.isdisjoint(seen("bob")[0])
