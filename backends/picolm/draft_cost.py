"""What a step of a draft model costs beside one of its target, measured at the first load of the pair on a machine and kept.

Both draw one token in one row, in turn, and the quickest of a few rounds counts: see `native.row_costs`, whose rules hold here as well.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Generator
from typing import Any

from tripower.runtime.engine import SamplingParameters, StepEngine, StepRow

ROUNDS_MIN, ROUNDS_MAX = 3, 16
SECONDS_MAX = 1.5
"""After so long, no further round begins."""
PREFIX = 32
"""Positions that the measured rows look back at, as far as the context has them."""
SEQUENCE = 0
COST_MIN, COST_MAX = 0.001, 100.0
GREEDY = SamplingParameters(temperature=0.0)


def measure_step_cost(target: StepEngine, draft: StepEngine) -> Generator[None, None, float]:
    """How many steps of one row of the target take as long as one of the draft; yields between steps. No sequence may be open."""
    name = f"draft-cost-{hashlib.sha256(repr((_key(target), _key(draft))).encode()).hexdigest()[:32]}"
    kept = _kept()
    if kept is not None and (known := kept.read_kept(name, float)) is not None:
        return float(known)
    seconds = yield from _measure((target, draft))
    cost = round(min(max(seconds[1] / seconds[0], COST_MIN), COST_MAX), 3)
    if kept is not None:
        kept.write_kept(name, cost)
    return cost


def _measure(engines: tuple[StepEngine, StepEngine]) -> Generator[None, None, list[float]]:
    prefix = min(PREFIX, min(engine.info.context_max for engine in engines) - 1)
    tokens = tuple(place % min(engine.info.vocabulary_size for engine in engines) for place in range(prefix))
    quickest = [float("inf")] * len(engines)
    try:
        for engine in engines:
            engine.open_sequence(SEQUENCE)
            if tokens:
                engine.step([StepRow(SEQUENCE, 0, tokens, draw=False)])
        begun = time.perf_counter()
        for done in range(ROUNDS_MAX):
            if done >= ROUNDS_MIN and time.perf_counter() - begun > SECONDS_MAX:
                break
            for index, engine in enumerate(engines):
                start = time.perf_counter()
                engine.step([StepRow(SEQUENCE, prefix, (0,), draw=True, sampling=GREEDY)])
                quickest[index] = min(quickest[index], time.perf_counter() - start)
                engine.trim(SEQUENCE, prefix)
                yield
    finally:
        for engine in engines:
            engine.close_sequence(SEQUENCE)
    return quickest


def _key(engine: StepEngine) -> tuple[object, ...]:
    """All that an engine's times depend on, as far as it says."""
    info = engine.info
    return info.architecture, info.parameters, info.weight_bytes, info.state_bytes_per_token, info.threads, info.kernels


def _kept() -> Any:
    """Where results are kept, beside compiled code; None on a machine that cannot compile."""
    try:
        from tripower.backends.picolm.native import kept
    except ImportError:
        return None
    return kept
