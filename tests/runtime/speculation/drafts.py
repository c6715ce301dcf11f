"""Toys as draft models: one that always agrees with a toy's answers, and one that often does not."""

from __future__ import annotations

from collections.abc import Sequence

from tripower.backends.toy import ToyEngine
from tripower.runtime.engine import SamplingParameters, StepRow
from tripower.runtime.speculation import DraftModel, ModelSource

GREEDY = SamplingParameters(temperature=0.0)
LETTERS = 26


class OtherToy(ToyEngine):
    """A toy that says another letter than it should where it stands at a multiple of `every`; counts its steps and rows."""

    def __init__(self, every: int = 0, *, context: int = 8192) -> None:
        super().__init__(context=context)
        self.every = every
        self.steps = self.rows = 0
        self.failing = False

    def step(self, rows: Sequence[StepRow]) -> list[int]:
        if self.failing:
            raise RuntimeError("the draft is lost")
        drawn = super().step(rows)
        self.steps += 1
        self.rows += sum(len(row.tokens) for row in rows)
        return [
            97 + (token - 96) % LETTERS if row.draw and self.every and self.length(row.sequence) % self.every == 0 else token
            for row, token in zip(rows, drawn, strict=True)
        ]


def answer_of(engine: ToyEngine, text: Sequence[int], count: int, sampling: SamplingParameters = GREEDY) -> list[int]:
    """What an engine says after a text, in a sequence of its own."""
    said: list[int] = []
    engine.open_sequence(999)
    for index in range(count):
        rest = [*text, *said][engine.length(999) :]
        said += engine.step([StepRow(999, engine.length(999), tuple(rest), draw=True, output_index=index, sampling=sampling)])
    engine.close_sequence(999)
    return said


def source_of(
    engine: ToyEngine, prompt: Sequence[int], *, cost: float = 0.1, sequence: int = 0, sure: float = 0.0
) -> ModelSource:
    """The guesses of a toy for a sequence that has begun."""
    source = ModelSource(DraftModel(engine, step_cost=cost), prompt, GREEDY, sure=sure)
    source.sequence = sequence
    return source
