"""A state that was evaluated for somebody else gives the same bits as one of one's own, wherever the two prompts part."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tripower.backends.picolm.page_table import PageTable
from tripower.runtime.engine import StepEngine
from tripower.runtime.kernel.errors import DeviceFailed

B = 64
CONTEXT, VOCABULARY = 200, 96
PROMPT = np.random.default_rng(5).integers(0, VOCABULARY, 2 * B + 12).tolist()
OTHER = np.random.default_rng(6).integers(0, VOCABULARY, 2 * B + 40).tolist()
CUTS = [1, B - 1, B, B + 1, 2 * B - 1, 2 * B, 2 * B + 1]
EXACT = {
    "native llama": ("load_native", "llama", {}),
    "native gemma3": ("load_native", "gemma3", {"layers": 6}),
    "torch llama": ("load_torch", "llama", {}),
    "torch gemma3": ("load_torch", "gemma3", {"layers": 6}),
}


@pytest.fixture(params=list(EXACT))
def engine(request: pytest.FixtureRequest, tiny_model: Any) -> Iterable[StepEngine]:
    loader, architecture, options = EXACT[request.param]
    path = tiny_model(architecture, vocabulary=VOCABULARY, **options)
    engine = request.getfixturevalue(loader)(path, context=CONTEXT, sequences_max=2)
    yield engine
    engine.close()


def logits(engine: Any, sequence: int, tokens: list[int]) -> NDArray[np.float32]:
    found: NDArray[np.float32] = engine.logits(sequence, tokens)
    return found.copy()


def cold(engine: StepEngine, tokens: list[int], first: int) -> NDArray[np.float32]:
    """Logits from position `first` on of a sequence that is evaluated from its beginning, in one piece."""
    engine.open_sequence(99)
    found = logits(engine, 99, tokens)[first:]
    engine.close_sequence(99)
    return found


def same(engine: StepEngine, left: NDArray[np.float32], right: NDArray[np.float32]) -> bool:
    """Bit by bit in generated code. A library's product of matrices may round by the number of rows."""
    if engine.info.kernels.startswith("torch"):
        return bool(np.allclose(left, right, rtol=0, atol=1e-4)) and (left.argmax(-1) == right.argmax(-1)).all()
    return left.tobytes() == right.tobytes()


# BB-046
@pytest.mark.parametrize("cut", CUTS)
def test_warm_and_cold_are_equal_at_every_cut_around_a_page(engine: StepEngine, cut: int) -> None:
    engine.open_sequence(0)
    for piece in (PROMPT[: cut // 2], PROMPT[cut // 2 : cut], OTHER[:30]):  # what follows the cut is another text
        if piece:
            logits(engine, 0, piece)
    engine.retain(0, cut + 15)
    engine.fork(0, 1, cut)
    engine.close_sequence(0)
    assert same(engine, logits(engine, 1, PROMPT[cut:]), cold(engine, PROMPT, cut))


# BB-046: several at once from one state, which stays as it is
def test_everybody_who_forks_a_state_gets_its_bits_and_nobody_changes_it(engine: StepEngine) -> None:
    engine.open_sequence(0)
    logits(engine, 0, PROMPT)
    engine.retain(0, B + 5)
    engine.fork(0, 1, B + 5)
    engine.fork(0, 2, B)
    one, two = logits(engine, 1, OTHER[:9]), logits(engine, 2, OTHER[:9])
    again = PROMPT[B + 5 :]
    engine.close_sequence(1)
    engine.fork(0, 3, B + 5)
    three = logits(engine, 3, again)
    engine.close_sequence(3)
    engine.close_sequence(2)
    assert same(engine, one, cold(engine, PROMPT[: B + 5] + OTHER[:9], B + 5))
    assert same(engine, two, cold(engine, PROMPT[:B] + OTHER[:9], B))
    assert same(engine, three, cold(engine, PROMPT, B + 5))


def test_a_retained_state_takes_no_place_and_gives_it_back_to_nobody_twice(engine: StepEngine) -> None:
    for sequence in range(2):
        engine.open_sequence(sequence)
        logits(engine, sequence, PROMPT[:10])
        engine.retain(sequence, 10)
    engine.open_sequence(10)
    engine.open_sequence(11)
    with pytest.raises(DeviceFailed):
        engine.open_sequence(12)
    engine.close_sequence(0)
    with pytest.raises(DeviceFailed):
        engine.fork(1, 12, 5)
    engine.close_sequence(10)
    engine.fork(1, 12, 5)
    assert engine.length(12) == 5 and engine.length(1) == 10


def test_pages_are_shared_and_none_is_left(engine: Any) -> None:
    table: PageTable = engine._pages
    engine.open_sequence(0)
    logits(engine, 0, PROMPT)
    engine.retain(0, 2 * B)
    free = engine.pages_free
    for sequence in (1, 2):
        engine.fork(0, sequence, 2 * B)
    assert engine.pages_free == free == table.pages_max - 2
    assert engine.info.pages_max == table.pages_max and engine.info.page_positions == B
    for sequence in engine.sequences():
        engine.close_sequence(sequence)
    assert engine.pages_free == table.pages_max
