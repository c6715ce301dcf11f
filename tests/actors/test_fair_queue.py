"""What identities mean for those who ask a queue: shares, refusals with a time, and seats that are really free."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.actors.delegates import ScriptedDelegate, open_scripted, text
from tests.actors.delegates import ask as ask_delegate
from tests.actors.rigs import open_toy, queue_figures, request, warm_up
from tripower.actors.dialogue import ERRORS
from tripower.actors.embedding import EmbeddingRequest
from tripower.actors.generation import Generation
from tripower.runtime.admission import Caller
from tripower.runtime.kernel import Overloaded

NOISY, QUIET = Caller(identity="noisy", alone=False), Caller(identity="quiet", alone=False)


async def test_the_newest_request_of_a_key_over_its_share_makes_room_and_hears_when_to_come_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_toy(members_max=1, waiting_max=2) as (runtime, _):
        await warm_up(runtime)
        asked = [runtime.generate(request("n", 50, caller=NOISY)) for _ in range(3)]
        for generation in asked:
            await generation.__aenter__()
        async with runtime.generate(request("q", 3, caller=QUIET)) as quiet:
            with pytest.raises(Overloaded) as caught:
                async for _ in asked[2]:
                    raise AssertionError("nothing was generated")
            error = caught.value
            assert (error.code, error.status, error.kind) == ("share_exceeded", 429, "rate_limit_error")
            assert error.retry_after is not None and error.retry_after >= 1
            with pytest.raises(Overloaded, match="more than its share") as refused:
                await runtime.generate(request("n", 50, caller=NOISY)).__aenter__()
            assert refused.value.retry_after is not None and refused.value.retry_after >= 1
            assert [event async for event in quiet][-1]
        for generation in asked:
            generation.leave()
        await trio.sleep(10)
        figures = queue_figures(runtime)
        assert (figures.arrivals, figures.refused, figures.completed, figures.cancelled) == (5, 2, 2, 1)
        assert figures.failed == figures.live == figures.gate.active == 0


async def test_a_key_has_no_more_requests_at_once_than_it_may(autojump_clock: trio.testing.MockClock) -> None:
    limited = Caller(identity="l", concurrency_max=1, alone=False)
    async with open_toy(members_max=4) as (runtime, _):
        await warm_up(runtime)
        async with runtime.generate(request("x", 50, caller=limited)):
            with pytest.raises(Overloaded) as caught:
                await runtime.generate(request("x", 5, caller=limited)).__aenter__()
            assert caught.value.code == "concurrency_exceeded"
        async with runtime.generate(request("x", 5, caller=limited)):
            pass


async def test_settling_waits_until_those_who_left_hold_no_seat(autojump_clock: trio.testing.MockClock) -> None:
    async with open_toy(members_max=2) as (runtime, _):
        await warm_up(runtime)
        staying = runtime.generate(request("x", 50))
        going: Generation = runtime.generate(request("x", 50))
        await staying.__aenter__()
        await going.__aenter__()
        going.leave()
        await runtime.settle()
        assert queue_figures(runtime).gate.active == 1
        staying.leave()


async def test_settling_waits_for_a_delegate_that_takes_its_time_to_let_go(autojump_clock: trio.testing.MockClock) -> None:
    delegate = ScriptedDelegate(text("a") * 50, closing_seconds=7.0)
    async with open_scripted(delegate) as (runtime, _):
        generation = runtime.generate(ask_delegate())
        await generation.__aenter__()
        await generation.receive()
        generation.leave()
        before = trio.current_time()
        await runtime.settle()
        assert trio.current_time() - before >= 7.0


def test_a_refusal_comes_back_as_what_it_was() -> None:
    assert ERRORS["share_exceeded"] is Overloaded


def test_an_embedding_request_has_a_caller() -> None:
    assert EmbeddingRequest(model="m", input="x", caller=QUIET).caller is QUIET
