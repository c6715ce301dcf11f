"""A draft model in the queue: what callers hear is what plain decoding gives, and its states end with the requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.actors.rigs import Listener, RecordingBackend, greedy, open_toy, queue_figures, request, steps_only
from tripower.actors.drafting import new_drafter
from tripower.actors.runtime import Runtime, open_actors, toy_plan
from tripower.backends.toy import ToyEngine
from tripower.runtime.engine import DraftSpecification, EngineInfo
from tripower.runtime.kernel import InlineLane, InvalidRequest, ModelRefused
from tripower.runtime.prefix_cache import PrefixSettings
from tripower.runtime.speculation import DraftModel, SpeculationSettings, Strategy

FIXED = SpeculationSettings(strategy=Strategy.DRAFT_MODEL, draft_max=3, adaptive=False)
TOY = DraftSpecification(name="toy", source="toy")


@asynccontextmanager
async def drafting(how: SpeculationSettings = FIXED, **changes: Any) -> AsyncIterator[tuple[Runtime, DraftModel]]:
    """A runtime with a toy that a toy guesses for; at its end neither holds anything."""
    plan = toy_plan(speculation=how, open_port=lambda: InlineLane(steps_only), **changes)
    plan = attrs.evolve(plan, limits=attrs.evolve(plan.limits, draft=TOY))
    async with open_actors(plan) as runtime:
        ready = await runtime.load("toy")
        await trio.sleep(50)
        draft = ready.loaded.draft  # type: ignore[union-attr]
        assert isinstance(draft, DraftModel) and isinstance(draft.engine, ToyEngine)
        yield runtime, draft
    assert draft.engine.closed


async def test_a_draft_that_is_right_saves_steps_and_its_state_ends_with_the_request(autojump_clock: MockClock) -> None:
    async with drafting() as (runtime, draft):
        listener = Listener()
        await listener.run(runtime.generate(request("hello", 9)))
        assert listener.tokens == greedy("hello", 9)
        assert listener.finished is not None
        assert listener.finished.timings.drafted == listener.finished.timings.accepted == 6
        figures = queue_figures(runtime)
        assert figures.batch.steps == 3
        assert figures.speculation is not None and figures.speculation.strategy == "draft-model"
        await trio.sleep(10)
        assert draft.engine.sequences() == []


async def test_unloading_a_model_unloads_its_draft(autojump_clock: MockClock) -> None:
    async with drafting() as (runtime, draft):
        await runtime.unload("toy")
        assert isinstance(draft.engine, ToyEngine) and draft.engine.closed


async def test_widths_follow_what_the_draft_costs(autojump_clock: MockClock) -> None:
    async with drafting(SpeculationSettings(strategy=Strategy.DRAFT_MODEL)) as (runtime, _):
        listener = Listener()
        await listener.run(runtime.generate(request("hello", 200)))
        assert listener.tokens == greedy("hello", 200)
        assert listener.finished is not None and listener.finished.timings.accepted > 80


@settings(deadline=None, max_examples=15)
@given(cuts=st.lists(st.integers(0, 40), min_size=1, max_size=4), keep=st.booleans())
def test_whoever_leaves_and_whenever_leaves_no_state_and_the_others_hear_what_they_would_have(
    cuts: list[int], keep: bool
) -> None:
    async def main() -> None:
        prefix = PrefixSettings(bytes_max=1 << 20, entries_max=4, ttl_seconds=30.0) if keep else None
        async with drafting(prefix=prefix) as (runtime, draft):
            listeners = [Listener() for _ in cuts]
            async with trio.open_nursery() as nursery:
                stays = Listener()
                nursery.start_soon(stays.run, runtime.generate(request("who stays", 30)))
                for number, (after, listener) in enumerate(zip(cuts, listeners, strict=True)):
                    scope = trio.CancelScope(deadline=trio.current_time() + after / 4)
                    nursery.start_soon(listener.run, runtime.generate(request(f"who leaves {number}", 30)), scope)
            assert stays.tokens == greedy("who stays", 30)
            for number, listener in enumerate(listeners):
                assert listener.tokens == greedy(f"who leaves {number}", 30)[: len(listener.tokens)]
            again = Listener()
            await again.run(runtime.generate(request("who stays", 30)))
            assert again.tokens == stays.tokens
            await trio.sleep(100)
            assert draft.engine.sequences() == []

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def test_each_choice_of_a_request_has_guesses_of_its_own(autojump_clock: MockClock) -> None:
    async with drafting() as (runtime, _):
        first = runtime.generate(request("two", 12))
        async with first:
            second = runtime.generate(request("two", 12, choice=1), like=first)
            listener, other = Listener(), Listener()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(other.run, second)
                await listener.listen(first)
        assert listener.tokens == other.tokens == greedy("two", 12)
        assert other.finished is not None and other.finished.timings.accepted > 0


async def test_a_backend_that_has_no_use_for_a_draft_is_refused_and_frees_what_it_loaded(autojump_clock: MockClock) -> None:
    backend = RecordingBackend()
    plan = toy_plan(speculation=FIXED)
    async with open_toy(backend, limits=attrs.evolve(plan.limits, draft=TOY)) as (runtime, _):
        with pytest.raises(ModelRefused, match=r"speculation\.mode") as refusal:
            await runtime.load("toy")
        assert refusal.value.code == "no_draft_here"
        await trio.sleep(10)
        assert backend.engine.closed


async def test_a_draft_that_a_toy_cannot_have_is_refused(autojump_clock: MockClock) -> None:
    plan = toy_plan(speculation=FIXED)
    plan = attrs.evolve(plan, limits=attrs.evolve(plan.limits, draft=DraftSpecification(name="toy", source="toy", sha256="00")))
    async with open_actors(plan) as runtime:
        with pytest.raises(ModelRefused) as refusal:
            await runtime.load("toy")
        assert (refusal.value.code, refusal.value.param) == ("draft_target_mismatch", "speculation.draft_model")


async def test_without_a_draft_the_strategy_is_refused_and_not_replaced() -> None:
    info = EngineInfo(backend="toy", architecture="toy", context_max=99, vocabulary_size=257, sequences_max=1)
    with pytest.raises(InvalidRequest, match=r"speculation\.mode"):
        await new_drafter(FIXED, info, [1, 2], 20)
