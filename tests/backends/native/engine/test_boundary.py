"""What happens between two steps, function by function: the native boundary against the same rules in Python."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llvmlite import ir

from tests.backends.native.engine.rigs import GREEDY
from tripower.backends.picolm.native.boundary import (
    CLASS_MAX,
    CLASSES_FIRST,
    DRAWN,
    ITEMS,
    ONE,
    PAIRS,
    ROWS,
    WORDS,
    emit_boundary,
)
from tripower.backends.picolm.native.buffers import StepBuffers
from tripower.backends.picolm.native.compile import compile_module
from tripower.backends.picolm.native.kernels.sampler.settings import SamplingSettings
from tripower.backends.picolm.native.memory import address, zeros
from tripower.backends.picolm.native.slots import Slots
from tripower.backends.picolm.native.target import host_target
from tripower.runtime.engine import StepTable
from tripower.runtime.engine.step_loop import plan_rows
from tripower.runtime.engine.step_table import INVALID_LOGITS, NOT_DRAWN, SIGNAL_FD, SLOTS

SLOTS_MAX, ROWS_MAX, ITEM_ROWS, VOCABULARY, END = 6, 24, 4, 50, 7
FEW = functools.partial(settings, deadline=None, max_examples=150)


@functools.cache
def functions() -> tuple[Any, Any]:
    def build(module: ir.Module) -> None:
        emit_boundary(module)

    code = compile_module(build, host_target())
    return code.function("plan_step", ctypes.c_int64, ctypes.c_void_p), code.function("commit_step", None, ctypes.c_void_p)


class Member(msgspec.Struct, frozen=True):
    """A slot as a job begins."""

    pending: int
    position: int = 0
    remaining: int = 5
    ends: tuple[int, ...] = ()


class Boundary:
    """Slots, step and table of a job, and the two functions over them."""

    def __init__(self, members: Sequence[Member], *, rows_max: int = ROWS_MAX, mixed_rows: int = ROWS_MAX, cost: float = 0.0):
        self.members = members
        self.table = StepTable(slots_max=SLOTS_MAX, steps_max=8, rows_max=rows_max)
        self.table.clear(steps_max=8)
        self.table.control[SLOTS], self.table.control[SIGNAL_FD] = len(members), -1
        self.slots = Slots(SLOTS_MAX, VOCABULARY)
        self.step = StepBuffers(rows_max=ROWS_MAX, slots_max=SLOTS_MAX, drawn_max=ROWS_MAX, pages_per_slot=1)
        self.sampling = SamplingSettings(SLOTS_MAX, VOCABULARY)
        self.slots.clear()
        for slot, member in enumerate(members):
            self.slots.add(
                position=member.position,
                pending=self.tokens(slot),
                remaining=member.remaining,
                output_index=3,
                ends=frozenset(member.ends),
            )
            self.sampling.fill(slot, GREEDY, history=(), prompt_length=0, tokens_more=0)
        self.words = zeros(len(WORDS), np.int64)
        table, slots, step = self.table, self.slots, self.step
        self._set(
            control=table.control, drawn=table.drawn, evaluated=table.evaluated, slots_max=SLOTS_MAX, ends=slots.ends,
            tokens=slots.tokens, next=slots.next, end=slots.end, remaining=slots.remaining, output_index=slots.output_index,
            alive=slots.alive, position=slots.position, step_rows=slots.step_rows, row_token=step.row_token,
            row_position=step.row_position, row_slot=step.row_slot, drawn_row=step.drawn_row, token_out=step.token_out,
            row_draw=step.row_draw, all_rows=slots.all_rows, first_logits=slots.first_logits, draw_at=slots.draw_at,
            drawn_max=ROWS_MAX, drafted=slots.drafted, draws=slots.draws,
            item_row=step.item_row, item_rows=step.item_rows, counts=step.counts, rows_max=rows_max, mixed_rows=mixed_rows,
            row_cost=cost, item_rows_max=ITEM_ROWS, experts_used=3,
        )  # fmt: skip
        self.words[WORDS.index("sampling")] = self.sampling.address

    def _set(self, **words: Any) -> None:
        for name, value in words.items():
            if isinstance(value, np.ndarray):
                value = address(value)
            elif isinstance(value, float):
                value = struct.unpack("<q", struct.pack("<d", value))[0]
            self.words[WORDS.index(name)] = value

    def tokens(self, slot: int) -> list[int]:
        """What a slot has pending at the beginning: tokens that tell slots and places apart."""
        return [(10 * slot + place) % VOCABULARY for place in range(self.members[slot].pending)]

    def plan(self) -> list[int]:
        """Rows of each slot in the next step."""
        rows = functions()[0](address(self.words))
        found = [int(count) for count in self.slots.step_rows[: len(self.members)]]
        assert rows == self.step.counts[ROWS] == sum(found)
        return found

    def commit(self, tokens: Sequence[int] = ()) -> tuple[list[int], list[int]]:
        """The step has drawn these tokens: what is in the table's row."""
        self.step.token_out[: len(tokens)] = tokens
        step = self.table.steps_done
        functions()[1](address(self.words))
        assert self.table.steps_done == step + 1
        slots = len(self.members)
        return self.table.evaluated[step, :slots].tolist(), self.table.drawn[step, :slots].tolist()

    @property
    def draws(self) -> int:
        return int(self.step.counts[DRAWN])


