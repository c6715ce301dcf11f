"""A row's logits have the same bits alone, in any batch, at any chunking, beside any neighbour, on a shared prefix, with any tiles,
any number of threads and any width of vectors.

The measure is always one thread, one row at a time, in a sequence of its own. What is drawn follows from the bits, and is compared as
well where a sampler with all its settings stands between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.backends.native.engine.rigs import (
    GREEDY,
    SAMPLED,
    Logits,
    build_engine,
    ignore_costs,
    logits_alone,
    new_table,
    same_bits,
    tokens_of,
)
from tripower.backends.picolm.native.engine import NativeEngine
from tripower.backends.picolm.native.kernels.attention.kv import KvElement
from tripower.backends.picolm.native.target import narrower_targets
from tripower.runtime.engine import SamplingParameters, StepRow, run_steps
from tripower.runtime.engine.step_table import NOT_DRAWN

LENGTH_MAX, SEQUENCES_MAX, ROWS_MAX = 140, 6, 64
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"kind": "Q4_0", "kv_heads": 1}),
    "gemma3": ("gemma3", {"kind": {"ffn": "Q8_0", "attn": "Q5_1"}, "layers": 3}),
    "gemma2": ("gemma2", {"kind": "F16"}),
    "qwen3moe": ("qwen3moe", {"kind": "Q8_0", "experts": 6, "experts_used": 2}),
}
SAMPLINGS = (GREEDY, SAMPLED, SamplingParameters(seed=5, choice=3, min_p=0.02, logit_bias=((3, 2.0), (9, -100.0))))
MakeKept = Callable[..., NativeEngine]
CALM: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}


@pytest.fixture(scope="module")
def kept_engine(tiny_model: Any) -> Iterator[MakeKept]:
    """`kept_engine("llama", threads=2, tiles_seed=1, element="f16")`: engines that live as long as this module's tests."""
    made: list[NativeEngine] = []

    @cache
    def path(model: str) -> Path:
        architecture, options = MODELS[model]
        found: Path = tiny_model(architecture, **options)
        return found

    @cache
    def make(model: str, **options: Any) -> NativeEngine:
        engine = build_engine(path(model), slots_max=ROWS_MAX, rows_max=ROWS_MAX, sequences_max=SEQUENCES_MAX + 1, **options)
        made.append(ignore_costs(engine))
        return engine

    yield make
    for engine in made:
        engine.close()


@pytest.fixture(scope="module")
def expected_logits(kept_engine: MakeKept) -> Callable[[str, KvElement, int], Logits]:
    """`expected_logits("llama", "f32", seed)`: of `tokens_of(seed, LENGTH_MAX)`, one row at a time on one thread."""

    @cache
    def measure(model: str, element: KvElement, seed: int) -> Logits:
        return logits_alone(kept_engine(model, element=element), tokens_of(seed, LENGTH_MAX))

    return measure


def batches(data: st.DataObject, lengths: list[int]) -> Iterator[list[int]]:
    """Steps until every sequence has its length: how many rows of each, 0 for one that sits out."""
    left = list(lengths)
    while any(left):
        sizes, room = [], ROWS_MAX
        for rest in left:
            size = data.draw(st.one_of(st.integers(0, 2), st.integers(0, 64)))
            sizes.append(min(size, rest, room))
            room -= sizes[-1]
        if not any(sizes):
            first = next(index for index, rest in enumerate(left) if rest)
            sizes[first] = 1
        yield sizes
        left = [rest - size for rest, size in zip(left, sizes, strict=True)]


@settings(max_examples=60, **CALM)
@given(data=st.data())
def test_bits_do_not_depend_on_the_company_of_a_row(data: st.DataObject, kept_engine: Any, expected_logits: Any) -> None:
    model, element = data.draw(st.sampled_from(list(MODELS))), data.draw(st.sampled_from(["f32", "f16"]))
    engine = kept_engine(
        model, element=element, threads=data.draw(st.integers(1, 3)), tiles_seed=data.draw(st.sampled_from([None, 1, 2]))
    )
    empty(engine)
    seeds = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=SEQUENCES_MAX))
    lengths = [data.draw(st.integers(1, LENGTH_MAX)) for _ in seeds]
    open_with_prefixes(data, engine, seeds, lengths)
    for sizes in batches(data, [length - engine.length(number) for number, length in enumerate(lengths)]):
        rows, expected = [], []
        for number, size in enumerate(sizes):
            if size:
                start = engine.length(number)
                tokens = tuple(tokens_of(seeds[number], LENGTH_MAX)[start : start + size])
                rows.append(StepRow(number, start, tokens, draw=False))
                expected.append(expected_logits(model, element, seeds[number])[start : start + size])
        engine._run_rows(rows, draw_all=True)
        assert same_bits(engine._program.logits[: sum(sizes)], np.concatenate(expected))


def empty(engine: NativeEngine) -> None:
    """Close what an example before this one left open."""
    for sequence in engine.sequences():
        engine.close_sequence(sequence)


def open_with_prefixes(data: st.DataObject, engine: NativeEngine, seeds: list[int], lengths: list[int]) -> None:
    """Sequences of the same tokens may share what an earlier one has written, which may have been longer and cut back."""
    for number, seed in enumerate(seeds):
        twins = [other for other in range(number) if seeds[other] == seed]
        shares: bool = data.draw(st.booleans())
        if twins and shares:
            shared = data.draw(st.integers(0, min(lengths[number] - 1, engine.length(twins[0]))))
            engine.fork(twins[0], number, shared)
            continue
        engine.open_sequence(number)
        written = data.draw(st.integers(0, lengths[number]))
        if written:
            engine.step([StepRow(number, 0, tuple(tokens_of(seed, LENGTH_MAX)[:written]), draw=False)])
            engine.trim(number, data.draw(st.integers(0, written - 1)))


