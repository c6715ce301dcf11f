"""One engine in a process of its own: it says how it was loaded, then times steps when asked.

    python -m tripower.bench.engine.worker --model FILE --threads N

A line of JSON comes first, with what the load took; then each line of `{"rows": N, "steps": N}` on standard input is answered by a
line `{"milliseconds": …}`, the time of one step. Every module that a load needs is imported before its clock starts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tripower.api.cli.settings import wait_without_spinning
from tripower.runtime.engine import SamplingParameters, StepEngine, StepTable

PROMPT_TOKENS = 16
"""Positions that every sequence has before the clock starts."""
STEPS_MAX = 256
ROWS_MAX = 256
CONTEXT = 2048
SEQUENCES = 16
FIRST_TOKEN = 10
MILLI = 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context", type=int, default=CONTEXT)
    parser.add_argument("--sequences", type=int, default=SEQUENCES)
    options = parser.parse_args()
    wait_without_spinning()
    engine, loaded = load(options)
    _say(loaded)
    timer = StepTimer(engine)
    for line in sys.stdin:
        asked = json.loads(line)
        _say({"milliseconds": timer.time_steps(asked["rows"], asked["steps"])})


def load(options: argparse.Namespace) -> tuple[StepEngine, dict[str, Any]]:
    """The engine, and what its load took. Blocks."""
    import tripower.backends.picolm.backend
    import tripower.backends.text.layer  # noqa: F401 - what a load imports late
    from tripower.bench.engines import load_model

    before = anonymous_bytes()
    began = time.perf_counter()
    engine = load_model(options.model, context=options.context, sequences=options.sequences, threads=options.threads).engine
    seconds = time.perf_counter() - began
    info = engine.info
    return engine, {
        "load_seconds": seconds,
        "weight_bytes": info.weight_bytes,
        "anonymous_bytes": anonymous_bytes() - before,
        "engine": ", ".join(part for part in (info.backend, info.kernels, info.determinism) if part),
    }


def anonymous_bytes() -> int:
    """Memory of this process without mapped files; 0 where the system does not tell."""
    try:
        with open("/proc/self/status") as lines:
            return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon", "VmSwap")))
    except OSError:
        return 0


class StepTimer:
    """Runs steps of some rows, one row a sequence, always from the same positions on."""

    def __init__(self, engine: StepEngine) -> None:
        self._engine = engine
        self._table = StepTable(slots_max=SEQUENCES, steps_max=STEPS_MAX, rows_max=ROWS_MAX)
        self._prepared = 0

    def time_steps(self, rows: int, steps: int) -> float:
        """Milliseconds of one step of `rows` rows, over `steps` of them that run ahead. Blocks."""
        self._prepare(rows)
        self._table.clear(steps_max=steps)
        for sequence in range(rows):
            self._add(sequence, PROMPT_TOKENS, [FIRST_TOKEN + sequence], remaining=steps + 1)
        began = time.perf_counter()
        self._run()
        seconds = time.perf_counter() - began
        assert self._table.steps_done == steps, f"{self._table.steps_done} steps of {steps}"
        return seconds / steps * MILLI

    def _prepare(self, rows: int) -> None:
        """Give every sequence its prompt, and take back what was generated since."""
        for sequence in range(min(rows, self._prepared)):
            self._engine.trim(sequence, PROMPT_TOKENS)
        if rows <= self._prepared:
            return
        self._table.clear(steps_max=STEPS_MAX)
        for sequence in range(self._prepared, rows):
            self._engine.open_sequence(sequence)
            self._add(sequence, 0, _prompt(sequence), remaining=0)
        for sequence in range(self._prepared):
            self._engine.trim(sequence, PROMPT_TOKENS)
        self._prepared = rows
        self._run()

    def _add(self, sequence: int, position: int, pending: Sequence[int], *, remaining: int) -> None:
        self._table.add(
            sequence=sequence,
            position=position,
            pending=pending,
            remaining=remaining,
            output_index=0,
            sampling=SamplingParameters(temperature=0.0),
            ends=frozenset(),
            history=(),
            prompt_length=PROMPT_TOKENS,
        )

    def _run(self) -> None:
        for _ in self._engine.run(self._table):
            continue


def _prompt(sequence: int) -> list[int]:
    return [FIRST_TOKEN + sequence + position for position in range(PROMPT_TOKENS)]


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