def plan_with_costs(members: Sequence[Member], rows_max: int, mixed_rows: int, cost: float) -> list[int]:
    """The rule: one row for everybody, then rows in slot order, of which each costs more the further back it looks."""
    rows = [1 if member.pending else 0 for member in members]
    room = rows_max - sum(rows)
    mixed = any(member.pending == 1 for member in members)
    left = float(mixed_rows if mixed else room)
    for slot, member in enumerate(members):
        if member.pending:
            price = 1.0 + (member.position * cost if mixed else 0.0)
            more = max(0, min(member.pending - 1, int(left / price), room))
            rows[slot] += more
            left -= price * more
            room -= more
    return rows


MEMBERS = st.lists(
    st.builds(
        Member,
        pending=st.one_of(st.integers(0, 2), st.integers(0, 30)),
        position=st.integers(0, 5000),
        remaining=st.integers(0, 4),
        ends=st.sampled_from([(), (END,), (END, VOCABULARY + 5)]),
    ),
    max_size=SLOTS_MAX,
)
ROW_LIMITS = st.integers(SLOTS_MAX, ROWS_MAX)


@FEW()
@given(MEMBERS, ROW_LIMITS, ROW_LIMITS)
def test_without_costs_rows_are_planned_as_the_python_loop_does(members: list[Member], rows_max: int, mixed_rows: int) -> None:
    boundary = Boundary(members, rows_max=rows_max, mixed_rows=mixed_rows)
    assert boundary.plan() == plan_rows([member.pending for member in members], rows_max, mixed_rows)


@FEW()
@given(MEMBERS, ROW_LIMITS, st.integers(0, ROWS_MAX), st.sampled_from([0.0, 2.0**-10, 2.0**-7, 1.0]))
def test_rows_that_look_far_back_take_more_of_the_budget(
    members: list[Member], rows_max: int, mixed_rows: int, cost: float
) -> None:
    boundary = Boundary(members, rows_max=rows_max, mixed_rows=mixed_rows, cost=cost)
    assert boundary.plan() == plan_with_costs(members, rows_max, mixed_rows, cost)


@pytest.mark.parametrize(("position", "rows"), [(0, 9), (64, 5), (192, 3), (448, 2), (10_000, 1)])
def test_a_prompt_beside_a_stream_gets_smaller_pieces_towards_its_end(position: int, rows: int) -> None:
    boundary = Boundary([Member(1), Member(100, position)], mixed_rows=8, cost=1 / 64)
    assert boundary.plan() == [1, rows]


def test_a_prompt_alone_gets_all_rows_wherever_it_stands() -> None:
    assert Boundary([Member(100, 5000), Member(0)], mixed_rows=2, cost=1.0).plan() == [ROWS_MAX, 0]


@FEW()
@given(MEMBERS, ROW_LIMITS)
def test_a_step_names_token_position_and_slot_of_each_row_and_who_draws(members: list[Member], rows_max: int) -> None:
    boundary = Boundary(members, rows_max=rows_max)
    counts, step = boundary.plan(), boundary.step
    row, drawn, items = 0, list[int](), list[tuple[int, int]]()
    for slot, (member, count) in enumerate(zip(members, counts, strict=True)):
        assert step.row_token[row : row + count].tolist() == boundary.tokens(slot)[:count]
        assert step.row_position[row : row + count].tolist() == list(range(member.position, member.position + count))
        assert (step.row_slot[row : row + count] == slot).all()
        items += [(row + first, min(ITEM_ROWS, count - first)) for first in range(0, count, ITEM_ROWS)]
        row += count
        if 0 < count == member.pending and member.remaining:
            drawn.append(row - 1)
    assert step.drawn_row[: boundary.draws].tolist() == drawn
    found = [step.item_row[: len(items)].tolist(), step.item_rows[: len(items)].tolist()]
    assert step.counts[ITEMS] == len(items) and list(zip(*found, strict=True)) == items
    assert (step.counts[ONE], step.counts[PAIRS]) == (1, 3 * row)


