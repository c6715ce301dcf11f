"""Attention over pages, in groups, equals attention of each row over the list of its predecessors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tripower.backends.picolm.attention import Batch, Segment
from tripower.backends.picolm.decoder import RopeShape
from tripower.backends.picolm.kv_cache import KvCache, KvShape
from tripower.backends.picolm.layers import Rope, choose_experts, linear, rms_norm, softcap, turn_adjacent, turn_halves
from tripower.runtime.kernel.errors import ModelRefused

PAGE, HEADS, KV_HEADS, SIZE = 4, 6, 2, 8
SCALE = 0.3
CAP = 1.5


class Sequences:
    """A cache and, beside it, the keys and values of each sequence as plain tensors."""

    def __init__(self, seed: int) -> None:
        self.cache = KvCache(KvShape(layers=2, kv_heads=KV_HEADS, head_size=SIZE), pages_max=200, page_positions=PAGE)
        self.seen: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self.random = torch.Generator().manual_seed(seed)

    def step(self, counts: dict[int, int], window: int, softcap: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
        """Add rows to sequences; what attention gives and what it should give, [rows, HEADS * SIZE]."""
        segments = []
        for sequence, count in counts.items():
            if sequence not in self.seen:
                self.seen[sequence] = []
                self.cache.table.open(sequence)
            self.cache.reserve(sequence, count)
            segments.append(Segment(sequence, len(self.seen[sequence]), [0] * count))
        rows = sum(counts.values())
        queries, keys, values = (self._draw(rows, heads) for heads in (HEADS, KV_HEADS, KV_HEADS))
        batch = Batch(self.cache, segments, drawn=[], windows=frozenset({0, window}), heads=HEADS)
        found = batch.attend(1, queries, keys, values, window=window, scale=SCALE, softcap=softcap)
        expected, row = [], 0
        for sequence, count in counts.items():
            for _ in range(count):
                self.seen[sequence].append((keys[row], values[row]))
                expected.append(self._plain(queries[row], self.seen[sequence], window, softcap))
                row += 1
            self.cache.table.commit(sequence, count)
        return found, torch.stack(expected)

    def _draw(self, rows: int, heads: int) -> torch.Tensor:
        return torch.randn(rows, heads, SIZE, generator=self.random)

    @staticmethod
    def _plain(query: torch.Tensor, seen: list[tuple[torch.Tensor, torch.Tensor]], window: int, cap: float) -> torch.Tensor:
        visible = seen[-window:] if window else seen
        heads = []
        for head in range(HEADS):
            keys = torch.stack([key[head // (HEADS // KV_HEADS)] for key, _ in visible]).double()
            values = torch.stack([value[head // (HEADS // KV_HEADS)] for _, value in visible]).double()
            scores = keys @ query[head].double() * SCALE
            heads.append(torch.softmax(cap * torch.tanh(scores / cap) if cap else scores, 0) @ values)
        return torch.cat(heads).float()


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.dictionaries(st.integers(0, 4), st.integers(1, 11), min_size=1), min_size=1, max_size=6),
    st.sampled_from([0, 1, 3, 4, 9]),
    st.sampled_from([0.0, CAP]),
    st.integers(0, 2**16),
)
def test_grouped_attention_over_pages_equals_plain_attention(
    steps: list[dict[int, int]], window: int, softcap: float, seed: int
) -> None:
    sequences = Sequences(seed)
    for counts in steps:
        found, expected = sequences.step(counts, window, softcap)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_streams_of_very_different_length_decode_together() -> None:
    sequences = Sequences(0)
    for sequence, length in enumerate((1, 2, 30, 31, 33, 200)):
        sequences.step({sequence: length}, 9)
    found, expected = sequences.step(dict.fromkeys(range(6), 1), 9)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    found, expected = sequences.step(dict.fromkeys(range(6), 1), 0)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 8, 9, 40])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_linear_layer_is_the_same_product_for_few_rows_and_many(rows: int, with_bias: bool) -> None:
    random = torch.Generator().manual_seed(rows)
    states, weight = torch.randn(rows, 48, generator=random), torch.randn(24, 48, generator=random)
    bias = torch.randn(24, generator=random) if with_bias else None
    found = linear(states, weight, bias)
    expected = states.double() @ weight.double().T + (0.0 if bias is None else bias.double())
    assert found.is_contiguous() and found.shape == (rows, 24)
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5)


def test_rms_norm_divides_by_the_root_of_the_mean_square() -> None:
    states = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    expected = torch.tensor([[3.0 / 3.5355339 * 2.0, 4.0 / 3.5355339], [0.0, 0.0]])
    torch.testing.assert_close(rms_norm(states, torch.tensor([2.0, 1.0]), 1e-9), expected)


@pytest.mark.parametrize(("turn", "pairs"), [(turn_adjacent, [(0, 1), (2, 3)]), (turn_halves, [(0, 2), (1, 3)])])
def test_rope_turns_pairs_by_position_and_leaves_the_rest(turn: Any, pairs: list[tuple[int, int]]) -> None:
    shape = RopeShape(dimensions=4, base=100.0, scale=0.5, amplitude=1.25)
    states = torch.randn(3, 2, 6, generator=torch.Generator().manual_seed(1))
    turned = turn(states, Rope(shape, torch.tensor([1.0, 4.0])).turns(torch.tensor([0, 5, 7])))
    for row, position in enumerate((0, 5, 7)):
        for index, (first, second) in enumerate(pairs):
            angle = torch.tensor(position * 0.5 * 100.0 ** (-index / 2) / (1.0, 4.0)[index])
            expected = torch.complex(states[row, :, first], states[row, :, second]) * torch.polar(torch.tensor(1.25), angle)
            torch.testing.assert_close(turned[row, :, first], expected.real)
            torch.testing.assert_close(turned[row, :, second], expected.imag)
    assert torch.equal(turned[..., 4:], states[..., 4:])
    torch.testing.assert_close(turned[0, :, :4], states[0, :, :4] * 1.25)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_rope_factors_must_be_positive(factor: float) -> None:
    with pytest.raises(ModelRefused) as caught:
        Rope(RopeShape(4, 100.0), torch.tensor([1.0, factor]))
    assert caught.value.param == "rope_freqs.weight"


@pytest.mark.parametrize("normalised", [False, True])
def test_a_row_goes_to_the_experts_that_the_router_scores_highest(normalised: bool) -> None:
    shares = torch.tensor([[0.1, 0.6, 0.05, 0.25], [0.4, 0.1, 0.45, 0.05]])
    weights, chosen = choose_experts(shares.log() + 3.0, 2, normalised=normalised)
    assert chosen.tolist() == [[1, 3], [2, 0]]
    expected = torch.tensor([[0.6, 0.25], [0.45, 0.4]])
    torch.testing.assert_close(weights, expected / expected.sum(-1, keepdim=True) if normalised else expected)


def test_a_soft_cap_presses_large_numbers_below_it_and_leaves_small_ones() -> None:
    states = torch.tensor([-1e4, -0.01, 0.0, 0.01, 1e4])
    torch.testing.assert_close(softcap(states, 5.0), torch.tensor([-5.0, -0.01, 0.0, 0.01, 5.0]))
    assert softcap(states, 0.0) is states
