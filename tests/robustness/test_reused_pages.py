"""What an earlier owner left in the memory of states never shows: not under pressure, not at the edges of pages, not between chats.

Here the engine's pages are looked at from outside, and a whole runtime that keeps prompts; the cache that decides what is kept has
tests of its own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from tests.api.test_checkpoint_folders import edit
from tests.backends.native.engine.rigs import prefill, same_bits, tokens_of
from tripower.api.embedding import open_runtime
from tripower.backends.picolm.native.kernels.attention.kv import PAGE_POSITIONS
from tripower.runtime.configuration import Configuration, EngineSettings, SchedulerSettings
from tripower.runtime.store import Store

CONTEXT, SEQUENCES = 3 * PAGE_POSITIONS, 3
PROMPT = tokens_of(3, CONTEXT)
LENGTHS = (PAGE_POSITIONS - 1, PAGE_POSITIONS, PAGE_POSITIONS + 1, 2 * PAGE_POSITIONS)
both_paths = pytest.mark.parametrize("loader", ["load_native", "load_torch"])


@pytest.fixture
def engine(loader: str, request: pytest.FixtureRequest, tiny_model: Any) -> Any:
    return request.getfixturevalue(loader)(tiny_model("llama"), context=CONTEXT, sequences_max=SEQUENCES)


def at_once(engine: Any, sequence: int, tokens: Sequence[int] = PROMPT) -> Any:
    """The logits of all tokens in a state of its own, that is closed again."""
    engine.open_sequence(sequence)
    try:
        return engine.logits(sequence, tokens)
    finally:
        engine.close_sequence(sequence)


@both_paths
def test_a_prompt_sent_again_after_a_flood_has_the_bits_of_the_first_time(engine: Any) -> None:  # BB-047
    cold = at_once(engine, 9)
    chance = random.Random(7)
    for turn in range(4):
        others = list(range(SEQUENCES))
        for sequence in others:  # larger than all the room there is
            engine.open_sequence(sequence)
            prefill(engine, sequence, tokens_of(100 * turn + sequence, CONTEXT))
        chance.shuffle(others)
        for sequence in others:
            engine.close_sequence(sequence)
        assert same_bits(at_once(engine, chance.randrange(20)), cold)


@both_paths
def test_a_shared_prefix_of_any_length_around_a_page_gives_what_a_cold_start_gives(engine: Any, loader: str) -> None:  # BB-046
    for length in LENGTHS:
        rest = tokens_of(length, CONTEXT - length)
        cold = at_once(engine, 9, PROMPT[:length] + rest)[length:]
        engine.open_sequence(0)
        prefill(engine, 0, PROMPT)
        engine.fork(0, 1, length)
        forked = engine.logits(1, rest)
        engine.trim(0, length)
        trimmed = engine.logits(0, rest)
        for found in (forked, trimmed):
            # torch multiplies few rows otherwise than many
            assert same_bits(found, cold) if loader == "load_native" else np.allclose(found, cold, atol=1e-3)
        for sequence in (0, 1):
            engine.close_sequence(sequence)


# BB-050, BB-046, BB-047
@pytest.mark.parametrize("kernels", ["native", pytest.param("torch", marks=pytest.mark.long)])
async def test_thirty_chats_on_two_seats_say_what_each_says_alone(kernels: str, folder: Path, tmp_path: Path) -> None:
    configuration = Configuration(
        scheduler=SchedulerSettings(batch_members=2, waiting=64),
        engine=EngineSettings(kernels=kernels, threads=1),
    )
    texts: dict[int, list[str]] = {}
    edit(folder, max_position_embeddings=4 * PAGE_POSITIONS)
    async with open_runtime(configuration, models=[f"tiny={folder}"], store=Store(tmp_path / "home")) as runtime:

        async def chat(number: int) -> None:
            code = f"{number * 7919 % 1000:03d}"
            options: Any = {"max_tokens": 12, "ignore_eos": True, "temperature": 0.0}
            prompt = f"{'Everybody begins alike. ' * (number % 3)}The code is {code}. Say it: "
            events = [event async for event in runtime.complete("tiny", prompt, **options)]
            texts.setdefault(number, []).append("".join(event.text for event in events))

        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(chat, number)
        for number in range(30):
            await chat(number)
    assert all(together == alone for together, alone in texts.values())
    assert len({together for together, _ in texts.values()}) > 1