@pytest.mark.parametrize("rows", range(1, ROWS_MAX + 1))
def test_rows_and_draws_fall_into_one_class_each(rows: int) -> None:
    boundary = Boundary([Member(rows - 1, remaining=0), Member(1)] if rows > 1 else [Member(1)])
    boundary.plan()
    classes = boundary.step.counts[CLASSES_FIRST:].tolist()
    for count, found in ((rows, classes[: len(CLASS_MAX)]), (1, classes[len(CLASS_MAX) :])):
        index = next(index for index, largest in enumerate(CLASS_MAX) if count <= largest)
        assert found == [count if each == index else 0 for each in range(len(CLASS_MAX))]


@FEW()
@given(MEMBERS, st.data())
def test_a_commit_moves_every_slot_as_the_python_loop_does(members: list[Member], data: st.DataObject) -> None:
    boundary = Boundary(members)
    slots = boundary.slots
    pending = [boundary.tokens(slot) for slot in range(len(members))]
    left, index, position = ([member.remaining for member in members], [3] * len(members), [m.position for m in members])
    for _ in range(8):
        counts = boundary.plan()
        if not any(counts):
            break
        tokens = data.draw(
            st.lists(st.sampled_from([0, 1, END, INVALID_LOGITS]), min_size=boundary.draws, max_size=boundary.draws)
        )
        coming, drawn = iter(tokens), [NOT_DRAWN] * len(members)
        for slot, count in enumerate(counts):
            del pending[slot][:count]
            position[slot] += count
            if count and not pending[slot] and left[slot]:
                token = drawn[slot] = next(coming)
                left[slot] -= 1
                index[slot] += 1
                if left[slot] and token != INVALID_LOGITS and token not in members[slot].ends:
                    pending[slot] = [token]
        assert boundary.commit(tokens) == (counts, drawn)
        used = slice(len(members))
        assert slots.position[used].tolist() == position
        assert (slots.remaining[used].tolist(), slots.output_index[used].tolist()) == (left, index)
        assert [slots.pending(slot) for slot in range(len(members))] == pending


@FEW()
@given(MEMBERS, ROW_LIMITS, st.data())
def test_a_slot_may_have_logits_at_all_its_rows_within_their_room(
    members: list[Member], rows_max: int, data: st.DataObject
) -> None:
    boundary = Boundary(members, rows_max=rows_max)
    drawn_max = data.draw(st.integers(SLOTS_MAX, ROWS_MAX))
    scored = data.draw(st.lists(st.booleans(), min_size=len(members), max_size=len(members)))
    boundary.words[WORDS.index("drawn_max")] = drawn_max
    boundary.slots.all_rows[: len(members)] = scored
    counts, step, slots = boundary.plan(), boundary.step, boundary.slots
    row, wanted, draws = 0, list[int](), list[int]()
    for slot, (member, count) in enumerate(zip(members, counts, strict=True)):
        draw = 0 < count == member.pending and member.remaining > 0
        assert count > 0 or not member.pending
        assert not count or slots.first_logits[slot] == len(wanted)
        wanted += range(row if scored[slot] else row + count - draw, row + count)
        draws += [len(wanted) - 1] if draw else []
        assert slots.draw_at[slot] == (draws[-1] if draw else -1)
        row += count
    assert len(wanted) <= drawn_max and step.drawn_row[: boundary.draws].tolist() == wanted
    assert np.flatnonzero(step.row_draw[: len(wanted)] == 0).tolist() == draws
    tokens = np.full(len(wanted), -7)
    tokens[draws] = np.arange(len(draws)) + 1
    found = [token for token in boundary.commit(tokens.tolist())[1] if token != NOT_DRAWN]
    assert found == list(range(1, len(draws) + 1))


def test_logits_that_are_not_finite_end_that_slot_and_no_other() -> None:
    boundary = Boundary([Member(2), Member(1), Member(1)])
    assert boundary.plan() == [2, 1, 1]
    assert boundary.commit([5, INVALID_LOGITS, 6]) == ([2, 1, 1], [5, INVALID_LOGITS, 6])
    assert boundary.plan() == [1, 0, 1]
    assert boundary.commit([8, 9]) == ([1, 0, 1], [8, NOT_DRAWN, 9])
    assert [boundary.slots.pending(slot) for slot in range(3)] == [[8], [], [9]]
