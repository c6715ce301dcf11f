"""Seats, waiting room, deadlines and ends of an encoder's requests, on virtual time: a row takes one second."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from tests.actors.encoders import BEGIN, END, asking, open_telling, queue_of, telling
from tests.actors.rigs import Saboteur, request
from tripower.actors.device import DeviceStatistics
from tripower.actors.runtime import Runtime
from tripower.runtime.kernel import (
    ActorGone,
    DeadlineExceeded,
    DeviceFailed,
    InvalidRequest,
    Overloaded,
    TripowerError,
    Unavailable,
)


async def assert_quiet(runtime: Runtime) -> None:
    """Nobody asks any more: nothing is held, nothing runs, and all counters add up."""
    await trio.testing.wait_all_tasks_blocked()
    await trio.sleep(60)
    for actor in runtime.statistics():
        ends = actor.handled + actor.refused + actor.expired + actor.abandoned + actor.gone
        assert actor.received == ends, actor
        assert actor.inbox == actor.waiting == actor.control == actor.pending == 0, actor
        if isinstance(actor.details, DeviceStatistics):
            assert (actor.details.jobs, actor.details.state) == (0, "idle")
    queue = queue_of(runtime)
    assert queue.live == queue.gate.active == queue.gate.waiting == queue.batch.members == 0
    assert not queue.step_running
    assert queue.arrivals == queue.completed + queue.refused + queue.cancelled + queue.expired + queue.failed
    assert queue.batch.joined == queue.batch.finished + queue.batch.left + queue.batch.failed == queue.gate.admitted
    gate = queue.gate
    assert gate.arrivals == gate.admitted + gate.rejections + gate.cancelled_waiters + gate.expirations
    assert runtime.active() == 0


async def outcome(runtime: Runtime, *texts: str, into: dict[str, Any], name: str = "", **options: Any) -> None:
    """Ask, and note the time and what came."""
    try:
        found: Any = await runtime.embed(asking(*texts), **options)
    except TripowerError as error:
        found = error
    into[name or texts[0]] = (trio.current_time(), found)


async def test_vectors_come_in_the_order_of_the_inputs_with_their_usage(autojump_clock: object) -> None:
    async with open_telling() as (runtime, _):
        began = trio.current_time()
        found = await runtime.embed(asking("abc", "d", "ef"))
        assert trio.current_time() - began == pytest.approx(4)  # three pieces and the end
        rows = [[BEGIN, *text.encode(), END] for text in ("abc", "d", "ef")]
        assert np.array_equal(found.vectors, [telling(row) for row in rows])
        assert (found.model, found.prompt_tokens) == ("vectors", 5 + 3 + 4)
        assert found.waited_seconds == 0
        assert found.encode_seconds == pytest.approx(4)
        assert queue_of(runtime).prompt_tokens == 12
        await assert_quiet(runtime)


async def test_who_is_seated_takes_turns_who_waits_comes_later_and_who_is_too_many_is_refused(autojump_clock: object) -> None:
    async with open_telling(members_max=2, waiting_max=1) as (runtime, backend):
        ends: dict[str, Any] = {}
        async with trio.open_nursery() as nursery:
            for texts in (("a", "b"), ("c", "d"), ("e",), ("f",)):
                nursery.start_soon(partial(outcome, runtime, *texts, into=ends))
                await trio.testing.wait_all_tasks_blocked()
        assert [row[1:-1] for row in backend.engine.encoded] == [tuple(text.encode()) for text in "acbde"]
        refused = ends["f"][1]
        assert isinstance(refused, Overloaded)
        assert refused.retry_after is not None
        assert ends["e"][1].waited_seconds > 0
        assert ends["a"][0] < ends["e"][0]
        assert (queue_of(runtime).completed, queue_of(runtime).refused) == (3, 1)
        await assert_quiet(runtime)


async def test_who_leaves_while_it_runs_frees_the_lane_at_the_next_piece(autojump_clock: object) -> None:
    async with open_telling(members_max=1) as (runtime, backend):
        with trio.move_on_after(2.5):
            await runtime.embed(asking(*"abcdefgh"))
        await runtime.embed(asking("z"))
        assert 3 <= len(backend.engine.encoded) <= 4  # two or three of the eight, and the next request's
        assert (queue_of(runtime).cancelled, queue_of(runtime).completed) == (1, 1)
        await assert_quiet(runtime)


async def test_who_leaves_while_it_waits_is_never_encoded(autojump_clock: object) -> None:
    async with open_telling(members_max=1) as (runtime, backend), trio.open_nursery() as nursery:
        nursery.start_soon(runtime.embed, asking(*"abcd"))
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(1):
            await runtime.embed(asking("z"))
        assert queue_of(runtime).gate.cancelled_waiters == 1
        await assert_quiet(runtime)
        assert len(backend.engine.encoded) == 4


@pytest.mark.parametrize(("texts", "seconds"), [("abcdefgh", 2.5), ("z", 2.5)])
async def test_a_deadline_bounds_the_wait_and_the_run(texts: str, seconds: float, autojump_clock: object) -> None:
    async with open_telling(members_max=1) as (runtime, _):
        ends: dict[str, Any] = {}
        async with trio.open_nursery() as nursery:
            if texts == "z":  # behind somebody
                nursery.start_soon(runtime.embed, asking(*"abcdefgh"))
                await trio.testing.wait_all_tasks_blocked()
            deadline = trio.current_time() + seconds
            await outcome(runtime, *texts, into=ends, name="it", deadline=deadline)
        assert isinstance(ends["it"][1], DeadlineExceeded)
        assert ends["it"][0] == deadline
        assert queue_of(runtime).expired == 1
        await assert_quiet(runtime)


async def test_a_deadline_that_has_passed_is_answered_at_once(autojump_clock: object) -> None:
    async with open_telling() as (runtime, backend):
        with pytest.raises(DeadlineExceeded):
            await runtime.embed(asking("a"), deadline=trio.current_time() - 1)
        assert backend.engine.encoded == []
        await assert_quiet(runtime)


async def test_an_engine_that_fails_costs_one_request(autojump_clock: object) -> None:
    async with open_telling() as (runtime, backend):
        backend.engine.failures.append(RuntimeError("broken"))
        with pytest.raises(DeviceFailed):
            await runtime.embed(asking("a", "b"))
        await runtime.embed(asking("a"))
        assert (queue_of(runtime).failed, queue_of(runtime).completed) == (1, 1)
        await assert_quiet(runtime)


@pytest.mark.parametrize("name", ["queue:vectors", "device"])
async def test_a_part_that_crashes_is_told_and_comes_back(name: str, autojump_clock: object) -> None:
    saboteur = Saboteur()
    async with open_telling(on_instance=saboteur.on_instance) as (runtime, _):
        names = {actor.name for actor in runtime.statistics()}
        name = next(each for each in names if each.startswith(name))
        saboteur.arm(name)
        with pytest.raises((ActorGone, Unavailable)):
            await runtime.embed(asking("a", "b"))
        assert not saboteur.armed
        await trio.sleep(60)
        await runtime.embed(asking("a"))


async def test_an_unload_waits_for_whoever_is_encoded_and_the_next_request_loads_again(autojump_clock: object) -> None:
    async with open_telling() as (runtime, backend), trio.open_nursery() as nursery:
        ends: dict[str, Any] = {}
        nursery.start_soon(lambda: outcome(runtime, *"abc", into=ends))
        await trio.testing.wait_all_tasks_blocked()
        await runtime.unload("vectors")
        assert backend.engine.closed
        assert ends["a"][1].prompt_tokens == 9
        assert (await runtime.embed(asking("a"))).prompt_tokens == 3
        assert len(backend.engines) == 2


async def test_a_model_that_generates_makes_no_embeddings_and_the_other_way_round(autojump_clock: object) -> None:
    async with open_telling() as (runtime, _):
        with pytest.raises(InvalidRequest, match="makes no embeddings") as refused:
            await runtime.embed(asking("a", model="toy"))
        assert (refused.value.code, refused.value.param, refused.value.status) == ("unsupported_by_model", "model", 400)
        with pytest.raises(InvalidRequest, match="makes embeddings") as refused:
            async with runtime.generate(request("p", model="vectors")):
                pass
        assert (refused.value.code, refused.value.param, refused.value.status) == ("unsupported_by_model", "model", 400)
        ready = await runtime.load("vectors")
        assert ready.embeds
        assert not ready.has_chat_template
        assert ready.recommended is None
        assert not (await runtime.load("toy")).embeds


async def test_a_runtime_that_drains_takes_no_more(autojump_clock: object) -> None:
    async with open_telling() as (runtime, _):
        runtime.begin_drain()
        with pytest.raises(Overloaded) as refused:
            await runtime.embed(asking("a"))
        assert refused.value.code == "draining"


async def test_the_end_of_the_runtime_ends_what_runs(autojump_clock: object) -> None:
    ends: dict[str, Any] = {}
    async with trio.open_nursery() as nursery, open_telling() as (runtime, backend):
        nursery.start_soon(lambda: outcome(runtime, *"abcdefgh", into=ends))
        await trio.sleep(1.5)
    assert isinstance(ends["a"][1], ActorGone)
    assert len(backend.engine.encoded) < 8
