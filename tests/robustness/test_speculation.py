"""Answers with guessed tokens, through a whole runtime: the same tokens as without, whatever else is asked for, and no seat is lost.

The drafters here guess as often as they can, so that right and wrong guesses are many; what the engine does with them has tests of
its own.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from tokenizers import pre_tokenizers

from tests.api.test_checkpoint_folders import edit
from tests.robustness.routes import ROUTES, serving_small
from tripower.actors import drafting
from tripower.actors.dialogue import TokenChunk
from tripower.actors.queueing import QueueStatistics
from tripower.api.embedding import EmbeddedRuntime, open_runtime
from tripower.backends.picolm import drafted
from tripower.runtime.configuration import Configuration, EngineSettings, SchedulerSettings
from tripower.runtime.configuration.settings import SpeculationChoices
from tripower.runtime.engine.constraint import JsonSchemaFormat, RegexFormat
from tripower.runtime.engine.drafting import ALONE, Beside
from tripower.runtime.speculation.drafter import FixedDrafter, SourceDrafter
from tripower.runtime.store import Store

PROMPTS = ("abcabcabcabc", "a b a b a b a", "one two three one two", "zzzzzzzz", "{}{}{}")
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True}
SAMPLED = GREEDY | {"temperature": 0.9, "seed": 5}
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
END = LETTERS.index("~")
MODES = ("off", "ngram-context", "prompt-lookup", "draft-model")
SCHEMA = {"type": "array", "items": {"enum": ["ab", "cd"]}, "minItems": 3, "maxItems": 6}


class Eager(SourceDrafter):
    """A drafter that is counted."""

    def __init__(self, inner: FixedDrafter, counts: list[int]) -> None:
        super().__init__(inner.source)
        self._inner, self._counts = inner, counts

    quiet = 0

    def propose(self, most: int, beside: Beside = ALONE) -> Sequence[int]:
        return self._inner.propose(most, beside)

    def accept(self, tokens: Sequence[int], proposed: int) -> None:
        self._counts.append(proposed)
        self._inner.accept(tokens, proposed)


def nearly_free(*engines: Any) -> Generator[None, None, float]:
    """A draft that is its own target would cost its neighbours too much to be asked."""
    yield
    return 0.001


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many guesses were evaluated, step by step."""
    counted: list[int] = []

    def eager(make: Callable[..., Any]) -> Callable[..., Eager]:
        def made(settings: Any, *arguments: Any) -> Eager:
            return Eager(make(msgspec.structs.replace(settings, adaptive=False), *arguments), counted)

        return made

    for name in ("make_drafter", "make_model_drafter"):
        monkeypatch.setattr(drafting, name, eager(getattr(drafting, name)))
    monkeypatch.setattr(drafted, "measure_step_cost", nearly_free)
    return counted


@asynccontextmanager
async def open_guessing(mode: str, folder: Path, home: Path) -> AsyncIterator[EmbeddedRuntime]:
    edit(folder, max_position_embeddings=256, eos_token_id=END)
    configuration = Configuration(
        scheduler=SchedulerSettings(batch_members=4, waiting=64),
        engine=EngineSettings(threads=1),
        speculation=SpeculationChoices(mode=mode, draft_model=str(folder), draft_max=4 if mode == "draft-model" else 0),
    )
    async with open_runtime(configuration, models=[f"tiny={folder}"], store=Store(home)) as runtime:
        yield runtime


async def tokens_of(runtime: EmbeddedRuntime, prompt: str, **options: Any) -> list[int]:
    return [event.token async for event in runtime.complete("tiny", prompt, **options) if isinstance(event, TokenChunk)]


async def answers(mode: str, folder: Path, home: Path, *asked: dict[str, Any]) -> list[list[int]]:
    """Every prompt with all of these options, all at once."""
    found: dict[int, list[int]] = {}
    work = [(prompt, options) for options in asked for prompt in PROMPTS]

    async def ask(number: int) -> None:
        prompt, options = work[number]
        found[number] = await tokens_of(runtime, prompt, **options)

    async with open_guessing(mode, folder, home) as runtime, trio.open_nursery() as nursery:
        for number in range(len(work)):
            nursery.start_soon(ask, number)
    return [found[number] for number in range(len(work))]


# BB-052
async def test_every_way_of_guessing_gives_the_tokens_of_no_guessing(folder: Path, tmp_path: Path, counts: list[int]) -> None:
    found, evaluated = [], []
    for mode in MODES:
        counts.clear()
        found.append(await answers(mode, folder, tmp_path / "home", GREEDY, SAMPLED))
        evaluated.append(sum(counts))
    assert all(each == found[0] for each in found)
    assert evaluated[0] == 0 and min(evaluated[1:]) > 10, evaluated


