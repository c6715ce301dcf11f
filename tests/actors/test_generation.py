"""One generation from its user's side: entering, listening, leaving, and being cancelled at every single await."""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.actors.rigs import RecordingBackend, assert_quiet, greedy, open_toy, queue_figures, request, warm_up
from tripower.actors.dialogue import (
    Failed,
    GenerationEvent,
    GenerationFinished,
    GenerationRequest,
    GenerationStarted,
    SamplingChoices,
    TokenChunk,
)
from tripower.actors.generation import Generation
from tripower.actors.preparation import INLINE_CHARACTERS, choose_max_tokens, choose_sampling
from tripower.actors.runtime import Runtime, open_actors, toy_plan
from tripower.backends.toy.text import ToyText
from tripower.runtime.engine import ChatMessage, SamplingParameters
from tripower.runtime.kernel import DeadlineExceeded, InvalidRequest, NotFound, TripowerError


def tokens_of(events: Sequence[GenerationEvent]) -> list[int]:
    return [event.token for event in events if isinstance(event, TokenChunk)]


async def test_a_stream_has_one_beginning_items_and_one_end(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, _), runtime.generate(request("p", 4)) as generation:
        events = [event async for event in generation]
        assert isinstance(events[0], GenerationStarted) and isinstance(events[-1], GenerationFinished)
        assert all(isinstance(event, TokenChunk) for event in events[1:-1]) and tokens_of(events) == greedy("p", 4)
        assert generation.prompt_tokens == 1 and generation.ended
        assert [event async for event in generation] == []
        with pytest.raises(AssertionError, match="has ended"):
            await generation.receive()


async def test_bursts_carry_everything_that_has_come_since(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, _):
        await warm_up(runtime)
        async with runtime.generate(request("p", 5)) as generation:
            await trio.sleep(2.5)
            first = await generation.receive()
            second = await generation.receive()
            assert len(first) == 3 and len(second) == 1
            await trio.sleep(50)
            rest = await generation.receive()
        assert tokens_of(first + second + rest) == greedy("p", 5)


class CancelAfter(trio.abc.Instrument):
    """Cancels a scope when the task that entered it has taken so many steps."""

    def __init__(self, steps: int, scope: trio.CancelScope) -> None:
        self.steps, self.scope = steps, scope
        self.task = trio.lowlevel.current_task()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self.task:
            self.steps -= 1
            if self.steps == 0:
                self.scope.cancel()


@asynccontextmanager
async def cancelled_after(steps: int) -> AsyncIterator[trio.CancelScope]:
    with trio.CancelScope() as scope:
        instrument = CancelAfter(steps, scope)
        trio.lowlevel.add_instrument(instrument)
        try:
            yield scope
        finally:
            trio.lowlevel.remove_instrument(instrument)


async def listen_in_block(generation: Generation, events: list[GenerationEvent]) -> None:
    async with generation:
        async for event in generation:
            events.append(event)


async def listen_directly(generation: Generation, events: list[GenerationEvent]) -> None:
    async for event in generation:
        events.append(event)


async def listen_in_bursts(generation: Generation, events: list[GenerationEvent]) -> None:
    async with generation:
        while not generation.ended:
            events.extend(await generation.receive())


LISTENERS = [listen_in_block, listen_directly, listen_in_bursts]


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("listen", LISTENERS)
async def test_a_cancellation_at_any_await_leaves_nothing_behind(autojump_clock: MockClock, listen: Any, warm: bool) -> None:
    for steps in range(1, 1000):
        async with open_toy(RecordingBackend(boundaries=2), steps_per_job=3) as (runtime, backend):
            if warm:
                await warm_up(runtime)
            events: list[GenerationEvent] = []
            async with cancelled_after(steps) as scope:
                await listen(runtime.generate(request("p", 7)), events)
            await trio.sleep(100)
            await assert_quiet(runtime, backend)
            assert tokens_of(events) == greedy("p", len(tokens_of(events)))
            if not scope.cancel_called:
                assert isinstance(events[-1], GenerationFinished)
                assert steps > 8
                return
    raise AssertionError("it never completed")