@settings(max_examples=40, **CALM)
@given(data=st.data())
def test_what_is_drawn_does_not_depend_on_batch_budget_or_threads(data: st.DataObject, kept_engine: Any) -> None:
    model = data.draw(st.sampled_from(list(MODELS)))
    engine = kept_engine(model, threads=data.draw(st.integers(1, 3)), tiles_seed=data.draw(st.sampled_from([None, 1])))
    empty(engine)
    count = data.draw(st.integers(1, SEQUENCES_MAX))
    members = []
    for number in range(count):
        prompt = tokens_of(data.draw(st.integers(0, 9)), data.draw(st.integers(1, 100)))
        sampling = SAMPLINGS[data.draw(st.integers(0, len(SAMPLINGS) - 1))]
        members.append({"pending": prompt, "remaining": data.draw(st.integers(1, 12)), "sampling": sampling})
        engine.open_sequence(number)
    alone = [drawn_alone(kept_engine(model), member) for member in members]
    budget = data.draw(st.integers(SEQUENCES_MAX, ROWS_MAX))
    table = new_table(
        engine, *members, steps=128, rows_max=budget, mixed_rows=data.draw(st.integers(1, budget)), slots_max=SEQUENCES_MAX
    )
    for _ in engine.run(table):
        pass
    together = table.drawn[: table.steps_done, :count].T
    assert [[token for token in row if token != NOT_DRAWN] for row in together.tolist()] == alone


def drawn_alone(engine: NativeEngine, member: dict[str, Any]) -> list[int]:
    """Step by step, one sequence, one thread."""
    engine.open_sequence(999)
    table = new_table(engine, member | {"sequence": 999}, steps=128)
    for _ in run_steps(engine, table):
        pass
    engine.close_sequence(999)
    return [int(token) for token in table.drawn[: table.steps_done, 0] if token != NOT_DRAWN]


@pytest.mark.parametrize("model", ["llama", pytest.param("gemma2", marks=pytest.mark.long)])
@pytest.mark.parametrize("element", ["f32", "f16"])
def test_every_width_of_vectors_gives_the_same_bits(
    model: str, element: KvElement, kept_engine: Any, expected_logits: Any
) -> None:
    expected = expected_logits(model, element, 3)
    for target in narrower_targets():
        engine = kept_engine(model, element=element, target=target)
        assert same_bits(logits_alone(engine, tokens_of(3, 20)), expected[:20]), target.name
        engine.open_sequence(0)
        found = [engine.logits(0, tokens_of(3, LENGTH_MAX)[start : start + 47]) for start in range(0, LENGTH_MAX, 47)]
        assert same_bits(np.concatenate(found), expected), target.name


@pytest.mark.parametrize("threads", [2, 3, 4])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33, 64])
def test_every_class_of_row_counts_gives_the_same_bits(rows: int, threads: int, kept_engine: Any, expected_logits: Any) -> None:
    engine = kept_engine("llama", threads=threads, tiles_seed=threads)
    engine.open_sequence(0)
    tokens = tokens_of(0, LENGTH_MAX)
    found = [engine.logits(0, tokens[start : start + rows]) for start in range(0, LENGTH_MAX, rows)]
    assert same_bits(np.concatenate(found), expected_logits("llama", "f32", 0))
    engine.close_sequence(0)


@pytest.mark.long
@pytest.mark.parametrize("model", ["smollm2_path", "gemma3_path"])
def test_a_real_model_gives_sixteen_long_prompts_the_bits_that_each_has_alone(
    model: str, request: pytest.FixtureRequest, load_native: Any
) -> None:
    """Prompts of 300 tokens in random chunks, some on the pages of others; then all sixteen decode together."""
    length, together, chance = 300, 8, np.random.default_rng(9)
    engine = load_native(request.getfixturevalue(model), context=512, sequences_max=16, prefill_chunk=64, threads=2)
    prompts = [tokens_of(seed, length, engine.info.vocabulary_size) for seed in range(4)]
    expected = [logits_alone(engine, prompt) for prompt in prompts]
    starts = [length - together - int(short) for short in chance.integers(0, 60, 16)]
    for number in range(16):
        if number < 12:
            engine.open_sequence(number)
        else:
            engine.fork(number - 12, number, min(starts[number], starts[number - 12]) - 1)
        prefill_in_chunks(
            engine, {each: prompts[each % 4][: starts[each]] for each in (number, number - 4) if each >= 0}, chance
        )
    for step in range(together):
        rows = [StepRow(each, starts[each] + step, (prompts[each % 4][starts[each] + step],), draw=False) for each in range(16)]
        wanted = np.stack([expected[each % 4][starts[each] + step] for each in range(16)])
        assert same_bits(engine.batch_logits(rows), wanted)


def prefill_in_chunks(engine: NativeEngine, targets: dict[int, list[int]], chance: np.random.Generator) -> None:
    """Bring some sequences to their lengths together, each in pieces of random size."""
    while True:
        rows = []
        for sequence, tokens in targets.items():
            done = engine.length(sequence)
            piece = tuple(tokens[done : done + int(chance.integers(1, 90))])
            if piece:
                rows.append(StepRow(sequence, done, piece, draw=False))
        if not rows:
            return
        engine.step(rows)
