"""The overview of a runtime at work, on virtual time: what it says, and when it looks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from tests.actors.rigs import Listener, open_toy, request
from tripower.actors.runtime import Runtime
from tripower.api.overview.collector import Collector
from tripower.api.overview.figures import Overview, Percentiles
from tripower.api.overview.summaries import percentiles
from tripower.runtime.admission import Caller
from tripower.runtime.kernel import LaneJob

STEP_SECONDS = 0.05
RATE = pytest.approx(20, abs=2.1)


def pace(job: LaneJob) -> float:
    return STEP_SECONDS if job.name.startswith("steps") else 0.0


@asynccontextmanager
async def open_busy(*answers: int, **plan: Any) -> AsyncIterator[tuple[Runtime, Collector]]:
    """A runtime that answers requests for so many tokens each, twenty tokens a second, from just now on."""
    async with open_toy(pace=pace, **plan) as (runtime, _), trio.open_nursery() as nursery:
        await runtime.load("toy")
        for tokens in answers:
            nursery.start_soon(Listener().run, runtime.generate(request("p", tokens)))
        await trio.testing.wait_all_tasks_blocked(0.001)
        yield runtime, Collector(runtime)
        nursery.cancel_scope.cancel()


async def test_the_first_look_waits_for_rates(autojump_clock: trio.testing.MockClock) -> None:
    async with open_busy(500, 500) as (_, collector):
        began = trio.current_time()
        overview = await collector.look()
        assert trio.current_time() - began == pytest.approx(0.5)
    assert overview.tokens_per_second == pytest.approx(40, abs=4.1)
    assert overview.rate_seconds == overview.window_seconds == pytest.approx(0.5)
    assert (overview.status, overview.running, overview.waiting) == ("ok", 2, 0)
    (model,) = overview.models
    assert (model.name, model.state, model.backend, model.members, model.members_max) == ("toy", "loaded", "toy", 2, 16)
    assert model.tokens_per_second == overview.tokens_per_second
    assert model.token_interval.p50 == pytest.approx(STEP_SECONDS, rel=0.1), "of those that run, while none is complete"
    (device,) = overview.devices
    assert (device.state, device.job) == ("busy", "steps toy")
    assert device.busy_share == pytest.approx(1)
    (identity,) = overview.identities
    assert (identity.label, identity.running, identity.share) == ("anonymous", 2, 1.0)


async def test_whoever_looks_every_second_waits_no_more_and_sees_where_the_rate_has_been(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_busy(60) as (_, collector):
        await collector.look()
        for _ in range(6):
            await trio.sleep(1)
            began = trio.current_time()
            overview = await collector.look()
            assert trio.current_time() == began
    plot = [point.tokens_per_second for point in overview.history]
    assert plot[:2] == [RATE, RATE] and plot[-2:] == [0, 0]
    assert [point.at for point in overview.history] == sorted(point.at for point in overview.history)
    assert overview.history[-1].at == 0 and overview.history[0].at >= -6
    assert overview.tokens_per_second == pytest.approx(0, abs=0.5), "the last three seconds"
    assert overview.identities[0].share == 1, "but lately"


async def test_nothing_is_looked_at_while_nobody_looks(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_busy(1000) as (runtime, collector):
        await collector.look()
        looks = 0
        statistics = runtime.statistics

        def counted() -> object:
            nonlocal looks
            looks += 1
            return statistics()

        monkeypatch.setattr(runtime, "statistics", counted)
        await trio.sleep(30)
        assert looks == 0
        began = trio.current_time()
        overview = await collector.look()
        assert trio.current_time() - began == pytest.approx(0.5), "a rate over half a minute would say nothing of now"
    assert overview.tokens_per_second == RATE
    assert overview.window_seconds == pytest.approx(31, abs=0.1)


async def test_two_who_look_for_the_first_time_at_once_see_the_same(autojump_clock: trio.testing.MockClock) -> None:
    seen: list[Overview] = []
    async with open_busy(1000) as (_, collector):

        async def look() -> None:
            seen.append(await collector.look())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            nursery.start_soon(look)
    assert [overview.tokens_per_second for overview in seen] == [RATE, RATE]


async def test_tokens_are_shared_out_by_key(autojump_clock: trio.testing.MockClock) -> None:
    ada = Caller(identity="key_1", name="Ada", alone=False)
    async with open_toy(pace=pace) as (runtime, _), trio.open_nursery() as nursery:
        await runtime.load("toy")
        collector = Collector(runtime)
        await collector.look()
        for caller, tokens in ((ada, 20), (ada, 10), (Caller(identity="key_2", alone=False), 10)):
            nursery.start_soon(Listener().run, runtime.generate(request("p", tokens, caller=caller)))
        await trio.sleep(2)
        overview = await collector.look()
    assert [(each.label, each.running) for each in overview.identities] == [("key_1 (Ada)", 0), ("key_2", 0)]
    assert [each.share for each in overview.identities] == pytest.approx([0.75, 0.25])


async def test_what_was_generated_for_somebody_who_left_counts(autojump_clock: trio.testing.MockClock) -> None:
    async with open_toy(pace=pace) as (runtime, _), trio.open_nursery() as nursery:
        await runtime.load("toy")
        collector = Collector(runtime)
        await collector.look()
        scope = trio.CancelScope(deadline=trio.current_time() + 1)
        nursery.start_soon(Listener().run, runtime.generate(request("p", 500)), scope)
        await trio.sleep(2)
        overview = await collector.look()
    assert overview.tokens_per_second * overview.rate_seconds == RATE
    assert overview.running == 0


async def test_percentiles_are_of_answers_that_are_complete(autojump_clock: trio.testing.MockClock) -> None:
    async with open_busy(11, 11, 200) as (_, collector):
        await trio.sleep(5)
        (model,) = (await collector.look()).models
        assert model.first_token.p50 == pytest.approx(STEP_SECONDS, abs=STEP_SECONDS)
        assert model.token_interval.p50 == pytest.approx(STEP_SECONDS)
        await trio.sleep(70)
        (model,) = (await collector.look()).models
        assert model.first_token == model.token_interval == Percentiles(), "long ago is not lately"


async def test_refusals_are_counted(autojump_clock: trio.testing.MockClock) -> None:
    async with open_busy(5000, members_max=1, waiting_max=0) as (runtime, collector):
        await collector.look()
        for _ in range(4):
            refused = Listener()
            await refused.run(runtime.generate(request("p", 1)))
            assert refused.error is not None
        await trio.sleep(1)
        overview = await collector.look()
    assert overview.refused_per_second * overview.rate_seconds == pytest.approx(4)
    assert overview.requests_per_second * overview.rate_seconds == pytest.approx(4)


async def test_the_ten_slowest_requests_are_there_the_oldest_first(autojump_clock: trio.testing.MockClock) -> None:
    async with open_toy(pace=pace, members_max=2) as (runtime, _), trio.open_nursery() as nursery:
        await runtime.load("toy")
        for number in range(12):
            nursery.start_soon(Listener().run, runtime.generate(request("p", 5000, request_id=f"r{number}")))
            await trio.sleep(1)
        overview = await Collector(runtime).look()
        nursery.cancel_scope.cancel()
    assert [path.id for path in overview.requests] == [f"r{number}" for number in range(10)]
    assert [path.place for path in overview.requests[:3]] == ["answer", "answer", "waiting"]
    assert (overview.running, overview.waiting) == (2, 10)


async def test_a_look_at_many_requests_lets_others_run_in_between(autojump_clock: trio.testing.MockClock) -> None:
    async with open_busy(*[100] * 300, members_max=16, waiting_max=300) as (_, collector):
        await collector.look()
        await trio.sleep(1)
        turns = 0

        async def take_turns() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_turns)
            overview = await collector.look()
            nursery.cancel_scope.cancel()
    assert len(overview.requests) == 10
    assert turns >= 6


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], Percentiles()),
        ([None, None], Percentiles()),
        ([2.0], Percentiles(2.0, 2.0, 2.0)),
        ([1.0, 3.0, None], Percentiles(1.0, 3.0, 3.0)),
        ([float(number) for number in range(100, 0, -1)], Percentiles(50.0, 95.0, 99.0)),
    ],
)
def test_percentiles_by_nearest_rank(values: list[float | None], expected: Percentiles) -> None:
    assert percentiles(values) == expected