@pytest.mark.parametrize("listen", LISTENERS)
async def test_a_deadline_at_any_time_leaves_nothing_behind(autojump_clock: MockClock, listen: Any) -> None:
    for quarter in range(1000):
        async with open_toy(RecordingBackend(boundaries=2), pace=lambda job: 1.0, steps_per_job=3) as (runtime, backend):
            events: list[GenerationEvent] = []
            deadline = trio.current_time() + quarter / 2
            try:
                await listen(runtime.generate(request("p", 4), deadline=deadline), events)
            except DeadlineExceeded:
                assert trio.current_time() == deadline
                await trio.sleep(100)
                await assert_quiet(runtime, backend)
            else:
                assert isinstance(events[-1], GenerationFinished) and trio.current_time() <= deadline and quarter > 10
                return
    raise AssertionError("it never completed")


async def test_leaving_is_synchronous_and_idempotent(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, backend):
        await warm_up(runtime)
        async with runtime.generate(request("p", 50)) as generation:
            await trio.sleep(2.5)
            generation.leave()
            generation.leave()
            assert generation.ended
            assert [event async for event in generation] == []
        await trio.sleep(10)
        assert queue_figures(runtime).cancelled == 1
        await assert_quiet(runtime, backend)


async def test_a_generation_that_was_never_entered_needs_nothing(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, _):
        generation = runtime.generate(request())
        generation.leave()
        del generation
        gc.collect()


async def test_a_generation_is_entered_once(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, _), runtime.generate(request()) as generation:
        with pytest.raises(AssertionError, match="entered once"):
            await generation.__aenter__()


async def test_a_forgotten_generation_leaves_by_itself(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, backend):
        await warm_up(runtime)
        generation = runtime.generate(request("p", 50))
        await generation.__aenter__()
        await trio.sleep(1.5)
        forgotten = [generation]
        del generation
        collector = threading.Thread(target=forgotten.clear)  # the collector may run on any thread
        collector.start()
        collector.join()
        gc.collect()
        await trio.sleep(10)
        assert queue_figures(runtime).cancelled == 1
        await assert_quiet(runtime, backend)


def test_a_generation_may_be_forgotten_after_its_loop_has_ended() -> None:
    kept: list[Generation] = []

    async def main() -> None:
        async with open_actors(toy_plan()) as runtime:
            generation = runtime.generate(request("p", 5000))
            await generation.__aenter__()
            kept.append(generation)

    trio.run(main)
    kept.clear()
    gc.collect()


async def test_breaking_out_of_a_direct_loop_leaves(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, backend):
        await warm_up(runtime)
        async for event in runtime.generate(request("p", 50)):
            if isinstance(event, TokenChunk):
                break
        gc.collect()
        await trio.sleep(10)
        assert queue_figures(runtime).cancelled == 1
        async with aclosing(runtime.generate(request("p", 50))) as generation:
            await anext(generation)
        await trio.sleep(10)
        assert queue_figures(runtime).cancelled == 2
        await assert_quiet(runtime, backend)


async def test_a_direct_loop_raises_what_entering_raises() -> None:
    async with open_toy() as (runtime, _):
        with pytest.raises(NotFound, match="known: toy"):
            async for _event in runtime.generate(request(model="other")):
                raise AssertionError("no event")


async def test_an_error_inside_the_block_leaves(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, backend):
        await warm_up(runtime)
        with pytest.raises(ZeroDivisionError):
            async with runtime.generate(request("p", 50)) as generation:
                await generation.receive()
                _ = 1 / 0
        await trio.sleep(10)
        await assert_quiet(runtime, backend)


