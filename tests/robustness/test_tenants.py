"""What one key has sent is neither told nor faster for another: every prompt is evaluated in full, whoever sends it and however often."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.api.auth.test_authentication import key_file
from tests.api.serving import serving_toy
from tests.robustness.routes import ROUTES
from tripower.actors.runtime import toy_plan
from tripower.backends.toy import ToyEngine, ToyText
from tripower.runtime.engine import LoadedModel, LoadSpecification, Progress, StepRow

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


# BB-049
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path.rpartition("v1/")[2])
async def test_a_prompt_is_as_new_to_one_key_as_to_the_other(route: Any, stream: bool, tmp_path: Path) -> None:
    backend = CountingBackend()
    evaluated = []
    async with serving_toy(toy_plan(backends={"toy": backend}), auth=key_file(tmp_path, "key-of-a", "key-of-b")) as server:
        for key in ("key-of-a", "key-of-b", "key-of-a", "key-of-b"):
            before = backend.evaluated
            headers = {"authorization": f"Bearer {key}"}
            answer = await server.ask(route.path, route.body(PROMPT, stream=stream, temperature=0), headers=headers)
            assert answer.status == 200
            evaluated.append(backend.evaluated - before)
            for name in (b'"cached_tokens":', b'"cache_read_input_tokens":', b'"cache_n":'):
                assert all(rest.lstrip().startswith(b"0") for rest in answer.body.split(name)[1:])
    assert evaluated[0] > len(PROMPT) and len(set(evaluated)) == 1
