"""Seats, waiting room, batch and outlets of one model, seen from its users on virtual time: a step takes one second."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.actors.rigs import (
    BrittleEngine,
    Listener,
    RecordingBackend,
    assert_quiet,
    complete,
    figures,
    greedy,
    open_toy,
    queue_figures,
    request,
    warm_up,
)
from tripower.actors.device import RunSteps, StepOrder, StepsCommitted, StepsDone
from tripower.actors.dialogue import Failed, GenerationEvent, GenerationFinished, GenerationStarted, SamplingChoices
from tripower.actors.model_queue import ModelQueueActor
from tripower.actors.queueing import AnswerParts, Generate, Leave, QueueLimits, outlet_room
from tripower.actors.runtime import Runtime
from tripower.backends.toy import ToyEngine, ToyText
from tripower.backends.toy.engine import END, absorb, draw
from tripower.runtime.engine import LoadedModel, SamplingParameters, StepTable
from tripower.runtime.kernel import (
    Actor,
    DeadlineExceeded,
    InvalidRequest,
    Outlet,
    Overloaded,
    TripowerError,
    open_actor_system,
)


def start(
    nursery: trio.Nursery,
    runtime: Runtime,
    prompt: str = "p",
    max_tokens: int | None = 3,
    *,
    deadline: float | None = None,
    **changes: Any,
) -> Listener:
    listener = Listener()
    scope = changes.pop("scope", None)
    options: dict[str, Any] = {} if deadline is None else {"deadline": deadline}
    nursery.start_soon(listener.run, runtime.generate(request(prompt, max_tokens, **changes), **options), scope)
    return listener


async def test_tokens_arrive_step_by_step_and_end_once(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, backend):
        now = await warm_up(runtime)
        listener = await complete(runtime, "hello", 4)
        assert listener.started_at == now + 1 and listener.times == [now + n for n in (1, 2, 3, 4)]
        assert listener.text == bytes(greedy("hello", 4)).decode()
        finished = listener.finished
        assert finished is not None and finished.reason == "length"
        assert (finished.usage.prompt_tokens, finished.usage.completion_tokens) == (5, 4)
        assert (finished.timings.wait_seconds, finished.timings.prefill_seconds, finished.timings.decode_seconds) == (0, 1, 3)
        await trio.sleep(10)
        await assert_quiet(runtime, backend)


async def test_a_newcomer_joins_at_the_next_boundary(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, _), trio.open_nursery() as nursery:
        now = await warm_up(runtime)
        first = start(nursery, runtime, "a", 6)
        await trio.sleep(1.5)
        second = start(nursery, runtime, "b", 2)
        await trio.sleep(20)
        # A seat is free: the boundary at 2 sees the stop, and the job that both take part in begins there.
        assert second.finished is not None and second.finished.timings.wait_seconds == 0
        assert first.times == [now + n for n in (1, 3, 4, 5, 6, 7)]
        assert second.times == [now + 3, now + 4]
        assert first.tokens == greedy("a", 6) and second.tokens == greedy("b", 2)


async def test_those_who_wait_are_seated_in_order(autojump_clock: MockClock) -> None:
    async with open_toy(members_max=1) as (runtime, backend), trio.open_nursery() as nursery:
        await warm_up(runtime)
        listeners = []
        for name in "abcde":
            listeners.append(start(nursery, runtime, name, 2))
            await wait_all_tasks_blocked()
        gate = queue_figures(runtime).gate
        assert (gate.active, gate.waiting) == (1, 4) and runtime.active() == 5
        await trio.sleep(100)
        starts = [listener.started_at for listener in listeners]
        assert None not in starts and starts == sorted(starts, key=float) and len(set(starts)) == 5  # type: ignore[arg-type]
        assert all(listener.tokens == greedy(name, 2) for name, listener in zip("abcde", listeners, strict=True))
        await assert_quiet(runtime, backend)


async def test_a_newcomer_does_not_overtake_those_who_wait(autojump_clock: MockClock) -> None:
    async with open_toy(members_max=1) as (runtime, _), trio.open_nursery() as nursery:
        await warm_up(runtime)
        scope = trio.CancelScope()
        start(nursery, runtime, "a", 50, scope=scope)
        await wait_all_tasks_blocked()
        second = start(nursery, runtime, "b", 2)
        await wait_all_tasks_blocked()
        scope.cancel()
        third = start(nursery, runtime, "c", 2)
        await trio.sleep(50)
        assert second.started_at is not None and third.started_at is not None and second.started_at < third.started_at


async def test_a_full_room_refuses_with_the_time_after_which_to_come_back(autojump_clock: MockClock) -> None:
    async with open_toy(members_max=1, waiting_max=1) as (runtime, backend), trio.open_nursery() as nursery:
        await warm_up(runtime)
        for name in "ab":
            start(nursery, runtime, name, 7)
            await wait_all_tasks_blocked()
        refused = await refusal(runtime)
        assert isinstance(refused, Overloaded) and refused.code == "queue_full" and refused.status == 503
        assert refused.retry_after == 2.0  # two in front, a second each as long as nothing else is known
        await trio.sleep(50)
        # Seven seconds each since: the estimate moves by a fifth of the difference.
        for name in "cd":
            start(nursery, runtime, name, 7)
            await wait_all_tasks_blocked()
        refused = await refusal(runtime)
        service = 1.0 + 0.2 * (7.0 - 1.0)
        service += 0.2 * (7.0 - service)
        assert isinstance(refused, Overloaded) and refused.retry_after == pytest.approx(2 * service)
        await trio.sleep(50)
        assert queue_figures(runtime).refused == 2
        await assert_quiet(runtime, backend)


async def refusal(runtime: Runtime, **changes: Any) -> BaseException | None:
    listener = Listener()
    await listener.run(runtime.generate(request(**changes)))
    return listener.error


async def test_who_leaves_in_flight_frees_the_seat_at_the_boundary_and_disturbs_nobody(autojump_clock: MockClock) -> None:
    async with open_toy(members_max=2) as (runtime, backend), trio.open_nursery() as nursery:
        now = await warm_up(runtime)
        scope = trio.CancelScope()
        leaver, stayer = start(nursery, runtime, "a", 50, scope=scope), start(nursery, runtime, "b", 9)
        await wait_all_tasks_blocked()
        waiter = start(nursery, runtime, "c", 2)
        await trio.sleep(2.5)
        scope.cancel()
        await wait_all_tasks_blocked()
        assert leaver.ended_at == now + 2.5
        assert (queue_figures(runtime).gate.active, queue_figures(runtime).gate.waiting) == (2, 0)
        await trio.sleep(1)
        assert len(backend.engine.sequences()) <= 2
        await trio.sleep(50)
        assert stayer.tokens == greedy("b", 9) and waiter.tokens == greedy("c", 2)
        assert queue_figures(runtime).cancelled == 1
        await assert_quiet(runtime, backend)


async def test_a_deadline_passes_in_the_waiting_room(autojump_clock: MockClock) -> None:
    async with open_toy(members_max=1) as (runtime, backend), trio.open_nursery() as nursery:
        now = await warm_up(runtime)
        first = start(nursery, runtime, "a", 10)
        await wait_all_tasks_blocked()
        late = start(nursery, runtime, "b", 2, deadline=now + 3.25)
        behind = start(nursery, runtime, "c", 2)
        await trio.sleep(40)
        assert isinstance(late.error, DeadlineExceeded) and late.ended_at == now + 3.25 and late.started_at is None
        assert first.tokens == greedy("a", 10) and behind.tokens == greedy("c", 2)
        queue = queue_figures(runtime)
        assert (queue.expired, queue.gate.expirations, queue.gate.cancelled_waiters) == (1, 1, 0)
        await assert_quiet(runtime, backend)


async def test_a_deadline_passes_while_tokens_are_generated(autojump_clock: MockClock) -> None:
    async with open_toy(members_max=1) as (runtime, backend), trio.open_nursery() as nursery:
        now = await warm_up(runtime)
        late = start(nursery, runtime, "a", 50, deadline=now + 3.5)
        await wait_all_tasks_blocked()
        behind = start(nursery, runtime, "b", 2)
        await trio.sleep(40)
        assert isinstance(late.error, DeadlineExceeded) and late.ended_at == now + 3.5
        assert late.tokens == greedy("a", 3)  # what came before stays valid
        assert behind.tokens == greedy("b", 2)
        assert (queue_figures(runtime).expired, queue_figures(runtime).cancelled) == (1, 0)
        await assert_quiet(runtime, backend)


async def test_a_deadline_holds_even_for_a_reader_that_does_not_read(autojump_clock: MockClock) -> None:
    async with open_toy(members_max=1) as (runtime, backend), trio.open_nursery() as nursery:
        now = await warm_up(runtime)
        async with runtime.generate(request("a", 50), deadline=now + 3.5) as generation:
            behind = start(nursery, runtime, "b", 2)
            await trio.sleep(20)
            # The step that ends at 4 tells, the boundary behind it ends the job.
            assert behind.finished is not None and behind.finished.timings.wait_seconds == 5
            with pytest.raises(DeadlineExceeded):
                await generation.receive()
        assert queue_figures(runtime).expired == 1
        await assert_quiet(runtime, backend)


async def test_a_slow_reader_delays_nobody(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, backend), trio.open_nursery() as nursery:
        now = await warm_up(runtime)
        async with runtime.generate(request("a", 40)) as slow:
            peer = start(nursery, runtime, "b", 6)
            await trio.sleep(1000)
            assert peer.ended_at == now + 7  # it joined at the boundary after its arrival
            events = await slow.receive()
        assert [event.token for event in events[1:-1]] == greedy("a", 40)  # type: ignore[union-attr]
        assert isinstance(events[-1], GenerationFinished)
        await assert_quiet(runtime, backend)


async def test_a_step_that_fails_once_is_tried_again_and_nobody_notices(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, backend), trio.open_nursery() as nursery:
        now = await warm_up(runtime)
        listener = start(nursery, runtime, "a", 5)
        await trio.sleep(2.5)
        backend.engine.failing = 1
        await trio.sleep(20)
        assert listener.error is None and listener.tokens == greedy("a", 5)
        assert listener.times == [now + n for n in (1, 2, 4, 5, 6)]
        assert queue_figures(runtime).batch.aborted_jobs == 1
        await assert_quiet(runtime, backend)


async def test_a_step_that_fails_twice_fails_its_members_and_nobody_else(autojump_clock: MockClock) -> None:
    async with open_toy(members_max=2) as (runtime, backend), trio.open_nursery() as nursery:
        await warm_up(runtime)
        members = [start(nursery, runtime, name, 9) for name in "ab"]
        await wait_all_tasks_blocked()
        waiter = start(nursery, runtime, "c", 3)
        await trio.sleep(2.5)
        backend.engine.failing = 2
        await trio.sleep(50)
        for name, member in zip("ab", members, strict=True):
            assert isinstance(member.error, TripowerError) and member.error.code == "device_failed"
            assert member.tokens == greedy(name, len(member.tokens)) and 1 <= len(member.tokens) <= 2
        assert waiter.error is None and waiter.tokens == greedy("c", 3)
        assert queue_figures(runtime).failed == 2
        await assert_quiet(runtime, backend)
        await complete(runtime)


async def test_logits_that_are_not_finite_fail_their_request_and_no_other(autojump_clock: MockClock) -> None:
    async with open_toy(members_max=2) as (runtime, backend), trio.open_nursery() as nursery:
        now = await warm_up(runtime)
        backend.engine.poison = "NaN"
        healthy = start(nursery, runtime, "a", 6)
        await wait_all_tasks_blocked()
        spoilt = start(nursery, runtime, "NaN in here", 6)
        await wait_all_tasks_blocked()
        waiter = start(nursery, runtime, "b", 2)
        await trio.sleep(50)
        error = spoilt.error
        assert isinstance(error, TripowerError) and (error.code, error.status) == ("invalid_logits", 500)
        assert spoilt.tokens == [] and spoilt.ended_at == now + 2  # the newcomer's stop ends the job of the first step
        assert healthy.error is None and healthy.tokens == greedy("a", 6)
        assert waiter.error is None and waiter.tokens == greedy("b", 2)
        queue = queue_figures(runtime)
        assert (queue.failed, queue.batch.failed, queue.batch.aborted_jobs) == (1, 1, 0)
        await assert_quiet(runtime, backend)


async def test_a_job_that_only_closes_costs_nobody_a_retry(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, backend):
        await warm_up(runtime)
        await complete(runtime)
        engine = backend.engine
        close, failed = engine.close_sequence, trio.Event()

        def fail_once(sequence: int) -> None:
            engine.close_sequence = close  # type: ignore[method-assign]
            engine.failing = 1
            failed.set()
            raise RuntimeError("cannot close")

        engine.close_sequence = fail_once  # type: ignore[method-assign]
        await failed.wait()
        await complete(runtime)
        await trio.sleep(10)
        await assert_quiet(runtime, backend)


async def test_failures_with_progress_in_between_are_not_added_up(autojump_clock: MockClock) -> None:
    class EverySecond(BrittleEngine):
        calls = 0

        def step(self, rows: Any) -> list[int]:
            self.calls += 1
            self.failing = self.calls % 2
            return super().step(rows)

    class Backend(RecordingBackend):
        def load(self, specification: Any, progress: Any) -> Any:
            for model in super().load(specification, progress):
                if model is not None:
                    model.engine.__class__ = EverySecond
                yield model

    async with open_toy(Backend()) as (runtime, backend):
        await warm_up(runtime)
        await complete(runtime, "a", 8)
        await trio.sleep(10)
        assert queue_figures(runtime).batch.aborted_jobs == 8
        await assert_quiet(runtime, backend)


async def test_a_crash_of_the_queue_answers_everybody_and_closes_what_they_held(autojump_clock: MockClock) -> None:
    async with open_toy(members_max=2) as (runtime, backend), trio.open_nursery() as nursery:
        now = await warm_up(runtime)
        callers = [start(nursery, runtime, name, 9) for name in "abcd"]
        await trio.sleep(2.5)
        backend.engine.lying = 1  # a step that cannot be true
        await trio.sleep(1)
        for caller in callers:
            assert isinstance(caller.error, TripowerError) and caller.error.code == "actor_gone"
            assert caller.ended_at == now + 3
        await trio.sleep(20)
        assert figures(runtime, "queue:toy").restarts == 1
        await assert_quiet(runtime, backend)
        await complete(runtime)


async def test_news_of_a_job_of_an_earlier_instance_are_not_taken_for_new(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, backend), trio.open_nursery() as nursery:
        await warm_up(runtime)
        listener = start(nursery, runtime, "a", 9)
        await trio.sleep(2.5)
        ready = await runtime.load("toy")
        ready.queue.control(StepsCommitted(0, 8))  # the very first job only closed what was there before
        ready.queue.control(StepsDone(0, 8))
        await trio.sleep(20)
        assert listener.tokens == greedy("a", 9) and figures(runtime, "queue:toy").crashes == 0
        await assert_quiet(runtime, backend)


async def test_a_prompt_alone_is_evaluated_and_nothing_is_drawn(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, backend):
        now = await warm_up(runtime)
        listener = await complete(runtime, "hello", 0)
        assert listener.finished is not None and listener.ended_at == now + 1
        assert listener.finished.reason == "length" and listener.finished.usage.prompt_tokens == 5
        await trio.sleep(5)
        await assert_quiet(runtime, backend)


async def test_an_end_token_ends_the_text_unless_it_shall_be_ignored(autojump_clock: MockClock) -> None:
    prompt = next(name for name in (f"p{n}" for n in range(100_000)) if draw(fold(name), 0) == END)
    async with open_toy() as (runtime, _), trio.open_nursery() as nursery:
        await warm_up(runtime)
        heeding = start(nursery, runtime, prompt, 5, ignore_eos=False)
        ignoring = start(nursery, runtime, prompt, 5)
        await trio.sleep(20)
        assert heeding.finished is not None and heeding.finished.reason == "stop"
        assert (heeding.tokens, heeding.text, heeding.finished.usage.completion_tokens) == ([], "", 1)
        assert ignoring.tokens == greedy(prompt, 5) and ignoring.tokens[0] == END
        assert ignoring.finished is not None and ignoring.finished.reason == "length"


def fold(text: str) -> int:
    state = 0
    for token in text.encode():
        state = absorb(state, token)
    return state


async def test_a_stop_string_ends_the_text_and_never_leaks(autojump_clock: MockClock) -> None:
    text = bytes(greedy("p", 30)).decode()
    async with open_toy() as (runtime, backend), trio.open_nursery() as nursery:
        await warm_up(runtime)
        listener = start(nursery, runtime, "p", 30, stop=(text[10:14],))
        await trio.sleep(50)
        assert listener.text == text[: text.index(text[10:14])]
        assert listener.finished is not None and listener.finished.reason == "stop"
        await trio.sleep(10)
        await assert_quiet(runtime, backend)


async def test_a_text_does_not_depend_on_its_neighbours_or_on_how_often_it_was_interrupted(autojump_clock: MockClock) -> None:
    async with open_toy(members_max=3, steps_per_job=2) as (runtime, backend), trio.open_nursery() as nursery:
        await warm_up(runtime)
        listeners = {}
        for n in range(12):
            listeners[f"prompt {n}"] = start(nursery, runtime, f"prompt {n}", 3 + n)
            await trio.sleep(0.7)
        await trio.sleep(200)
        for prompt, listener in listeners.items():
            assert listener.tokens == greedy(prompt, len(listener.tokens)) and listener.finished is not None
        await assert_quiet(runtime, backend)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (Generate((), 3, SamplingParameters()), "prompt"),
        (Generate((1,), -1, SamplingParameters()), "max_tokens"),
        (Generate((1,), 3, SamplingParameters(), stop=("a", "")), "stop"),
        (Generate((1,) * 101, 0, SamplingParameters()), None),
        (Generate((1,) * 99, 3, SamplingParameters()), None),
    ],
)
async def test_a_request_that_cannot_run_is_refused_at_the_door(
    autojump_clock: MockClock, message: Generate, param: str | None
) -> None:
    async with open_toy(RecordingBackend(context=100)) as (runtime, backend):
        await warm_up(runtime)
        queue = (await runtime.load("toy")).queue
        with pytest.raises(InvalidRequest) as caught:
            await queue.ask(message, live=AnswerParts(Outlet(outlet_room(max(message.max_tokens, 0)))))
        assert caught.value.param == param
        assert param or caught.value.code == "context_length_exceeded"
        assert queue_figures(runtime).refused == 1 and figures(runtime, "queue:toy").crashes == 0
        await assert_quiet(runtime, backend)


async def test_the_longest_request_that_fits_runs(autojump_clock: MockClock) -> None:
    async with open_toy(RecordingBackend(context=20)) as (runtime, _):
        await warm_up(runtime)
        await complete(runtime, "p" * 20, 1)
        await complete(runtime, "p", 20)
        await complete(runtime, "p" * 20, 0)


async def test_who_gives_up_in_the_turn_of_the_answer_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    scope = trio.CancelScope()

    def watch(name: str, actor: Actor[Any]) -> None:
        handle = actor.on_message

        async def cancel_before_the_answer(message: Any) -> Any:
            answer = await handle(message)
            if isinstance(message, Generate):
                scope.cancel()
            return answer

        actor.on_message = cancel_before_the_answer  # type: ignore[method-assign]

    async with open_toy(on_instance=watch) as (runtime, backend):
        await warm_up(runtime)
        with scope:
            async with runtime.generate(request("p", 50)):
                raise AssertionError("it was cancelled before it got the answer")
        assert scope.cancelled_caught
        await trio.sleep(10)
        assert queue_figures(runtime).cancelled == 1
        await assert_quiet(runtime, backend)


async def test_a_job_that_went_wrong_may_still_run_and_never_meets_its_successor(autojump_clock: MockClock) -> None:
    """Whoever says that a job was dropped cannot know whether it had been begun: the next one has a table of its own."""
    tables: list[StepTable] = []

    class Device(Actor[RunSteps]):
        async def on_message(self, message: RunSteps) -> None:
            order: StepOrder = self.envelope.live
            tables.append(order.table)
            order.reply_to.control(StepsDone(message.job, 0, "actor_gone" if order.table.slots else "", "dropped"))

    async with open_actor_system() as system:
        device = system.spawn(Device, name="device")
        limits = QueueLimits(members_max=1, waiting_max=0, steps_per_job=4, rows_max=4)
        model = LoadedModel(ToyEngine(), ToyText())
        queue = system.spawn(lambda: ModelQueueActor("toy", model, device, limits), name="queue")
        outlet: Outlet[GenerationEvent] = Outlet(outlet_room(1))
        await queue.ask(Generate((1,), 1, SamplingParameters()), live=AnswerParts(outlet))
        await trio.sleep(10)
        assert [type(event) for event in await outlet.receive()] == [GenerationStarted, Failed]
    first, again, closing = tables[-3:]
    assert first is not again and again is not closing


async def test_leaving_twice_or_with_an_unknown_ticket_is_ignored(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, backend):
        await warm_up(runtime)
        queue = (await runtime.load("toy")).queue
        ticket = (await queue.ask(Generate((1,), 5, SamplingParameters()), live=AnswerParts(Outlet(7)))).ticket
        for number in (ticket, ticket, ticket + 100, -1):
            queue.control(Leave(number))
        await trio.sleep(10)
        assert queue_figures(runtime).cancelled == 1
        await assert_quiet(runtime, backend)


async def test_seeds_make_texts_and_their_own_seed_makes_them_again(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, _), trio.open_nursery() as nursery:
        await warm_up(runtime)
        seeds = [1, 2, 1, None]
        listeners = [start(nursery, runtime, "p", 20, sampling=SamplingChoices(seed=seed)) for seed in seeds]
        await trio.sleep(50)
        texts = [tuple(listener.tokens) for listener in listeners]
        assert texts[0] == texts[2] and len(set(texts)) == 3