async def test_a_failure_is_raised_where_events_are_iterated_and_seen_where_bursts_are_read(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, backend):
        await warm_up(runtime)
        backend.engine.failing = 2
        async with runtime.generate(request("p", 5)) as generation:
            with pytest.raises(TripowerError) as caught:
                async for _ in generation:
                    pass
        assert (caught.value.code, caught.value.status) == ("device_failed", 500)
        backend.engine.failing = 2
        async with runtime.generate(request("p", 5)) as generation:
            await trio.sleep(10)
            events = await generation.receive()
        end = events[-1]
        assert isinstance(end, Failed) and end.error().code == "device_failed" and generation.ended


async def test_the_runtimes_end_fails_what_still_runs(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, _):
        await warm_up(runtime)
        generation = await runtime.generate(request("p", 50)).__aenter__()
        await trio.sleep(2.5)
    events = await generation.receive()
    assert tokens_of(events) == greedy("p", 2)
    assert isinstance(events[-1], Failed) and events[-1].code == "actor_gone" and events[-1].status == 503


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": (ChatMessage("user", "x"),)}, "messages"),
        ({"prompt": None}, "messages"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"stop": ("a", "")}, "stop"),
    ],
)
async def test_what_is_wrong_for_any_model_is_refused_before_one_is_loaded(changes: dict[str, Any], param: str) -> None:
    async with open_toy() as (runtime, backend):
        with pytest.raises(InvalidRequest) as caught:
            await runtime.generate(request(**changes)).__aenter__()
        assert caught.value.param == param and backend.loads == 0


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"prompt": ""}, "prompt", "invalid_value"),
        ({"prompt": ()}, "prompt", "invalid_value"),
        ({"prompt": (1, 257)}, "prompt", "invalid_value"),
        ({"prompt": (-1,)}, "prompt", "invalid_value"),
        ({"sampling": SamplingChoices(logit_bias=((300, 1.0),))}, "logit_bias", "invalid_value"),
        ({"sampling": SamplingChoices(temperature=math.nan)}, "temperature", "invalid_value"),
        ({"prompt": "p" * 101}, "prompt", "context_length_exceeded"),
        ({"prompt": "p" * 99, "max_tokens": 3}, "prompt", "context_length_exceeded"),
        ({"prompt": None, "messages": (ChatMessage("user", "p" * 100),)}, "messages", "context_length_exceeded"),
    ],
)
async def test_what_the_model_cannot_take_is_refused(
    autojump_clock: MockClock, changes: dict[str, Any], param: str, code: str
) -> None:
    async with open_toy(RecordingBackend(context=100)) as (runtime, backend):
        with pytest.raises(InvalidRequest) as caught:
            await runtime.generate(request(**changes)).__aenter__()
        assert (caught.value.param, caught.value.code) == (param, code)
        await trio.sleep(10)
        await assert_quiet(runtime, backend)


@pytest.mark.parametrize(
    ("asked", "chat", "prompt", "granted"),
    [
        (None, True, 10, 91),
        (None, False, 10, 16),
        (None, False, 95, 6),
        (None, True, 100, 1),
        (0, False, 100, 0),
        (1, False, 100, 1),
        (91, True, 10, 91),
    ],
)
def test_how_many_tokens_are_granted(asked: int | None, chat: bool, prompt: int, granted: int) -> None:
    messages = (ChatMessage("user", "x"),) if chat else None
    wanted = GenerationRequest(model="toy", messages=messages, prompt=None if chat else "x", max_tokens=asked)
    assert choose_max_tokens(wanted, prompt, 100) == granted


@pytest.mark.parametrize(("asked", "prompt"), [(92, 10), (2, 100), (0, 101), (None, 101), (None, 500)])
def test_what_does_not_fit_the_context_is_refused_with_its_size(asked: int | None, prompt: int) -> None:
    wanted = GenerationRequest(model="toy", prompt="x", max_tokens=asked)
    with pytest.raises(InvalidRequest, match=f"maximum context length is 100 tokens; the prompt has {prompt}"):
        choose_max_tokens(wanted, prompt, 100)


def test_what_was_asked_for_goes_before_what_the_model_recommends() -> None:
    recommended = SamplingParameters(temperature=0.6, top_k=20, seed=5)
    chosen = choose_sampling(SamplingChoices(top_k=0, seed=7), recommended)
    assert (chosen.temperature, chosen.top_k, chosen.seed) == (0.6, 0, 7)


