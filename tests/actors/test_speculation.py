"""Guesses in the queue: what callers hear, and what is counted, is what plain decoding gives, token for token."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.actors.rigs import (
    Listener,
    RecordingBackend,
    assert_quiet,
    greedy,
    open_toy,
    queue_figures,
    request,
    warm_up,
)
from tests.drafters import Failing, Resting, Teller
from tripower.actors.dialogue import TokenChunk
from tripower.actors.drafting import guesses, narrowed, new_drafter
from tripower.actors.queueing import SpeculationStatistics, outlet_room
from tripower.actors.runtime import Runtime
from tripower.runtime.batching.batch import SpeculationCounts
from tripower.runtime.engine import EngineInfo
from tripower.runtime.engine.contract import SPECULATION
from tripower.runtime.kernel import InvalidRequest
from tripower.runtime.speculation import SpeculationSettings, Strategy

NGRAMS = SpeculationSettings(strategy=Strategy.NGRAM_CONTEXT)
EXACT = EngineInfo(backend="toy", architecture="toy", context_max=99, vocabulary_size=257, sequences_max=1, determinism="exact")


@asynccontextmanager
async def speculating(
    how: Callable[[list[int]], Teller | None], *, count: int = 40, **plan: Any
) -> AsyncIterator[tuple[Runtime, RecordingBackend, list[Teller]]]:
    """A runtime whose drafters know the answer to their prompts."""
    made: list[Teller] = []

    def make_drafter(settings: SpeculationSettings, prompt: Any, costs: Any) -> Teller | None:
        drafter = how(greedy(bytes(prompt).decode(), count))
        made.extend([drafter] if drafter is not None else [])
        return drafter

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tripower.actors.drafting.make_drafter", make_drafter)
        async with open_toy(speculation=NGRAMS, **plan) as (runtime, backend):
            await warm_up(runtime)
            yield runtime, backend, made


async def events_of(runtime: Runtime, **changes: Any) -> list[Any]:
    return [event async for event in runtime.generate(request(**changes))]


async def test_one_step_brings_several_tokens_and_each_is_an_event(autojump_clock: MockClock) -> None:
    async with speculating(lambda answer: Teller(answer, width=3, vocabulary=257)) as (runtime, backend, _):
        begun = trio.current_time()
        listener = Listener()
        await listener.run(runtime.generate(request("hello", 9)))
        assert listener.tokens == greedy("hello", 9)
        assert [time - begun for time in listener.times] == [1] + [2] * 4 + [3] * 4
        assert listener.finished is not None and listener.finished.reason == "length"
        assert (listener.finished.usage.completion_tokens, listener.finished.timings.drafted) == (9, 6)
        assert listener.finished.timings.accepted == 6
        figures = queue_figures(runtime)
        assert figures.batch.speculation == SpeculationCounts(1, 2, 3, 6, 6, 9)
        assert (listener.finished.timings.passes, listener.finished.timings.replays) == (3, 0)
        assert figures.speculation is not None
        assert min(figures.speculation.draft_seconds, figures.speculation.verify_seconds) > 0  # a clock of their own
        told = msgspec.structs.replace(figures.speculation, draft_seconds=0.0, verify_seconds=0.0)
        assert told == SpeculationStatistics("toy", "ngram-context", 2.0)
        await trio.sleep(10)
        await assert_quiet(runtime, backend)


async def test_a_step_whose_guesses_were_wrong_counts_as_taken_back(autojump_clock: MockClock) -> None:
    async with speculating(lambda answer: Teller(answer, width=3, wrong=1.0, vocabulary=257)) as (runtime, _, _):
        listener = Listener()
        await listener.run(runtime.generate(request("hello", 9)))
        counts = queue_figures(runtime).batch.speculation
        assert listener.tokens == greedy("hello", 9) and listener.finished is not None
        assert (
            counts.replays == counts.rounds == listener.finished.timings.replays == 7
        )  # the first token and the last have none
        assert (listener.finished.timings.passes, listener.finished.timings.accepted) == (9, 0)


async def test_each_time_that_a_request_stops_guessing_is_counted(autojump_clock: MockClock) -> None:
    async with speculating(lambda answer: Resting(answer, rest=5, width=2)) as (runtime, _, _):
        listener = Listener()
        await listener.run(runtime.generate(request("hello", 30)))
        await trio.sleep(10)
        figures = queue_figures(runtime)
        assert figures.speculation is not None
        assert figures.speculation.fallbacks == figures.batch.speculation.rounds == 4


@pytest.mark.parametrize("when", ["asked", "told"])
async def test_a_drafter_that_fails_is_counted_as_one_that_stops(autojump_clock: MockClock, when: str) -> None:
    async with speculating(lambda answer: Failing(when=when)) as (runtime, _, _):
        listener = Listener()
        await listener.run(runtime.generate(request("hello", 9)))
        await trio.sleep(10)
        figures = queue_figures(runtime)
        assert listener.tokens == greedy("hello", 9)
        assert figures.speculation is not None and figures.speculation.fallbacks > 0


@pytest.mark.parametrize("place", range(2, 12))
async def test_a_stop_string_ends_the_answer_within_a_step_as_it_does_between_steps(
    autojump_clock: MockClock, place: int
) -> None:
    text = bytes(greedy("p", 30)).decode()
    asked = {"prompt": "p", "max_tokens": 30, "stop": (text[place : place + 3],), "logprobs": 1}
    async with open_toy() as (plain, _):
        await warm_up(plain)
        expected = await events_of(plain, **asked)
    async with speculating(lambda answer: Teller(answer, width=5, vocabulary=257)) as (runtime, backend, _):
        found = await events_of(runtime, **asked)
        assert [event for event in found if isinstance(event, TokenChunk)] == [
            event for event in expected if isinstance(event, TokenChunk)
        ]
        end, other = found[-1], expected[-1]
        assert (end.reason, end.text, end.usage, end.stopped_by) == (other.reason, other.text, other.usage, other.stopped_by)
        again = Listener()  # and whoever comes next
        await again.run(runtime.generate(request("q", 8)))
        assert again.tokens == greedy("q", 8)
        await trio.sleep(10)
        await assert_quiet(runtime, backend)


@settings(deadline=None, max_examples=25)
@given(
    cuts=st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["leave", "fail", "join"])), max_size=4),
    wrong=st.sampled_from([0.0, 0.3, 1.0]),
    width=st.integers(1, 8),
)
def test_whatever_is_cut_and_wherever_the_others_hear_what_they_would_have(
    cuts: list[tuple[int, str]], wrong: float, width: int
) -> None:
    async def main() -> None:
        prompts = [f"prompt {number}" for number in range(3)]
        async with (
            speculating(lambda answer: Teller(answer, width=width, wrong=wrong, vocabulary=257)) as (runtime, backend, _),
            trio.open_nursery() as nursery,
        ):
            listeners = [Listener() for _ in prompts]
            for prompt, listener in zip(prompts, listeners, strict=True):
                nursery.start_soon(listener.run, runtime.generate(request(prompt, 30)))
            for after, act in sorted(cuts):
                await trio.sleep(after / 4)
                if act == "leave":
                    with trio.move_on_after(1.5):
                        await events_of(runtime, prompt="leaving", max_tokens=30)
                elif act == "fail":
                    backend.engine.failing = 1
                else:
                    nursery.start_soon(events_of_later, runtime)
        for prompt, listener in zip(prompts, listeners, strict=True):
            assert listener.tokens == greedy(prompt, 30)[: len(listener.tokens)]
            if listener.error is not None:  # two failures in a row are one too many
                assert [act for _, act in cuts].count("fail") > 1
                continue
            assert listener.finished is not None and listener.finished.usage.completion_tokens == len(listener.tokens) == 30

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def events_of_later(runtime: Runtime) -> None:
    listener = Listener()
    await listener.run(runtime.generate(request("joining", 12)))
    assert listener.tokens == greedy("joining", 12)[: len(listener.tokens)] and (listener.error or listener.finished)


async def test_the_outlet_has_room_for_all_that_one_step_brings(autojump_clock: MockClock) -> None:
    async with speculating(lambda answer: Teller(answer, width=60, vocabulary=257), count=64) as (runtime, _, _made):
        async with runtime.generate(request("slow", 61)) as generation:
            await trio.sleep(20)  # nobody listens
            events = [event async for event in generation]
        assert [event.token for event in events if isinstance(event, TokenChunk)] == greedy("slow", 61)
        assert len(events) <= outlet_room(61)


@pytest.mark.parametrize(
    ("strategy", "determinism", "unsupported", "outcome"),
    [
        (Strategy.AUTO, "exact", frozenset[str](), True),
        (Strategy.AUTO, "numeric", frozenset[str](), False),
        (Strategy.AUTO, "exact", frozenset({SPECULATION}), False),
        (Strategy.OFF, "exact", frozenset[str](), False),
        (Strategy.PROMPT_LOOKUP, "numeric", frozenset[str](), True),
    ],
)
def test_auto_guesses_where_an_answer_cannot_change(
    strategy: Strategy, determinism: str, unsupported: frozenset[str], outcome: bool
) -> None:
    info = msgspec.structs.replace(EXACT, determinism=determinism, unsupported=unsupported)
    assert guesses(SpeculationSettings(strategy=strategy), info) is outcome


def test_a_named_strategy_that_an_engine_does_not_support_is_refused() -> None:
    info = msgspec.structs.replace(EXACT, unsupported=frozenset({SPECULATION}))
    with pytest.raises(InvalidRequest, match=r"speculation\.mode") as raised:
        guesses(NGRAMS, info)
    assert (raised.value.code, raised.value.param) == ("unsupported_by_engine", "speculation")


@pytest.mark.parametrize(("tokens", "max_tokens", "made"), [(5, 2, False), (5, 3, True), (2000, 99, True)])
async def test_a_drafter_is_made_for_answers_that_it_can_shorten(tokens: int, max_tokens: int, made: bool) -> None:
    drafter = await new_drafter(NGRAMS, EXACT, [1] * tokens, max_tokens)
    assert (drafter is not None) is made


@pytest.mark.parametrize(("draft_max", "left"), [(None, 15), (4, 4), (60, 15), (0, None)])
def test_a_request_may_ask_for_shorter_guesses_or_none(draft_max: int | None, left: int | None) -> None:
    settings = narrowed(NGRAMS, draft_max)
    assert (None if settings is None else settings.width_max) == left
    assert narrowed(None, draft_max) is None


def test_a_bound_out_of_range_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="draft_max"):
        narrowed(NGRAMS, 65)


async def test_a_request_without_guesses_draws_the_same_tokens_step_by_step(autojump_clock: MockClock) -> None:
    async with speculating(lambda answer: Teller(answer, width=3, vocabulary=257)) as (runtime, _, made):
        events = await events_of(runtime, prompt="hello", max_tokens=9, draft_max=0)
        assert [event.token for event in events if isinstance(event, TokenChunk)] == greedy("hello", 9)
        assert not made and events[-1].timings.drafted == 0
