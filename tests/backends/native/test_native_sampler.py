"""The native draw gives the tokens of `backends.sampling`, at every width, whatever is drawn beside it."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llvmlite import ir
from numpy.typing import NDArray

from tripower.backends.picolm.native.compile import compile_module
from tripower.backends.picolm.native.emit import I32, I64, PTR, Function
from tripower.backends.picolm.native.kernels.sampler.draw import build_draw, draw_scratch_bytes
from tripower.backends.picolm.native.kernels.sampler.philox import build_uniform
from tripower.backends.picolm.native.kernels.sampler.settings import SamplingSettings, emit_append_history, looks_back
from tripower.backends.picolm.native.target import Target, host_target, narrower_targets
from tripower.backends.sampling import draw_token, uniform
from tripower.runtime.engine import SamplingParameters, StepRow
from tripower.runtime.engine.step_table import INVALID_LOGITS

Logits = NDArray[np.float32]
GREEDY = SamplingParameters(temperature=0.0)
WORD = 2**64 - 1


def row(sampling: SamplingParameters, output_index: int = 0, history: Sequence[int] = (), prompt_length: int = 0) -> StepRow:
    return StepRow(0, 0, (0,), True, output_index, sampling, history, prompt_length)


def drawn(build_kernel: Any, target: Target, logits: Logits, rows: Sequence[StepRow], order: Sequence[int] = ()) -> list[int]:
    """Tokens of all rows. Row `index` has slot `count - 1 - index` and is row `index + 2` of its step."""
    count, vocabulary = logits.shape
    table = SamplingSettings(count, vocabulary)
    row_slot, output_index = np.full(count + 2, -1, np.int32), np.zeros(count, np.int64)
    for index, each in enumerate(rows):
        slot = count - 1 - index
        row_slot[index + 2], output_index[slot] = slot, each.output_index
        table.fill(slot, each.sampling, history=each.history, prompt_length=each.prompt_length, tokens_more=1)
        table.set_mask(slot, each.mask)
    drawn_row, tokens = np.arange(2, count + 2, dtype=np.int32), np.full(count, -9, np.int32)
    before = logits.copy()
    run = build_kernel(build_draw, target, draw_scratch_bytes(vocabulary))
    row_draw = np.zeros(count, np.int32)
    words = [logits, vocabulary, vocabulary, drawn_row, row_slot, table.address, output_index, tokens, row_draw]
    run(words, order or range(count))
    np.testing.assert_array_equal(logits.view(np.uint32), before.view(np.uint32))
    return tokens.tolist()


def random_logits(random: np.random.Generator, vocabulary: int) -> Logits:
    """Rows of several kinds: spread out, sharp, full of ties, mostly forbidden, all equal."""
    x: NDArray[np.float64] = random.standard_normal(vocabulary) * random.choice([0.3, 1.0, 4.0, 15.0])
    match random.integers(5):
        case 0:
            x = np.round(x)
        case 1:
            x[random.random(vocabulary) < 0.9] = -np.inf
            x[random.integers(vocabulary)] = 1.0
        case 2 if random.random() < 0.3:
            x[:] = random.choice([0.0, -0.0, 7.25])
        case 3:
            x += 30
    return x.astype(np.float32)


def random_settings(random: np.random.Generator, vocabulary: int) -> SamplingParameters:
    def maybe(value: Any, neutral: Any, share: float = 0.4) -> Any:
        return value if random.random() < share else neutral

    biased = random.integers(0, vocabulary, random.integers(1, 4))
    return SamplingParameters(
        temperature=maybe(float(random.choice([0.0, 1e-3, 0.3, 0.8, 1.7, 40.0])), 1.0, 0.7),
        top_k=maybe(int(random.choice([1, 2, 40, vocabulary - 1, vocabulary, 3 * vocabulary])), 0),
        top_p=maybe(float(random.choice([0.0, 1e-6, 0.1, 0.5, 0.9, 0.95, 0.999])), 1.0),
        min_p=maybe(float(random.choice([1e-4, 0.05, 0.5, 1.0, 1.5])), 0.0),
        repeat_penalty=maybe(float(random.choice([0.5, 1.1, 1.7])), 1.0),
        repeat_last_n=int(random.choice([-1, 0, 1, 5, 64])),
        presence_penalty=maybe(float(random.choice([-0.5, 0.4, 1.5])), 0.0, 0.3),
        frequency_penalty=maybe(float(random.choice([-0.2, 0.1, 1.0])), 0.0, 0.3),
        logit_bias=maybe(tuple((int(token), float(random.normal() * 3)) for token in biased), (), 0.2),
        seed=int(random.integers(0, WORD, dtype=np.uint64)),
        choice=int(random.integers(3)),
    )


def random_rows(seed: int, count: int, vocabulary: int) -> tuple[Logits, list[StepRow]]:
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        history = random.integers(0, vocabulary, random.integers(0, 90)).tolist()
        sampling = random_settings(random, vocabulary)
        rows.append(row(sampling, int(random.integers(1_000)), history, int(random.integers(len(history) + 1))))
    return np.stack([random_logits(random, vocabulary) for _ in rows]), rows


SIZES = [(3_000, 40), (3_000, 256), (3_000, 257), (2_000, 1_000), (600, 5_003), (40, 49_152)]


@pytest.mark.parametrize(("count", "vocabulary"), SIZES)
def test_tokens_are_those_of_python(build_kernel: Any, count: int, vocabulary: int) -> None:
    """Sums in another order could move a draw in billions to the next token; among these rows there is none."""
    logits, rows = random_rows(vocabulary, count, vocabulary)
    wanted = [draw_token(values, each) for values, each in zip(logits, rows, strict=True)]
    for target in narrower_targets():
        found = drawn(build_kernel, target, logits, rows)
        assert found == wanted, [index for index in range(count) if found[index] != wanted[index]]


def restricted(rows: Sequence[StepRow], vocabulary: int) -> list[StepRow]:
    """The same rows with masks that allow nothing, a token, half of all, nearly all or all, of which some are too short; and bans."""
    random = np.random.default_rng(vocabulary)
    changed = []
    for each in rows:
        kind, mask = random.integers(7), np.zeros(-(-vocabulary // 32), np.uint32)
        if kind < 4:
            share = (0.0, 0.01, 0.5, 0.999)[kind]
            bits = np.packbits(random.random(32 * len(mask)) < share, bitorder="little")
            mask = bits.view("<u4").astype(np.uint32)
        elif kind == 4:
            mask[random.integers(len(mask))] = 1 << int(random.integers(32))
        else:
            mask[: random.integers(1, len(mask) + 1)] = 2**32 - 1
        banned = tuple(random.integers(0, vocabulary, random.integers(4)).tolist())
        until = each.output_index + int(random.integers(-1, 2))
        sampling = msgspec.structs.replace(each.sampling, banned=banned, banned_until=until)
        short = mask[: random.integers(1, len(mask) + 1)] if random.random() < 0.1 else mask
        changed.append(msgspec.structs.replace(each, sampling=sampling, mask=short if kind < 6 else None))
    return changed


@pytest.mark.parametrize(("count", "vocabulary"), [(1_500, 40), (1_500, 256), (1_000, 1_001), (300, 5_003), (40, 49_152)])
def test_masks_and_bans_forbid_what_they_forbid_in_python(build_kernel: Any, count: int, vocabulary: int) -> None:
    logits, rows = random_rows(vocabulary + 1, count, vocabulary)
    rows = restricted(rows, vocabulary)
    wanted = [draw_token(values, each) for values, each in zip(logits, rows, strict=True)]
    assert INVALID_LOGITS in wanted  # nothing is left of some rows
    for target in narrower_targets():
        found = drawn(build_kernel, target, logits, rows)
        assert found == wanted, [index for index in range(count) if found[index] != wanted[index]]


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParameters()], ids=["greedy", "sampled"])
def test_a_mask_does_not_hide_logits_that_are_not_finite(
    build_kernel: Any, target: Target, sampling: SamplingParameters
) -> None:
    logits = np.zeros((1, 100), np.float32)
    logits[0, 70] = math.nan
    mask = np.array([2**32 - 1, 0, 0, 0], np.uint32)
    assert drawn(build_kernel, target, logits, [msgspec.structs.replace(row(sampling), mask=mask)]) == [INVALID_LOGITS]


def test_rows_of_one_slot_may_stand_at_different_places_of_its_output(build_kernel: Any, target: Target) -> None:
    logits = np.zeros((5, 300), np.float32)
    table = SamplingSettings(1, 300)
    table.fill(0, SamplingParameters(seed=9), history=(), prompt_length=0, tokens_more=0)
    tokens, row_draw = np.full(5, -9, np.int32), np.array([-1, 0, 2, -1, 1], np.int32)
    run = build_kernel(build_draw, target, draw_scratch_bytes(300))
    where, slots, output_index = np.arange(5, dtype=np.int32), np.zeros(5, np.int32), np.array([7])
    run([logits, 300, 300, where, slots, table.address, output_index, tokens, row_draw], range(5))
    first, second, third = (draw_token(logits[0], row(SamplingParameters(seed=9), index)) for index in (7, 8, 9))
    assert tokens.tolist() == [-9, first, third, -9, second]


def test_a_token_does_not_depend_on_its_place_in_the_batch(build_kernel: Any) -> None:
    logits, rows = random_rows(5, 30, 700)
    together = drawn(build_kernel, host_target(), logits, rows)
    assert drawn(build_kernel, host_target(), logits, rows, order=list(reversed(range(30)))) == together
    for index in range(30):
        assert drawn(build_kernel, host_target(), logits[index : index + 1].copy(), rows[index : index + 1]) == [
            together[index]
        ]


@pytest.mark.parametrize("vocabulary", [1, 2, 15, 16, 17, 63, 64, 65, 100, 255, 49_152])
@pytest.mark.parametrize("sampling", [GREEDY, msgspec.structs.replace(GREEDY, repeat_penalty=1.5)], ids=["plain", "general"])
def test_greedy_takes_the_first_of_the_largest(
    build_kernel: Any, target: Target, vocabulary: int, sampling: SamplingParameters
) -> None:
    for first in {0, vocabulary // 3, vocabulary // 2, vocabulary - 1}:
        logits = np.random.default_rng(first).uniform(-5, 1, (1, vocabulary)).astype(np.float32)
        logits[0, [first, vocabulary - 1]] = 2.5
        assert drawn(build_kernel, target, logits, [row(sampling)]) == [first]


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zeros_of_both_signs_are_equal(build_kernel: Any, target: Target, zero: float) -> None:
    logits = np.full((1, 300), -1.0, np.float32)
    logits[0, [50, 200, 250]] = [zero, -zero, zero]
    nucleus = SamplingParameters(top_p=0.01, temperature=2.0)
    assert drawn(build_kernel, target, logits, [row(GREEDY)]) == [50]
    for sampling in (nucleus, msgspec.structs.replace(nucleus, top_p=1.0, top_k=1)):
        assert drawn(build_kernel, target, logits, [row(sampling)]) == [50]


KINDS = [
    GREEDY,
    SamplingParameters(),
    SamplingParameters(top_k=3, top_p=0.5),
    msgspec.structs.replace(GREEDY, presence_penalty=1.0),
]


@pytest.mark.parametrize("sampling", KINDS, ids=["greedy", "plain", "filtered", "penalised"])
@pytest.mark.parametrize("where", [0, 37, 99])
@pytest.mark.parametrize("bad", [math.nan, math.inf, None], ids=str)
def test_a_row_that_is_not_finite_fails_alone(
    build_kernel: Any, target: Target, sampling: SamplingParameters, where: int, bad: float | None
) -> None:
    logits = np.random.default_rng(1).standard_normal((3, 100)).astype(np.float32)
    good = drawn(build_kernel, target, logits, [row(sampling)] * 3)
    if bad is None:
        logits[1] = -np.inf
    else:
        logits[1, where] = bad
    assert drawn(build_kernel, target, logits, [row(sampling)] * 3) == [good[0], INVALID_LOGITS, good[2]]


def test_equal_logits_are_drawn_evenly(build_kernel: Any) -> None:
    logits = np.zeros((4_000, 8), np.float32)
    rows = [row(SamplingParameters(seed=3), output_index=index) for index in range(4_000)]
    counts = np.bincount(drawn(build_kernel, host_target(), logits, rows), minlength=8)
    assert counts.sum() == 4_000 and counts.min() > 400 and counts.max() < 600


def test_tokens_outside_the_vocabulary_are_passed_over(build_kernel: Any, target: Target) -> None:
    sampling = SamplingParameters(temperature=0.0, repeat_penalty=2.0, presence_penalty=9.0, logit_bias=((70, 5.0), (-3, 5.0)))
    logits = np.arange(64, dtype=np.float32)[None]
    assert drawn(build_kernel, target, logits, [row(sampling, history=[63, -1, 64, 2**30, 63])]) == [62]


def test_a_history_grows_by_what_is_appended_until_it_is_full() -> None:
    def build(module: ir.Module) -> None:
        function = Function(module, "append", [PTR, I64, I32])
        emit_append_history(function, *function.args)
        function.done()

    append = compile_module(build, host_target()).function("append", None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32)
    table = SamplingSettings(2, 100)
    table.fill(0, SamplingParameters(), history=[5, 6], prompt_length=1, tokens_more=2)
    table.fill(1, SamplingParameters(presence_penalty=1.0), history=[5, 6], prompt_length=1, tokens_more=2)
    for token in (7, 8, 9):
        append(table.address, 0, token)
        append(table.address, 1, token)
    assert table.records["history_length"].tolist() == [0, 4]
    assert table.history(1) == [5, 6, 7, 8]
    table.clear()
    assert not table.records["history_capacity"].any()


@pytest.mark.parametrize(
    ("sampling", "looks"),
    [
        (SamplingParameters(), False),
        (SamplingParameters(repeat_penalty=1.1), True),
        (SamplingParameters(repeat_penalty=1.1, repeat_last_n=0), False),
        (SamplingParameters(presence_penalty=0.1), True),
        (SamplingParameters(frequency_penalty=-0.1), True),
    ],
)
def test_only_penalties_look_back(sampling: SamplingParameters, looks: bool) -> None:
    assert looks_back(sampling) is looks


@pytest.fixture(scope="module")
def native_uniform() -> Any:
    def build(module: ir.Module) -> None:
        build_uniform(module, "uniform").value.linkage = "external"

    code = compile_module(build, host_target())
    return code.function("uniform", ctypes.c_double, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)


@settings(deadline=None)
@given(st.integers(0, WORD), st.integers(0, WORD), st.integers(0, 2**63 - 2))
def test_the_random_number_is_that_of_numpys_philox(native_uniform: Any, seed: int, choice: int, output_index: int) -> None:
    assert native_uniform(seed, choice, output_index) == uniform(seed, choice, output_index)