def test_a_seed_is_drawn_for_whoever_names_none() -> None:
    seeds = {choose_sampling(SamplingChoices(), SamplingParameters()).seed for _ in range(20)}
    assert len(seeds) == 20 and all(0 <= seed < 2**63 for seed in seeds)


async def test_a_conversation_is_rendered_with_the_models_template(autojump_clock: MockClock) -> None:
    wanted = GenerationRequest(
        model="toy",
        messages=(ChatMessage("user", "hi"),),
        max_tokens=3,
        ignore_eos=True,
        sampling=SamplingChoices(temperature=0.0),
    )
    async with open_toy() as (runtime, _), runtime.generate(wanted) as generation:
        events = [event async for event in generation]
        assert tokens_of(events) == greedy("user: hi\nassistant: ", 3)


async def test_a_long_prompt_is_tokenised_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the real clock, since a thread takes part."""
    monkeypatch.setattr(ToyText, "piece_characters_max", 100)
    prompt = "long " * INLINE_CHARACTERS
    async with open_actors(toy_plan()) as runtime:
        with pytest.raises(InvalidRequest) as caught:
            await runtime.generate(request(prompt, 1)).__aenter__()
        assert caught.value.code == "context_length_exceeded"
        await _answer(runtime)


async def test_who_leaves_does_not_wait_for_a_long_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the real clock, since a thread takes part."""
    started, go_on = threading.Event(), threading.Event()

    def tokenize(self: ToyText, prompt: str) -> list[int]:
        started.set()
        go_on.wait(60)
        return [1]

    async with open_actors(toy_plan()) as runtime:
        await _answer(runtime)
        monkeypatch.setattr(ToyText, "tokenize", tokenize)
        monkeypatch.setattr(ToyText, "piece_characters_max", 8)
        with trio.move_on_after(0.1) as scope:
            await runtime.generate(request("p" * (INLINE_CHARACTERS + 1), 1)).__aenter__()
        assert scope.cancelled_caught
        assert started.is_set()
        go_on.set()


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        (GenerationRequest(model="toy", prompt="\ud800", max_tokens=1), "prompt"),
        (GenerationRequest(model="toy", messages=(ChatMessage("user", "a\udc00"),), max_tokens=1), "messages"),
        (GenerationRequest(model="toy", prompt="p", stop=("\ud800",), max_tokens=1), "stop"),
    ],
)
async def test_half_a_character_is_refused_by_name(wanted: GenerationRequest, param: str, autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, _):
        with pytest.raises(InvalidRequest) as caught:
            await runtime.generate(wanted).__aenter__()
        assert (caught.value.code, caught.value.param) == ("invalid_unicode", param)


async def _answer(runtime: Runtime) -> None:
    async with runtime.generate(request("p", 5)) as generation:
        assert tokens_of([event async for event in generation]) == greedy("p", 5)


async def test_a_caller_that_was_late_before_it_asked_is_told_so(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, backend):
        now = await warm_up(runtime)
        with pytest.raises(DeadlineExceeded):
            await runtime.generate(request(), deadline=now).__aenter__()
        await wait_all_tasks_blocked()
        await assert_quiet(runtime, backend)


async def test_text_that_cannot_fit_is_refused_before_it_is_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    def tokenize(*_arguments: object, **_options: object) -> list[int]:
        raise AssertionError("nothing should be tokenised")

    monkeypatch.setattr("tripower.backends.toy.text.ToyText.tokenize", tokenize)
    async with open_actors(toy_plan()) as runtime:
        for request in (
            GenerationRequest(model="toy", prompt="x" * 1_000_000),
            GenerationRequest(model="toy", messages=(ChatMessage("user", "x" * 1_000_000),)),
        ):
            with pytest.raises(InvalidRequest, match="cannot fit") as refused:
                await runtime.generate(request).__aenter__()
            assert refused.value.code == "context_length_exceeded"
