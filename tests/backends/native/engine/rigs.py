"""Native engines with every choice that a load makes by itself in the test's hands, and what is compared."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tests.backends.conftest import specification_for
from tripower.backends.gguf.reader import open_gguf
from tripower.backends.picolm.backend import plan_load
from tripower.backends.picolm.native.boundary import CLASS_MAX, WORDS
from tripower.backends.picolm.native.engine import NativeEngine
from tripower.backends.picolm.native.kernel_set import KernelSet
from tripower.backends.picolm.native.kernels.attention.kv import KvElement
from tripower.backends.picolm.native.linear_code import tiles_worth_measuring
from tripower.backends.picolm.native.model import NativeModel, read_native_model
from tripower.backends.picolm.native.program import Program
from tripower.backends.picolm.native.target import Target, host_target
from tripower.backends.picolm.native.tiles import Tile, TileTable, shape_of
from tripower.runtime.engine import EngineInfo, SamplingParameters, StepRow, StepTable
from tripower.runtime.engine.logprobs import NO_LOGPROBS

VOCABULARY = 96
GREEDY = SamplingParameters(temperature=0.0)
SAMPLED = SamplingParameters(temperature=0.9, top_p=0.95, top_k=40, seed=77, repeat_penalty=1.2, presence_penalty=0.2)
Result = TypeVar("Result")
Logits = NDArray[np.float32]
MakeEngine = Callable[..., NativeEngine]


def build_engine(
    path: Path,
    *,
    target: Target | None = None,
    element: KvElement = "f32",
    tiles_seed: int | None = None,
    threads: int = 1,
    rows_max: int = 64,
    slots_max: int = 4,
    sequences_max: int = 4,
    context: int = 200,
    row_costs: tuple[float, ...] = (1.0,),
) -> NativeEngine:
    """A native engine for a GGUF file, without calibration and certificate. `tiles_seed`: each layer has some tile or other.

    `row_costs`: as they are, rows are free, so that guesses get all the room that there is.
    """
    target = target or host_target()
    with open_gguf(path) as file:
        plan = plan_load(file, specification_for(path, context=context, sequences_max=sequences_max))
        model = run_to_end(read_native_model(file, plan.decoder, plan.wanted, target, lambda done: None))
    tiles = choose_tiles(model, target, tiles_seed)
    program = Program(
        model,
        tiles,
        KernelSet(model.decoder, tiles, target, element),
        context_max=context,
        sequences_max=sequences_max,
        slots_max=slots_max,
        rows_max=rows_max,
        threads=threads,
        element=element,
    )
    info = EngineInfo(
        backend="picolm",
        architecture=model.decoder.architecture,
        context_max=context,
        vocabulary_size=model.decoder.vocabulary_size,
        sequences_max=sequences_max,
        threads=threads,
        row_costs=row_costs,
    )
    return NativeEngine(program, info)


def choose_tiles(model: NativeModel, target: Target, seed: int | None) -> TileTable:
    """The first candidate of each class, or a random one."""
    chance = random.Random(seed)
    table: TileTable = {}
    for packed in model.matrices.values():
        shape = shape_of(packed)
        found: list[Tile] = []
        for index in range(len(CLASS_MAX)):
            candidates = tiles_worth_measuring(shape[0], target, index)
            found.append(candidates[0] if seed is None else chance.choice(candidates))
        table.setdefault(shape, tuple(found))
    return table


def run_to_end(work: Generator[None, None, Result]) -> Result:
    """What a generator returns."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return] # a StopIteration does not say what it carries


def tokens_of(seed: int, count: int, vocabulary: int = VOCABULARY) -> list[int]:
    """Random tokens."""
    return [int(token) for token in np.random.default_rng(seed).integers(0, vocabulary, count)]


def logits_alone(engine: Any, tokens: Sequence[int], sequence: int = 1000) -> Logits:
    """Row by row in a sequence of its own, that is closed again."""
    engine.open_sequence(sequence)
    try:
        return np.concatenate([engine.logits(sequence, [token]) for token in tokens])
    finally:
        engine.close_sequence(sequence)


def prefill(engine: Any, sequence: int, tokens: Sequence[int]) -> None:
    """Append tokens in one step, without a draw."""
    if tokens:
        engine.step([StepRow(sequence, engine.length(sequence), tuple(tokens), draw=False)])


def same_bits(found: Logits, expected: Logits) -> bool:
    return found.shape == expected.shape and bool((found.view(np.int32) == expected.view(np.int32)).all())


def relative_difference(found: Logits, expected: Logits) -> float:
    """The largest absolute difference over the largest absolute value."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def divergence(found: Logits, expected: Logits) -> float:
    """The mean Kullback-Leibler divergence of a position, in nats, of what `found` says from what `expected` says."""

    def log_softmax(logits: Logits) -> NDArray[np.float64]:
        shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))

    ours, theirs = log_softmax(found), log_softmax(expected)
    return float((np.exp(theirs) * (theirs - ours)).sum(axis=1).mean())


def new_table(
    engine: Any,
    *members: dict[str, Any],
    steps: int = 64,
    rows_max: int = 64,
    mixed_rows: int = 0,
    slots_max: int = 4,
) -> StepTable:
    """A table with a slot for each member: `pending` is all it must state, `sequence` is its number unless it says otherwise."""
    table = StepTable(slots_max=slots_max, steps_max=steps, rows_max=rows_max, mixed_rows=mixed_rows)
    table.clear(steps_max=steps)
    for number, member in enumerate(members):
        sequence = member.get("sequence", number)
        table.add(
            sequence=sequence,
            position=member["position"] if "position" in member else engine.length(sequence),
            pending=member["pending"],
            remaining=member.get("remaining", 8),
            output_index=member.get("output_index", 0),
            sampling=member.get("sampling", GREEDY),
            ends=member.get("ends", frozenset()),
            history=member.get("history", member["pending"]),
            prompt_length=member.get("prompt_length", len(member["pending"])),
            constraint=member.get("constraint"),
            logprobs=member.get("logprobs", NO_LOGPROBS),
            prompt_logprobs=member.get("prompt_logprobs", NO_LOGPROBS),
            drafter=member.get("drafter"),
        )
    return table


def steps_of(table: StepTable) -> list[tuple[list[int], list[int]]]:
    """Rows evaluated and tokens drawn, step by step."""
    slots = table.slots
    return [(table.evaluated[step, :slots].tolist(), table.drawn[step, :slots].tolist()) for step in range(table.steps_done)]


def state_of(table: StepTable) -> dict[str, list[Any]]:
    """What a job leaves in the columns that the next one reads."""
    used = slice(table.slots)
    columns = {name: getattr(table, name)[used].tolist() for name in ("position", "remaining", "output_index")}
    return columns | {"pending": [list(pending) for pending in table.pending]}


def ignore_costs(engine: NativeEngine) -> NativeEngine:
    """Let a prompt's rows cost the same wherever they stand, as in the Python loop."""
    assert engine._program is not None
    engine._program._words[WORDS.index("row_cost")] = 0
    return engine
