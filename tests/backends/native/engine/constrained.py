"""Constraints for tests, and what a sequence must answer under them, worked out from logits in Python."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tests.backends.native.engine.rigs import VOCABULARY, logits_alone
from tripower.backends.sampling import draw_token
from tripower.runtime.engine import RowReport, SamplingParameters, StepRow, StepTable, TokenLogprobs, TokenMask
from tripower.runtime.engine.logprobs import NO_LOGPROBS
from tripower.runtime.engine.step_table import NOT_DRAWN

WORDS = VOCABULARY // 32


class Picky:
    """Allows some tokens, which depend on all that were accepted; counts what it is asked."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.accepted: list[int] = []
        self.asked = 0

    def mask(self) -> TokenMask:
        self.asked += 1
        return self.allowed()

    def allowed(self) -> TokenMask:
        chance = random.Random(f"{self.seed} {self.accepted}")
        return np.array([chance.getrandbits(32) & chance.getrandbits(32) for _ in range(WORDS)], np.uint32)

    def accept(self, token: int) -> None:
        assert int(self.allowed()[token // 32]) >> token % 32 & 1, "a token that the mask did not allow"
        self.accepted.append(token)

    def valid_prefix(self, tokens: Sequence[int]) -> int:
        ahead = Picky(self.seed)
        ahead.accepted = list(self.accepted)
        for place, token in enumerate(tokens):
            if not int(ahead.allowed()[token // 32]) >> token % 32 & 1:
                return place
            ahead.accepted.append(token)
        return len(tokens)

    def take_back(self, count: int) -> None:
        del self.accepted[len(self.accepted) - count :]


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence of a job. `constraint` is the seed of a `Picky`."""

    prompt: tuple[int, ...]
    remaining: int
    sampling: SamplingParameters
    constraint: int | None = None
    logprobs: int = NO_LOGPROBS
    prompt_logprobs: int = NO_LOGPROBS
    ends: frozenset[int] = frozenset()

    def slot(self, **changes: Any) -> dict[str, Any]:
        """For `rigs.new_table`."""
        made = Picky(self.constraint) if self.constraint is not None else None
        return {
            "pending": list(self.prompt), "remaining": self.remaining, "sampling": self.sampling, "constraint": made,
            "logprobs": self.logprobs, "prompt_logprobs": self.prompt_logprobs, "ends": self.ends,
        } | changes  # fmt: skip


class Answer(msgspec.Struct):
    """What a sequence gave: its tokens, what was told of them, and what was told of its prompt."""

    drawn: list[int]
    told: list[TokenLogprobs]
    prompt: list[TokenLogprobs]


def answers_of(table: StepTable) -> list[Answer]:
    """What a job left in its table, by slot."""
    answers = [Answer([], [], []) for _ in range(table.slots)]
    for step in range(table.steps_done):
        for slot, answer in enumerate(answers):
            token = int(table.drawn[step, slot])
            answer.drawn += [*table.runs.get(step, {}).get(slot, ()), token] if token != NOT_DRAWN else []
            report = table.reports.get(step, {}).get(slot, RowReport())
            answer.prompt += report.prompt
            answer.told += report.run
            answer.told += [report.drawn] if report.drawn is not None else []
    return answers


def expected_answer(engine: Any, member: Member) -> Answer:
    """The same, from the sequence's logits row by row and the draw in Python."""
    picky = Picky(member.constraint) if member.constraint is not None else None
    answer, tokens, logits = Answer([], [], []), list(member.prompt), logits_alone(engine, member.prompt)
    if member.prompt_logprobs != NO_LOGPROBS:
        answer.prompt = [
            exact_logprobs(row, token, member.prompt_logprobs) for row, token in zip(logits, member.prompt[1:], strict=False)
        ]
    for index in range(member.remaining):
        values = logits[-1]
        mask = None if picky is None else picky.mask()
        row = StepRow(0, 0, (0,), True, index, member.sampling, tokens, len(member.prompt), mask)
        token = draw_token(values, row)
        answer.drawn.append(token)
        if member.logprobs != NO_LOGPROBS:
            answer.told.append(exact_logprobs(values, token, member.logprobs))
        if token in member.ends:
            break
        if picky is not None:
            picky.accept(token)
        tokens.append(token)
        logits = logits_alone(engine, tokens)
    return answer


def exact_logprobs(logits: NDArray[np.float32], token: int, count: int) -> TokenLogprobs:
    """In float64."""
    values = logits.astype(np.float64)
    found = values - values.max() - np.log(np.exp(values - values.max()).sum())
    top = np.argsort(-values, kind="stable")[:count]
    return TokenLogprobs(token, float(found[token]), tuple((int(each), float(found[each])) for each in top))


def assert_close(found: Sequence[TokenLogprobs], expected: Sequence[TokenLogprobs]) -> None:
    """The same tokens in the same places, and numbers within 1e-5."""
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.token, [token for token, _ in ours.top]) == (theirs.token, [token for token, _ in theirs.top])
        numbers = [ours.logprob, *(value for _, value in ours.top)]
        assert np.allclose(numbers, [theirs.logprob, *(value for _, value in theirs.top)], rtol=0, atol=1e-5)
