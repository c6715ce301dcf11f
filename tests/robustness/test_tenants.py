"""What one key has sent is neither told nor faster for another; for itself it is both, or the test would pass without a cache."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.api.auth.test_authentication import key_file
from tests.api.serving import Answer, serving_toy
from tests.robustness.routes import ROUTES
from tripower.actors.runtime import toy_plan
from tripower.backends.toy import ToyEngine, ToyText
from tripower.runtime.engine import LoadedModel, LoadSpecification, Progress, StepRow
from tripower.runtime.prefix_cache import PrefixSettings

PROMPT = "what nobody else may know " * 4


class CountingBackend:
    """Toys that count the tokens they evaluate."""

    name = "toy"

    def __init__(self) -> None:
        self.evaluated = 0

    def load(self, specification: LoadSpecification, progress: Progress) -> Iterator[LoadedModel | None]:
        counts = self

        class CountingEngine(ToyEngine):
            def step(self, rows: Sequence[StepRow]) -> list[int]:
                counts.evaluated += sum(len(row.tokens) for row in rows)
                return super().step(rows)

        yield LoadedModel(CountingEngine(context=8192, sequences_max=specification.sequences_max), ToyText())


def cached(answer: Answer) -> set[int]:
    """The numbers of cached tokens that an answer tells, under any route's name for them."""
    return {int(number) for number in re.findall(rb'"(?:cached_tokens|cache_read_input_tokens|cache_n)":\s*(\d+)', answer.body)}


# BB-049
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path.rpartition("v1/")[2])
async def test_a_prompt_is_as_new_to_one_key_as_to_the_other(route: Any, stream: bool, tmp_path: Path) -> None:
    backend = CountingBackend()
    evaluated, told = [], []
    plan = toy_plan(backends={"toy": backend}, prefix=PrefixSettings())
    async with serving_toy(plan, auth=key_file(tmp_path, "key-of-a", "key-of-b")) as server:
        for key in ("key-of-a", "key-of-b", "key-of-a", "key-of-b"):
            before = backend.evaluated
            headers = {"authorization": f"Bearer {key}"}
            answer = await server.ask(route.path, route.body(PROMPT, stream=stream, temperature=0), headers=headers)
            assert answer.status == 200
            evaluated.append(backend.evaluated - before)
            told.append(cached(answer))
    assert evaluated[0] == evaluated[1] > len(PROMPT) > evaluated[2] == evaluated[3], "its own repeat is no new work"
    assert told[0] == told[1] <= {0}
    if told[0]:
        assert told[2] == told[3] and len(told[2] - {0}) == 1
