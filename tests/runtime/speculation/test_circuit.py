"""When a request stops drafting, and what brings it back: a table of observations."""

from __future__ import annotations

import pytest

from tripower.runtime.speculation.circuit import IDLE_MAX, NEEDED_FIRST, WINDOW, Circuit


def drafted(circuit: Circuit, rights: list[int], cost: float) -> None:
    for right in rights:
        circuit.drafted(right, right - cost)


@pytest.mark.parametrize(
    ("rights", "cost", "rests"),
    [
        pytest.param([1, 0, 0] * 4, 0.4, True, id="a third right, dear rows"),
        pytest.param([1, 0, 0] * 4, 0.1, False, id="a third right, cheap rows"),
        pytest.param([0, 2, 2] * 8, 0.4, False, id="mostly right"),
        pytest.param([0] * WINDOW, 0.0, True, id="nothing right, free rows"),
        pytest.param([0] * (WINDOW - 1), 1.0, False, id="too few to tell"),
        pytest.param([1] * WINDOW, 0.97, False, id="small gain, never empty"),
    ],
)
def test_drafts_that_save_nothing_open_it_at_the_twelfth(rights: list[int], cost: float, rests: bool) -> None:
    circuit = Circuit()
    drafted(circuit, rights[:-1], cost)
    assert not circuit.resting
    drafted(circuit, rights[-1:], cost)
    assert circuit.resting is rests


def test_nothing_worth_drafting_opens_it_and_a_draft_starts_the_count_anew() -> None:
    circuit = Circuit()
    for _ in range(IDLE_MAX - 1):
        circuit.passed(False)
    drafted(circuit, [1], 0.0)
    for _ in range(IDLE_MAX - 1):
        circuit.passed(False)
    assert not circuit.resting and circuit.quiet == 0
    circuit.passed(False)
    assert circuit.resting and circuit.quiet == NEEDED_FIRST


def test_right_guesses_on_end_close_it() -> None:
    circuit = Circuit()
    drafted(circuit, [0] * WINDOW, 0.1)
    needed = circuit.quiet
    for _ in range(needed - 1):
        circuit.passed(True)
    circuit.passed(False)
    assert circuit.quiet == needed
    for left in range(needed, 0, -1):
        assert circuit.quiet == left
        circuit.passed(True)
    assert not circuit.resting


def test_each_failure_doubles_what_is_needed_up_to_a_bound() -> None:
    circuit, needed = Circuit(), []
    for _ in range(9):
        drafted(circuit, [0] * WINDOW, 0.1)
        needed.append(circuit.quiet)
        for _ in range(circuit.quiet):
            circuit.passed(True)
        assert not circuit.resting
    assert needed == [4, 8, 16, 32, 64, 128, 128, 128, 128]


def test_during_the_quiet_tokens_nothing_brings_it_back() -> None:
    circuit = Circuit()
    drafted(circuit, [0] * WINDOW, 0.1)
    for _ in range(circuit.quiet - 1):
        circuit.passed(True)
        assert circuit.resting