# BB-053
async def test_bias_and_filters_hold_for_guessed_tokens(folder: Path, tmp_path: Path, counts: list[int]) -> None:
    (favourite, *_), *_ = plain = await answers("off", folder, tmp_path / "home", GREEDY)
    ((common, _),) = Counter(token for tokens in plain for token in tokens).most_common(1)
    ban = {"logit_bias": {favourite: -100.0, common: -100.0}}
    options = [GREEDY | ban, SAMPLED | ban, SAMPLED | {"min_p": 0.9}, SAMPLED | ban | {"min_p": 0.9, "repeat_penalty": 1.3}]
    expected = await answers("off", folder, tmp_path / "home", *options)
    found = await answers("ngram-context", folder, tmp_path / "home", *options)
    assert found == expected
    assert not {favourite, common} & {token for tokens in found[: 2 * len(PROMPTS)] for token in tokens}
    assert sum(counts) > 20


# BB-055
async def test_every_guessed_token_is_legal(folder: Path, tmp_path: Path, counts: list[int]) -> None:
    pattern = "(abc|abd){4,20}e"
    held: list[dict[str, Any]] = [{"format": RegexFormat(pattern)}, {"format": JsonSchemaFormat(SCHEMA)}]
    options = [base | {"max_tokens": 100, "ignore_eos": False} | each for each in held for base in (GREEDY, SAMPLED)]
    expected = await answers("off", folder, tmp_path / "home", *options)
    found = await answers("ngram-context", folder, tmp_path / "home", *options)
    assert found == expected
    for tokens in found[: 2 * len(PROMPTS)]:
        assert re.fullmatch(pattern, "".join(LETTERS[token] for token in tokens if token != END))
    assert sum(counts) > 20


# BB-056
async def test_who_hangs_up_on_a_guess_leaves_nothing_and_the_next_answer_is_right(
    folder: Path, tmp_path: Path, counts: list[int]
) -> None:
    chance = random.Random(3)
    async with open_guessing("off", folder, tmp_path / "home") as runtime:
        expected = [await tokens_of(runtime, prompt, **GREEDY) for prompt in PROMPTS]
    async with open_guessing("ngram-context", folder, tmp_path / "home") as runtime:
        for number in range(50):
            most = chance.randrange(30)
            async with runtime.complete("tiny", PROMPTS[number % len(PROMPTS)], **GREEDY) as generation:
                async for _ in generation:
                    most -= 1
                    if most < 0:
                        break
            if number % 10 == 9:
                found = [await tokens_of(runtime, prompt, **GREEDY) for prompt in PROMPTS]
                assert found == expected
        await runtime.runtime.settle()
        (queue,) = [each.details for each in runtime.statistics() if isinstance(each.details, QueueStatistics)]
        assert queue.live == queue.gate.active == queue.gate.waiting == 0
        assert queue.arrivals == queue.completed + queue.cancelled
    assert sum(counts) > 50


# BB-052, BB-053, BB-055: guesses are a setting of the server, so a request can neither ask for them nor get them half-applied
@pytest.mark.parametrize(
    "asked",
    [
        {"prediction": {"type": "content", "content": "Hello"}},  # OpenAI
        {"speculative.n_max": 16},  # llama-server
        {"speculative.n_min": 4},
        {"speculative.p_min": 0.5},
        {"draft_model": "toy"},  # LM Studio
    ],
    ids=lambda asked: next(iter(asked)),
)
@pytest.mark.parametrize("route", ROUTES[:2], ids=["chat", "completions"])
async def test_a_request_for_a_draft_changes_nothing_and_is_named(route: Any, asked: dict[str, Any]) -> None:
    (name,) = asked
    async with serving_small() as server:
        for beside in ({}, {"logit_bias": {"97": -100}, "min_p": 0.9}):
            for stream in (False, True):
                answer = await server.ask(route.path, route.body(stream=stream, **asked, **beside))
                assert (answer.status, answer.headers["x-tripower-ignored"]) == (200, name)
        strict = await server.ask(route.path, route.body(**asked), headers={"x-tripower-strict": "1"})
        assert (strict.status, route.error(strict)["param"]) == (400, name)
        assert server.actors.active() == 0
        plain = await server.ask(route.path, route.body(temperature=0, **dict.fromkeys(asked)))
        assert plain.status == 200 and "x-tripower-ignored" not in plain.headers
