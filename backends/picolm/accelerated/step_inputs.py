"""All that a step is told, in one piece of memory: filled on the host, sent to the device in one copy.

A captured step reads its inputs where it found them when it was captured. So the pieces of a decode class are made once and filled
again for each step. Everything is eight bytes wide, whole numbers and float64 alike, and cut out of one block of int64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import attrs
import numpy as np
import torch
from numpy.typing import NDArray

from tripower.backends.picolm.accelerated.kv_pool import KvPool
from tripower.backends.picolm.accelerated.step_shape import Segment, ShapeRules, StepShape
from tripower.backends.sampling import uniform
from tripower.runtime.engine import StepRow

A = TypeVar("A")


@attrs.frozen
class Sight(Generic[A]):
    """Which keys a group sees through one window."""

    pages: A
    """int64 [sequences, pages]."""
    first: A
    """int64 [sequences]: the position of the first key."""


@attrs.frozen
class Views(Generic[A]):
    """The pieces, as torch tensors on the device or as numpy arrays on the host."""

    tokens: A
    positions: A
    places: A
    """int64 [rows]: page * page_positions + offset of each row's keys and values."""
    drawn: A
    """int64 [drawn]: rows whose logits are computed."""
    top_k: A
    temperature: A
    top_p: A
    min_p: A
    uniform: A
    """The keyed uniform number of each draw; it and the three before it are float64 [drawn]."""
    sights: tuple[tuple[Sight[A], ...], ...]
    """For each group one for each window."""


class StepInputs:
    """Inputs of one shape. `fill`, then `send`; the model reads `device`."""

    def __init__(self, shape: StepShape, device: torch.device) -> None:
        self.shape = shape
        size = sum(math.prod(each) for each in _sizes(shape))
        pinned = device.type == "cuda" and shape.decode  # what is made anew for every step is not worth pinning
        self._sent = torch.zeros(size, dtype=torch.int64, pin_memory=pinned)
        self._received = torch.zeros(size, dtype=torch.int64, device=device)
        self.host: Views[NDArray[np.int64]] = _cut(self._sent.numpy(), shape, lambda piece: piece.view(np.float64))
        self.device: Views[torch.Tensor] = _cut(self._received, shape, lambda piece: piece.view(torch.float64))

    def send(self) -> None:
        """Queue the copy. The host's side must not be filled again before the step has ended."""
        self._received.copy_(self._sent, non_blocking=True)

    def fill(self, segments: Sequence[Segment], members: Sequence[Sequence[int]], pool: KvPool, rules: ShapeRules) -> list[int]:
        """Write what is evaluated; padding is a first token at position 0 that sees nothing and leaves nothing.

        `members` are the segments of each group. Returns for each segment the number of its last row.
        """
        self._sent.zero_()
        self.host.places[:] = pool.waste_page * pool.page_positions
        ends, start = [0] * len(segments), 0
        for group, sights, indices in zip(self.shape.groups, self.host.sights, members, strict=True):
            for sight in sights:
                sight.pages[:] = pool.zero_page
            for number, index in enumerate(indices):
                self._fill_rows(segments[index], start + number * group.rows, pool)
                self._fill_sights(segments[index], sights, number, pool, rules)
                ends[index] = start + (number + 1) * group.rows - 1
            start += group.sequences * group.rows
        return ends

    def fill_draws(self, rows: Sequence[tuple[int, int, StepRow | None]]) -> None:
        """Write which rows are drawn from, and how: (place among the drawn, row in the step, what draws or None for the host)."""
        host = self.host
        host.temperature[:] = 0.0
        host.top_p[:] = 1.0
        for place, number, row in rows:
            host.drawn[place] = number
            if row is None or row.sampling.temperature <= 0:
                continue
            sampling = row.sampling
            host.temperature[place], host.top_k[place] = sampling.temperature, max(sampling.top_k, 0)
            host.top_p[place], host.min_p[place] = sampling.top_p, max(sampling.min_p, 0.0)
            host.uniform[place] = uniform(sampling.seed, sampling.choice, row.output_index)

    def _fill_rows(self, segment: Segment, start: int, pool: KvPool) -> None:
        end = start + len(segment.tokens)
        positions = np.arange(segment.position, segment.end)
        pages = np.asarray(pool.table.pages(segment.sequence), np.int64)[positions // pool.page_positions]
        self.host.tokens[start:end] = segment.tokens
        self.host.positions[start:end] = positions
        self.host.places[start:end] = pages * pool.page_positions + positions % pool.page_positions

    def _fill_sights(
        self, segment: Segment, sights: Sequence[Sight[NDArray[np.int64]]], number: int, pool: KvPool, rules: ShapeRules
    ) -> None:
        for window, sight in zip(rules.windows, sights, strict=True):
            first = rules.first_page(segment.position, window)
            seen = pool.table.pages(segment.sequence)[first : -(-segment.end // pool.page_positions)]
            sight.pages[number, : len(seen)] = seen
            sight.first[number] = first * pool.page_positions


def _sizes(shape: StepShape) -> Sequence[tuple[int, ...]]:
    """Of the pieces, in the order of `Views`."""
    sights: list[tuple[int, ...]] = [
        size for each in shape.groups for pages in each.pages for size in ((each.sequences, pages), (each.sequences,))
    ]
    return [*[(shape.rows,)] * 3, *[(shape.drawn,)] * 6, *sights]


def _cut(block: A, shape: StepShape, as_floats: Callable[[A], A]) -> Views[A]:
    """The pieces of a block, which is one-dimensional and of int64."""
    start = 0

    def take(size: tuple[int, ...]) -> A:
        nonlocal start
        first, start = start, start + math.prod(size)
        return block[first:start].reshape(size)  # type: ignore[index,no-any-return] # numpy and torch agree on both

    sizes = iter(_sizes(shape))
    rows, draws = [take(next(sizes)) for _ in range(3)], [take(next(sizes)) for _ in range(6)]
    sights = tuple(tuple(Sight(take(next(sizes)), take(next(sizes))) for _ in group.pages) for group in shape.groups)
    tokens, positions, places = rows
    drawn, top_k, *parameters = draws
    temperature, top_p, min_p, fraction = map(as_floats, parameters)
    return Views(tokens, positions, places, drawn, top_k, temperature, top_p, min_p, fraction, sights)
