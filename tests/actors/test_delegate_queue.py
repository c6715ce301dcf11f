"""Seats, waiting room, deadlines and ends of a model that generates by itself, on virtual time: a piece takes one second."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.actors.delegates import ScriptedDelegate, ask, open_scripted, text
from tests.actors.rigs import Listener, Saboteur, figures
from tripower.actors.dialogue import SamplingChoices
from tripower.actors.queueing import QueueStatistics
from tripower.actors.runtime import Runtime
from tripower.backends.proxy.errors import UpstreamOverloaded, UpstreamTruncated
from tripower.runtime.engine import ChatMessage, DelegatePiece
from tripower.runtime.kernel import (
    DeadlineExceeded,
    DeviceFailed,
    InvalidRequest,
    ModelRefused,
    Overloaded,
    TripowerError,
    Unavailable,
)


def queue_figures(runtime: Runtime) -> QueueStatistics:
    details = figures(runtime, "queue:far").details
    assert isinstance(details, QueueStatistics)
    return details


async def assert_quiet(runtime: Runtime) -> None:
    await wait_all_tasks_blocked()
    queue = queue_figures(runtime)
    assert queue.live == queue.gate.active == queue.gate.waiting == queue.batch.members == runtime.active() == 0
    assert queue.arrivals == queue.completed + queue.refused + queue.cancelled + queue.expired + queue.failed
    assert queue.batch.joined == queue.batch.finished + queue.batch.left + queue.batch.failed
    assert not queue.step_running


def start(nursery: trio.Nursery, runtime: Runtime, *, deadline: float | None = None, **changes: Any) -> Listener:
    listener = Listener()
    scope = changes.pop("scope", None)
    options: dict[str, Any] = {} if deadline is None else {"deadline": deadline}
    nursery.start_soon(listener.run, runtime.generate(ask(**changes), **options), scope)
    return listener


async def answer(runtime: Runtime, **changes: Any) -> Listener:
    listener = Listener()
    await listener.run(runtime.generate(ask(**changes)))
    return listener


async def test_pieces_arrive_as_they_come_and_end_once(autojump_clock: MockClock) -> None:
    async with open_scripted(ScriptedDelegate(text("a", "", "b", usage=(7, 5)))) as (runtime, _):
        listener = await answer(runtime)
        assert listener.text == "ab" and listener.tokens == [-1, -1, -1] and listener.times == [1, 2, 3]
        finished = listener.finished
        assert finished is not None and finished.reason == "stop"
        assert (finished.usage.prompt_tokens, finished.usage.completion_tokens) == (7, 5)
        assert (finished.timings.wait_seconds, finished.timings.prefill_seconds, finished.timings.decode_seconds) == (0, 1, 3)
        await assert_quiet(runtime)
        assert queue_figures(runtime).generated_tokens == 5


async def test_pieces_are_counted_where_nobody_tells_the_tokens(autojump_clock: MockClock) -> None:
    pieces = [DelegatePiece("a", 3), DelegatePiece("b"), *text()]
    async with open_scripted(ScriptedDelegate(pieces)) as (runtime, _):
        finished = (await answer(runtime)).finished
        assert finished is not None and (finished.usage.prompt_tokens, finished.usage.completion_tokens) == (0, 4)


async def test_the_request_reaches_the_delegate_as_it_was_asked(autojump_clock: MockClock) -> None:
    delegate = ScriptedDelegate(text("a"))
    async with open_scripted(delegate) as (runtime, _):
        messages = (ChatMessage("user", "Hi"),)
        await answer(runtime, messages=messages, max_tokens=9, stop=("x",), sampling=SamplingChoices(seed=3))
        await answer(runtime)
    told, plain = delegate.requests
    assert (told.messages, told.prompt, told.max_tokens, told.stop) == (messages, None, 9, ("x",))
    assert (told.sampling.seed, told.sampling.temperature) == (3, None)
    assert (plain.prompt, plain.max_tokens, plain.sampling) == ("p", 16, SamplingChoices())


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (("one st", "op two"), "one "),
        (("one stop", " two"), "one "),
        (("one st", "ay"), "one stay"),
        (("one st",), "one st"),
    ],
)
async def test_a_stop_string_ends_the_text_whether_the_delegate_heeds_it_or_not(
    pieces: tuple[str, ...], expected: str, autojump_clock: MockClock
) -> None:
    delegate = ScriptedDelegate(text(*pieces, reason="length"))
    async with open_scripted(delegate) as (runtime, _):
        listener = await answer(runtime, stop=("stop",))
        assert listener.text == expected and listener.finished is not None
        assert listener.finished.reason == ("length" if expected.startswith("one st") else "stop")
        assert not delegate.streaming
        await assert_quiet(runtime)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"sampling": SamplingChoices(min_p=0.1)}, "min_p"),
        ({"sampling": SamplingChoices(logit_bias=((1, 2.0),))}, "logit_bias"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"prompt": (1, 2)}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": (ChatMessage("judge", "x"),)}, "messages"),
    ],
)
async def test_what_a_delegate_cannot_honour_is_refused_by_name(
    changes: dict[str, Any], param: str, autojump_clock: MockClock
) -> None:
    delegate = ScriptedDelegate(text("a"))
    async with open_scripted(delegate) as (runtime, _):
        error = (await answer(runtime, **changes)).error
        assert isinstance(error, InvalidRequest) and (error.code, error.param) == ("unsupported_by_engine", param)
        assert "scripted" in error.message and not delegate.requests


@pytest.mark.parametrize("changes", [{"prompt": ""}, {"messages": ()}, {"sampling": SamplingChoices(temperature=float("nan"))}])
async def test_what_makes_no_sense_is_refused_before_the_delegate_hears_of_it(
    changes: dict[str, Any], autojump_clock: MockClock
) -> None:
    delegate = ScriptedDelegate(text("a"))
    async with open_scripted(delegate) as (runtime, _):
        assert isinstance((await answer(runtime, **changes)).error, InvalidRequest) and not delegate.requests


async def test_a_delegate_has_no_more_streams_than_it_can_take(autojump_clock: MockClock) -> None:
    delegate = ScriptedDelegate(text("a", "b"), seats=1)
    async with open_scripted(delegate, members_max=4) as (runtime, _), trio.open_nursery() as nursery:
        listeners = [start(nursery, runtime) for _ in range(3)]
        await trio.sleep(20)
        assert delegate.peak == 1
        starts = [listener.started_at for listener in listeners]
        assert sorted(map(float, starts)) == [1, 4, 7]  # type: ignore[arg-type]
        await assert_quiet(runtime)


async def test_a_full_room_refuses_with_the_time_after_which_to_come_back(autojump_clock: MockClock) -> None:
    async with (
        open_scripted(ScriptedDelegate(text("a", "b")), members_max=1, waiting_max=1) as (runtime, _),
        trio.open_nursery() as nursery,
    ):
        for _ in range(2):
            start(nursery, runtime)
            await wait_all_tasks_blocked()
        error = (await answer(runtime)).error
        assert isinstance(error, Overloaded) and error.code == "queue_full" and error.retry_after == 2
        await trio.sleep(20)
        await assert_quiet(runtime)


async def test_a_caller_who_leaves_stops_the_stream_and_the_seat_is_free_when_it_has_closed(autojump_clock: MockClock) -> None:
    delegate = ScriptedDelegate(text("a", "b", "c"), closing_seconds=5)
    async with open_scripted(delegate, members_max=1) as (runtime, _), trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        start(nursery, runtime, scope=scope)
        await trio.sleep(1.5)
        waiting = start(nursery, runtime)
        await trio.sleep(0.5)
        scope.cancel()
        await wait_all_tasks_blocked()
        assert queue_figures(runtime).live == 1 and queue_figures(runtime).gate.active == 1
        await trio.sleep(20)
        assert delegate.left_early == 1 and delegate.peak == 1 and waiting.started_at == 8
        await assert_quiet(runtime)
        assert queue_figures(runtime).cancelled == 1


async def test_a_caller_who_leaves_the_waiting_room_costs_the_delegate_nothing(autojump_clock: MockClock) -> None:
    delegate = ScriptedDelegate(text("a", "b"))
    async with open_scripted(delegate, members_max=1) as (runtime, _), trio.open_nursery() as nursery:
        start(nursery, runtime)
        await wait_all_tasks_blocked()
        scope = trio.CancelScope()
        start(nursery, runtime, scope=scope)
        await wait_all_tasks_blocked()
        scope.cancel()
        await trio.sleep(10)
        assert len(delegate.requests) == 1
        await assert_quiet(runtime)


async def test_a_deadline_bounds_the_stream_and_is_told_to_the_delegate(autojump_clock: MockClock) -> None:
    delegate = ScriptedDelegate(text(*"abcdef"))
    async with open_scripted(delegate) as (runtime, _), trio.open_nursery() as nursery:
        listener = start(nursery, runtime, deadline=2.5)
        await trio.sleep(10)
        assert isinstance(listener.error, DeadlineExceeded) and (listener.text, listener.ended_at) == ("ab", 2.5)
        assert delegate.seconds == [2.5] and delegate.left_early == 1
        await assert_quiet(runtime)
        assert queue_figures(runtime).expired == 1


async def test_a_deadline_bounds_the_wait(autojump_clock: MockClock) -> None:
    delegate = ScriptedDelegate(text(*"abcdef"))
    async with open_scripted(delegate, members_max=1) as (runtime, _), trio.open_nursery() as nursery:
        start(nursery, runtime)
        await wait_all_tasks_blocked()
        listener = start(nursery, runtime, deadline=2.5)
        await trio.sleep(20)
        assert isinstance(listener.error, DeadlineExceeded) and len(delegate.requests) == 1
        await assert_quiet(runtime)


@pytest.mark.parametrize(
    ("raised", "kind", "code"),
    [
        (UpstreamTruncated("it broke off"), UpstreamTruncated, "upstream_truncated"),
        (UpstreamOverloaded("no room", retry_after=9.0), UpstreamOverloaded, "upstream_overloaded"),
        (KeyError("a fault"), DeviceFailed, "device_failed"),
    ],
)
async def test_an_answer_that_breaks_off_keeps_its_text_and_says_why(
    raised: Exception, kind: type[Exception], code: str, autojump_clock: MockClock
) -> None:
    async with open_scripted(ScriptedDelegate([DelegatePiece("a"), raised])) as (runtime, _):
        listener = await answer(runtime)
        assert listener.text == "a" and listener.finished is None
        error = listener.error
        assert isinstance(error, kind) and error.code == code  # type: ignore[attr-defined]
        if isinstance(error, UpstreamOverloaded):
            assert error.retry_after == 9
        await assert_quiet(runtime)
        assert queue_figures(runtime).failed == 1


async def test_an_end_without_a_reason_is_no_end(autojump_clock: MockClock) -> None:
    async with open_scripted(ScriptedDelegate([DelegatePiece("a")])) as (runtime, _):
        error = (await answer(runtime)).error
        assert isinstance(error, TripowerError) and error.code == "delegate_truncated"


async def test_one_load_serves_everybody_and_its_failure_can_be_tried_again(autojump_clock: MockClock) -> None:
    delegate = ScriptedDelegate(text("a"))
    stages: list[tuple[str, float]] = []
    async with open_scripted(ModelRefused("not there"), delegate, opening_seconds=3) as (runtime, backend):
        async with trio.open_nursery() as nursery:
            listeners = [start(nursery, runtime) for _ in range(3)]
        assert [str(listener.error) for listener in listeners] == ["not there"] * 3 and backend.opens == 1
        ready = await runtime.load("far", progress=lambda *news: stages.append(news))
        assert ready.info.backend == "scripted" and ready.has_chat_template and ready.recommended is None
        assert stages == [("opening", 0.5)] and backend.opens == 2
        (card,) = await runtime.models()
        assert (card.state, card.backend, card.context) == ("loaded", "scripted", 0)


async def test_a_fault_in_a_backend_is_a_refused_load(autojump_clock: MockClock) -> None:
    async with open_scripted(KeyError("a fault")) as (runtime, _):
        error = (await answer(runtime)).error
        assert isinstance(error, ModelRefused) and "KeyError" in error.message


async def test_a_load_that_nobody_waits_for_is_given_up(autojump_clock: MockClock) -> None:
    async with open_scripted(ScriptedDelegate(text("a")), opening_seconds=100) as (runtime, backend):
        with trio.move_on_after(1):
            await answer(runtime)
        await trio.sleep(1)
        (card,) = await runtime.models()
        assert card.state == "unloaded" and len(backend.delegates) == 1


@pytest.mark.parametrize("after", [False, True])
async def test_a_queue_that_crashes_lets_go_of_its_streams_and_serves_again(after: bool, autojump_clock: MockClock) -> None:
    delegate, saboteur = ScriptedDelegate(text(*"abcdef")), Saboteur()
    async with (
        open_scripted(delegate, on_instance=saboteur.on_instance) as (runtime, _),
        trio.open_nursery() as nursery,
    ):
        listener = start(nursery, runtime)
        await trio.sleep(2.5)
        saboteur.arm("queue:far", after=after)
        other = start(nursery, runtime)
        await trio.sleep(20)
        assert isinstance(listener.error, Unavailable) and listener.text == "ab" and delegate.left_early
        assert isinstance(other.error, Unavailable) or other.text == "abcdef"
        assert not delegate.streaming
        assert (await answer(runtime)).text == "abcdef"
        await wait_all_tasks_blocked()
        assert runtime.active() == queue_figures(runtime).gate.active == 0


async def test_the_end_of_the_runtime_ends_the_streams(autojump_clock: MockClock) -> None:
    delegate = ScriptedDelegate(text(*"abcdef"), closing_seconds=1)
    async with trio.open_nursery() as nursery:
        async with open_scripted(delegate) as (runtime, _):
            listener = start(nursery, runtime)
            await trio.sleep(2.5)
        await trio.sleep(1)
        assert isinstance(listener.error, Unavailable) and listener.text == "ab"
