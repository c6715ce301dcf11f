"""The runtime under injected faults, with guesses: every invariant holds, and answers are those of plain decoding."""

from __future__ import annotations

from typing import Any

import pytest

from tests.drafters import Teller
from tripower.actors.queueing import QueueLimits
from tripower.actors.simulation import harness
from tripower.backends.toy.engine import VOCABULARY, absorb, absorb_all, draw
from tripower.runtime.speculation import SpeculationSettings, Strategy

SEEDS = 40
TOKENS = 64
SETTINGS = SpeculationSettings(strategy=Strategy.PROMPT_LOOKUP)


def test_seeds_keep_every_invariant_while_tokens_are_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Teller] = []

    def make_drafter(settings: Any, prompt: list[int], costs: Any) -> Teller:
        """One that knows what the toy says at temperature 0, and is wrong now and then."""
        state, answer = absorb_all(0, prompt), list[int]()
        while len(answer) < TOKENS:
            answer.append(draw(state, 0))
            state = absorb(state, answer[-1])
        made.append(Teller(answer, width=5, wrong=0.2, seed=len(made), vocabulary=VOCABULARY))
        return made[-1]

    def limits(**values: Any) -> QueueLimits:
        return QueueLimits(speculation=SETTINGS, **values)

    monkeypatch.setattr(harness, "QueueLimits", limits)
    monkeypatch.setattr("tripower.actors.drafting.make_drafter", make_drafter)
    for seed in range(SEEDS):
        assert harness.simulate(seed).violations == [], seed
    assert sum(drafter.proposed for drafter in made) > SEEDS  # it was no idle test
