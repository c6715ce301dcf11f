"""Prompts that begin like an earlier one, seen from the users of a queue on virtual time. The toy's pages have sixteen positions."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.actors.rigs import (
    BrittleEngine,
    Listener,
    RecordingBackend,
    Saboteur,
    figures,
    greedy,
    open_toy,
    queue_figures,
    request,
    warm_up,
)
from tripower.actors.device import RunSteps
from tripower.actors.dialogue import GenerationRequest, PromptProgress
from tripower.actors.runtime import Runtime
from tripower.actors.simulation.faults import PagedToy
from tripower.backends.toy import ToyEngine, ToyText
from tripower.runtime.admission import Caller
from tripower.runtime.engine import LoadedModel
from tripower.runtime.kernel import InvalidRequest
from tripower.runtime.prefix_cache import PrefixSettings, PrefixStatistics
from tripower.runtime.speculation import SpeculationSettings, Strategy

B = 16
KEPT = PrefixSettings(ttl_seconds=100)
LONG = "x" * 20 + "what both of them begin with " * 2


async def ask(runtime: Runtime, prompt: str, *, tokens: int = 3, **changes: Any) -> int:
    """Complete it as the toy alone would; returns how much of the prompt was reused."""
    listener = Listener()
    await listener.run(runtime.generate(request(prompt, tokens, **changes)))
    assert listener.error is None and listener.finished is not None
    assert listener.tokens == greedy(prompt, tokens)
    assert listener.finished.usage.prompt_tokens == len(prompt)
    return listener.finished.usage.cached_tokens


def kept(runtime: Runtime) -> PrefixStatistics:
    figures = queue_figures(runtime).prefix
    assert figures is not None
    return figures


def alice(**changes: Any) -> dict[str, Any]:
    return {"caller": Caller(identity="alice"), **changes}


async def test_a_prompt_that_goes_on_where_another_ended_is_not_evaluated_again(autojump_clock: MockClock) -> None:
    async with open_toy(prefix=KEPT) as (runtime, _):
        assert await ask(runtime, LONG) == 0
        answer = bytes(greedy(LONG, 3)).decode()
        assert await ask(runtime, LONG) == len(LONG) - 1, "one row is always evaluated"
        assert await ask(runtime, f"{LONG}{answer} more") == len(LONG) + 2, "the last token drawn was not evaluated"
        assert await ask(runtime, LONG[:30] + "!") == 30
        assert await ask(runtime, "something else") == 0
        found = kept(runtime)
        assert (found.requests, found.hits, dict(found.misses)["cold"], dict(found.misses)["no_common_prefix"]) == (5, 3, 1, 1)
        assert found.reused_tokens + found.evaluated_tokens == queue_figures(runtime).prompt_tokens
        assert queue_figures(runtime).batch.prefill_rows == found.evaluated_tokens


# BB-046
@pytest.mark.parametrize("cut", [B - 1, B, B + 1, 2 * B])
async def test_warm_answers_are_the_cold_ones_at_every_cut(cut: int, autojump_clock: MockClock) -> None:
    async with open_toy(prefix=KEPT) as (runtime, _):
        await ask(runtime, LONG[:cut])
        assert await ask(runtime, LONG[:cut] + "?") == cut
        assert await ask(runtime, LONG[:cut]) == cut - 1


async def test_what_is_kept_is_dropped_on_time_without_any_request(autojump_clock: MockClock) -> None:
    async with open_toy(prefix=KEPT) as (runtime, backend):
        began = await warm_up(runtime)
        await ask(runtime, LONG)
        ended = trio.current_time()
        await trio.sleep_until(ended + 99)
        assert kept(runtime).entries == 1 == len(backend.engine.sequences())
        await trio.sleep_until(ended + 101.5)
        assert kept(runtime).entries == 0 and backend.engine.sequences() == [] and kept(runtime).evicted_ttl == 1
        assert await ask(runtime, LONG) == 0 and dict(kept(runtime).misses)["expired"] == 1
        assert trio.current_time() > began


async def test_a_use_keeps_it_for_longer(autojump_clock: MockClock) -> None:
    async with open_toy(prefix=KEPT) as (runtime, _):
        for _ in range(4):
            await ask(runtime, LONG)
            await trio.sleep(80)
        assert kept(runtime).hits == 3


# BB-049
async def test_another_identity_or_key_or_kind_of_prompt_finds_nothing(autojump_clock: MockClock) -> None:
    async with open_toy(prefix=KEPT) as (runtime, _):
        for changes in (
            {}, alice(), {"caller": Caller(identity="bob")}, {"prompt_cache_key": "k"}, alice(prompt_cache_key="k"),
            alice(prompt_cache_key="l"),
        ):  # fmt: skip
            assert await ask(runtime, LONG, **changes) == 0
        for changes in (alice(), {"prompt_cache_key": "k"}, {}):
            assert await ask(runtime, LONG, **changes) == len(LONG) - 1


# BB-050, and: another tenant's key never hits, also after eviction, a restart of the queue, or with new keys.
@pytest.mark.parametrize("seed", range(3))
async def test_nobody_ever_reuses_what_another_one_sent(seed: int, autojump_clock: MockClock) -> None:
    rng, saboteur = random.Random(seed), Saboteur()
    settings = PrefixSettings(entries_max=5, ttl_seconds=60)
    sent: dict[tuple[str, str | None], list[str]] = {}

    async def one(runtime: Runtime) -> None:
        name, key = rng.choice("abc"), rng.choice([None, "k", "k2"])
        words = f"the code word of {name} {key} is " + rng.choice(["harbour ", "granite ", "l"]) * rng.randint(1, 6)
        # Equal beginnings in all tenants, so that only the names keep them apart.
        prompt = rng.choice([LONG, words, LONG[: rng.randint(5, 40)]])
        await trio.sleep(rng.random() * 30)
        listener = Listener()
        await listener.run(runtime.generate(request(prompt, 4, caller=Caller(identity=name), prompt_cache_key=key)))
        if listener.error is None and listener.finished is not None:
            assert listener.tokens == greedy(prompt, 4)
            own = sent.setdefault((name, key), [])
            longest = max((common(prompt, each) for each in own), default=0)
            assert listener.finished.usage.cached_tokens <= longest
        sent.setdefault((name, key), []).append(prompt + bytes(greedy(prompt, 4)).decode("latin-1"))

    async with open_toy(prefix=settings, on_instance=saboteur.on_instance) as (runtime, backend):
        await runtime.load("toy")
        for _ in range(6):
            async with trio.open_nursery() as nursery:
                for _ in range(6):
                    nursery.start_soon(one, runtime)
            if rng.random() < 0.4:
                backend.engine.failing = 1
            elif rng.random() < 0.4:
                saboteur.arm("queue:toy", skip=rng.randint(0, 5))
        await trio.sleep(2)
        assert len(backend.engine.sequences()) == kept(runtime).entries <= 5
        await trio.sleep(100)
        assert backend.engine.sequences() == []


def common(left: str, right: str) -> int:
    return next(
        (at for at, (one, other) in enumerate(zip(left, right, strict=False)) if one != other), min(len(left), len(right))
    )


async def test_a_request_may_ask_for_no_reuse_and_leaves_nothing(autojump_clock: MockClock) -> None:
    async with open_toy(prefix=KEPT) as (runtime, _):
        assert await ask(runtime, LONG, cache_prompt=False) == 0
        assert kept(runtime).entries == kept(runtime).requests == 0
        await ask(runtime, LONG)
        assert await ask(runtime, LONG, cache_prompt=False) == 0 and kept(runtime).requests == 1


async def test_where_the_setting_is_off_nothing_is_kept(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, backend):
        await ask(runtime, LONG, prompt_cache_key="k")
        assert await ask(runtime, LONG, prompt_cache_key="k") == 0 and queue_figures(runtime).prefix is None
        await trio.sleep(1.5)
        assert backend.engine.sequences() == []


async def test_a_prompt_of_which_every_row_is_told_is_evaluated_in_full_and_then_reused(autojump_clock: MockClock) -> None:
    async with open_toy(prefix=KEPT) as (runtime, _):
        for _ in range(2):
            assert await ask(runtime, LONG, prompt_logprobs=0) == 0
        assert await ask(runtime, LONG) == len(LONG) - 1


async def test_progress_tells_what_was_there(autojump_clock: MockClock) -> None:
    async with open_toy(prefix=KEPT) as (runtime, _):
        await ask(runtime, LONG)
        told = [each async for each in runtime.generate(request(LONG, 1, progress=True)) if isinstance(each, PromptProgress)]
        assert {each.cached for each in told} == {len(LONG) - 1} and told[-1].processed == len(LONG)


async def test_a_prompt_without_an_answer_is_kept(autojump_clock: MockClock) -> None:
    async with open_toy(prefix=KEPT) as (runtime, _):
        assert await ask(runtime, LONG, tokens=0) == 0
        assert await ask(runtime, LONG, tokens=0) == len(LONG) - 1
        assert kept(runtime).hits == 1


async def test_whoever_leaves_in_the_middle_leaves_what_was_evaluated(autojump_clock: MockClock) -> None:
    async with open_toy(prefix=KEPT, steps_per_job=8) as (runtime, _):
        await warm_up(runtime)
        async with runtime.generate(request(LONG, 50)) as generation:
            await generation.receive()
        await wait_all_tasks_blocked()
        assert await ask(runtime, LONG) == len(LONG) - 1


async def test_after_a_failed_step_nothing_is_reused_and_the_next_answer_is_right(autojump_clock: MockClock) -> None:
    async with open_toy(prefix=KEPT) as (runtime, backend):
        await ask(runtime, LONG)
        backend.engine.failing = 1  # the first try of the next job: the second one begins anew
        assert await ask(runtime, LONG) == 0
        assert dict(kept(runtime).misses)["rollback_unprovable"] == 1
        assert await ask(runtime, LONG) == len(LONG) - 1


async def test_a_queue_that_crashes_forgets_and_the_device_closes_it_all(autojump_clock: MockClock) -> None:
    saboteur = Saboteur()
    async with open_toy(prefix=KEPT, on_instance=saboteur.on_instance) as (runtime, backend):
        await ask(runtime, LONG)
        saboteur.arm("queue:toy")
        listener = Listener()
        await listener.run(runtime.generate(request(LONG)))
        await trio.sleep(5)
        assert listener.error is not None and figures(runtime, "queue:toy").restarts == 1
        assert backend.engine.sequences() == []
        assert await ask(runtime, LONG) == 0


async def test_unloading_forgets_without_counting_evictions(autojump_clock: MockClock) -> None:
    async with open_toy(prefix=KEPT) as (runtime, backend):
        await ask(runtime, LONG)
        await runtime.unload("toy")
        assert backend.engine.closed and not backend.engine.sequences()
        assert await ask(runtime, LONG) == 0 and len(backend.engines) == 2


class Small(RecordingBackend):
    """Toys whose pages hold two sequences of the whole context and no position more, and say so when they do not suffice."""

    def load(self, specification: Any, progress: Any) -> Any:
        for model in super().load(specification, progress):
            if model is None:
                yield None
                continue
            engine = SmallToy(context=80, sequences_max=2)
            self.engines[-1] = engine
            yield LoadedModel(engine, ToyText())


class SmallToy(PagedToy, BrittleEngine):
    """Both."""


# BB-047
@pytest.mark.parametrize("guessing", [None, SpeculationSettings(strategy=Strategy.NGRAM_CONTEXT)])
@pytest.mark.parametrize("seed", range(2))
async def test_a_flood_larger_than_the_memory_costs_nobody_a_page(
    seed: int, guessing: SpeculationSettings | None, autojump_clock: MockClock
) -> None:
    rng = random.Random(seed)
    options: dict[str, Any] = {"prefix": PrefixSettings(ttl_seconds=1e6), "speculation": guessing}
    async with open_toy(Small(), members_max=2, steps_per_job=32, **options) as (runtime, backend):
        for round_ in range(12):
            await ask(runtime, LONG[:60], tokens=8)
            async with trio.open_nursery() as nursery:
                for number in range(rng.randint(1, 4)):
                    size = rng.randint(10, 66)
                    text = rng.choice([LONG, f"{round_} {number} " + LONG])[:size]
                    nursery.start_soon(_check, runtime, text, rng.randint(1, 80 - size))
            engine = backend.engine
            assert kept(runtime).entries <= len(engine.sequences())
        await trio.sleep(2)
        assert len(backend.engine.sequences()) == kept(runtime).entries
        assert queue_figures(runtime).batch.aborted_jobs == 0, "no step ever lacked a page"
        assert kept(runtime).evicted_capacity > 0 and kept(runtime).hits > 0


async def _check(runtime: Runtime, text: str, tokens: int) -> None:
    await ask(runtime, text, tokens=tokens)


async def test_a_key_needs_an_engine_that_keeps_prompts_apart(autojump_clock: MockClock) -> None:
    class Unpaged(RecordingBackend):
        def load(self, specification: Any, progress: Any) -> Any:
            yield LoadedModel(ToyEngine(page_positions=0), ToyText())

    async with open_toy(Unpaged(), prefix=KEPT) as (runtime, _):
        assert await ask(runtime, LONG) == 0 and queue_figures(runtime).prefix is None
        with pytest.raises(InvalidRequest) as caught:
            await ask_for(runtime, request(LONG, prompt_cache_key="k"))
        assert caught.value.code == "prompt_cache_unsupported"


async def test_a_bad_key_is_refused_before_the_model_is_looked_up(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, backend):
        with pytest.raises(InvalidRequest) as caught:
            await ask_for(runtime, request(LONG, model="nobody", prompt_cache_key=" k"))
        assert caught.value.code == "invalid_prompt_cache_key" and backend.loads == 0


async def ask_for(runtime: Runtime, wanted: GenerationRequest) -> None:
    async with runtime.generate(wanted):
        pass


def test_a_job_says_what_is_kept_and_from_where_it_is_forked() -> None:
    assert RunSteps("toy", 1, (1, 2), (3,)).retaining == () == RunSteps("toy", 1, (1, 2), (3,)).forking


async def test_answers_to_one_prompt_evaluate_it_once(autojump_clock: MockClock) -> None:
    async with open_toy(prefix=KEPT) as (runtime, _):
        await warm_up(runtime)
        reused: list[int] = []

        async def one(wait: float) -> None:
            await trio.sleep(wait)
            reused.append(await ask(runtime, LONG * 3, tokens=8))

        async with trio.open_nursery() as nursery:
            for wait in (0, 0.1, 0.2, 0.3):
                nursery.start_soon(one, wait)
        assert sorted(reused) == [0, *[3 * len(LONG) - 1] * 3]
        assert queue_figures(runtime).batch.prefill_rows == 3 * len(LONG) + 3


@pytest.mark.parametrize("how", ["leaves", "fails", "expires"])
async def test_who_waits_for_a_prompt_goes_on_when_whoever_evaluates_it_is_gone(how: str, autojump_clock: MockClock) -> None:
    async with open_toy(prefix=KEPT) as (runtime, backend):
        await warm_up(runtime)
        prompt, found = LONG * 12, list[int]()  # four steps of 256 rows
        first = Listener()

        async def second() -> None:
            await trio.sleep(0.5)
            found.append(await ask(runtime, prompt + "!"))

        async with trio.open_nursery() as nursery:
            deadline = trio.current_time() + 2.7 if how == "expires" else float("inf")
            scope = trio.CancelScope()
            nursery.start_soon(first.run, runtime.generate(request(prompt, 50), deadline=deadline), scope)
            nursery.start_soon(second)
            await trio.sleep(2.6)
            if how == "leaves":
                scope.cancel()
            elif how == "fails":
                backend.engine.failing = 1
        assert len(found) == 1 and (found[0] > 0) == (how != "fails")
