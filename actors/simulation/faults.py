"""A toy that fails on demand, and actors that crash on demand."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from tripower.actors.simulation.scenario import Faults
from tripower.backends.picolm.page_table import PageTable
from tripower.backends.toy import ToyEngine, ToyText
from tripower.runtime.engine import LoadedModel, LoadSpecification, Progress, StepRow
from tripower.runtime.kernel import Actor, LaneJob, ModelRefused


class InjectedCrash(Exception):
    """A handler was told to fail."""


class PagedToy(ToyEngine):
    """A toy with the page table of a real engine: it fails where that would lack a page, and tells what it holds."""

    def __init__(self, *, context: int, sequences_max: int, page_positions: int = 16) -> None:
        pages_max = -(-context // page_positions) * sequences_max
        super().__init__(context=context, sequences_max=sequences_max, page_positions=page_positions, pages_max=pages_max)
        self.table = PageTable(pages_max=pages_max, page_positions=page_positions)

    def open_sequence(self, sequence: int) -> None:
        super().open_sequence(sequence)
        self.table.open(sequence)

    def close_sequence(self, sequence: int) -> None:
        super().close_sequence(sequence)
        self.table.close(sequence)

    def trim(self, sequence: int, length: int) -> None:
        super().trim(sequence, length)
        self.table.trim(sequence, length)

    def fork(self, source: int, sequence: int, length: int) -> None:
        super().fork(source, sequence, length)
        self.table.close(sequence)
        self.table.fork(source, sequence, length)

    def step(self, rows: Sequence[StepRow]) -> list[int]:
        for row in rows:
            self.table.reserve(row.sequence, len(row.tokens))
        drawn = super().step(rows)
        for row in rows:
            self.table.commit(row.sequence, len(row.tokens))
        return drawn

    def close(self) -> None:
        for sequence in self.sequences():
            self.close_sequence(sequence)
        super().close()


class FaultyEngine(PagedToy):
    """One whose steps fail before they change anything, as the contract says they must."""

    def __init__(self, rng: random.Random, faults: Faults, *, context: int, sequences_max: int) -> None:
        super().__init__(context=context, sequences_max=sequences_max)
        self._rng = rng
        self._faults = faults

    def step(self, rows: Sequence[StepRow]) -> list[int]:
        if self._rng.random() < self._faults.step_fails:
            raise RuntimeError("injected: the step failed")
        return super().step(rows)


class FaultyBackend:
    """Loads `FaultyEngine`s, sometimes; remembers them all, to see what they still hold at the end."""

    name = "toy"

    def __init__(self, seed: int, faults: Faults) -> None:
        self.engines: list[FaultyEngine] = []
        self._rng = random.Random(seed)
        self._faults = faults

    def load(self, specification: LoadSpecification, progress: Progress) -> Iterator[LoadedModel | None]:
        progress("weights", 0.5)
        yield None
        if self._rng.random() < self._faults.load_fails:
            raise ModelRefused("injected: the load failed")
        yield None
        engine = FaultyEngine(
            random.Random(self._rng.getrandbits(32)), self._faults, context=256, sequences_max=specification.sequences_max
        )
        self.engines.append(engine)
        yield LoadedModel(engine, ToyText())


class Saboteur:
    """Makes the handlers of chosen actors crash, at most `crashes_max` times in a run."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self.crashes = 0
        self._rng = random.Random(seed)
        self._faults = faults

    def on_instance(self, name: str, actor: Actor[Any]) -> None:
        if name not in self._faults.crash_actors or not self._faults.crash_rate:
            return
        handle = actor.on_message

        async def sabotaged(message: Any) -> Any:
            before = self._rng.random() < 0.5
            crash = self.crashes < self._faults.crashes_max and self._rng.random() < self._faults.crash_rate
            self.crashes += crash
            if crash and before:
                raise InjectedCrash(f"{name} before {type(message).__name__}")
            answer = await handle(message)
            if crash:
                raise InjectedCrash(f"{name} after {type(message).__name__}")
            return answer

        actor.on_message = sabotaged  # type: ignore[method-assign]


class Pace:
    """How long a boundary of a lane job takes, on virtual time."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self._rng = random.Random(seed)
        self._faults = faults

    def __call__(self, job: LaneJob) -> float:
        if self._rng.random() < self._faults.step_slow:
            return self._faults.slow_seconds
        return self._rng.uniform(0.005, 0.03)
