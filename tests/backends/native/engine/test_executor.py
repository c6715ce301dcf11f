"""Stages, tiles and threads, with kernels that write down what happened to them."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import pytest
from llvmlite import ir
from numpy.typing import NDArray

from tripower.backends.picolm.native import executor
from tripower.backends.picolm.native.compile import Code, compile_module
from tripower.backends.picolm.native.emit import I32, I64, PTR, Function, Kernel, i64
from tripower.backends.picolm.native.executor import emit_executor
from tripower.backends.picolm.native.kernel_set import KernelSet
from tripower.backends.picolm.native.memory import address, zeros
from tripower.backends.picolm.native.stages import Part, Stages
from tripower.backends.picolm.native.target import host_target
from tripower.backends.picolm.native.workers import Workers

GOING, STEPS_LEFT, STEP, HALT, SHARED, COUNTS, CHANGES = range(7)
"""Words of these tests' boundary. `CHANGES`: address of the counts of each step, int64 [steps][COUNTS_MAX]."""
COUNTS_MAX = 4
ONE = COUNTS_MAX - 1
"""A count that is always 1."""
LOG_MAX = 1 << 16
WAITS_MAX = 10_000_000
"""Times that a tile which waits for company gives way before it gives up."""


def _build(module: ir.Module) -> None:
    plan = Function(module, "plan_step", [PTR], I64)
    plan.done(plan.load(plan.args[0], GOING, I64))
    emit_executor(module, host_target().architecture)
    _build_note(module)
    _build_meet(module)
    _build_boundary(module)


def _build_note(module: ir.Module) -> None:
    """Words: 0 log int64 [entries], 1 address of the number of entries, 2 mark, 3 scratch addresses int64 [entries]."""
    kernel = Kernel(module, "note")
    b = kernel.b
    entry = b.atomic_rmw("add", kernel.pointer(1), i64(1), "acq_rel")
    kernel.store(b.or_(b.shl(kernel.number(2), i64(32)), kernel.tile), kernel.pointer(0), entry)
    kernel.store(b.ptrtoint(kernel.scratch, I64), kernel.pointer(3), entry)
    kernel.done()


def _build_meet(module: ir.Module) -> None:
    """A tile that waits until as many are inside as word 1 says. Words: 0 address of their number, 2 address of a mark of failure."""
    kernel = Kernel(module, "meet")
    b = kernel.b
    b.atomic_rmw("add", kernel.pointer(0), i64(1), "acq_rel")
    waits = kernel.variable(I64)
    with kernel.forever() as leave:
        inside = kernel.load_shared(kernel.pointer(0), 0)
        kernel.leave_if(b.icmp_signed(">=", inside, kernel.number(1)), leave)
        waits.add(i64(1))
        given_up = b.icmp_signed(">", waits.get(), i64(WAITS_MAX))
        with b.if_then(given_up):
            kernel.store(i64(1), kernel.pointer(2), 0)
        kernel.leave_if(given_up, leave)
        kernel.external("sched_yield", I32, [])
    kernel.done()


def _build_boundary(module: ir.Module) -> None:
    kernel = Kernel(module, "boundary")
    b = kernel.b
    step = b.add(kernel.number(STEP), i64(1))
    kernel.store(step, kernel.words, STEP)
    left = b.sub(kernel.number(STEPS_LEFT), i64(1))
    kernel.store(left, kernel.words, STEPS_LEFT)
    with b.if_then(b.icmp_signed("==", left, i64(0))):
        kernel.store_shared(i64(1), kernel.pointer(HALT), 0)
    changes = kernel.number(CHANGES)
    with b.if_then(b.icmp_signed("!=", changes, i64(0))):
        following = kernel.at(kernel.pointer(CHANGES), b.mul(step, i64(COUNTS_MAX)), I64)
        with kernel.loop(i64(0), i64(COUNTS_MAX)) as index:
            kernel.store(kernel.load(following, index, I64), kernel.pointer(COUNTS), index)
        b.call(module.globals["prepare"], [kernel.pointer(SHARED)])
    kernel.done()


@functools.cache
def compiled() -> Code:
    return compile_module(_build, host_target())


class Kernels:
    """What `Workers` asks a kernel set for."""

    scratch_bytes = 256

    def function(self, name: str, result: Any, *parameters: Any) -> Callable[..., Any]:
        return compiled().function(name, result, *parameters)


class Machine:
    """An executor over a list of stages, each with the tiles of its parts: `[(columns, count), …]`."""

    def __init__(self, threads: int, stages: Sequence[Sequence[tuple[int, int]]], *, rows_per_tile: int = 1) -> None:
        self.counts = zeros(COUNTS_MAX, np.int64)
        self.counts[ONE] = 1
        self._log, self._scratch, self._entries = zeros(LOG_MAX, np.int64), zeros(LOG_MAX, np.int64), zeros(1, np.int64)
        self._meeting, self._failed = zeros(1, np.int64), zeros(1, np.int64)
        self._words = zeros(8, np.int64)
        self._plan = Stages()
        mark = 0
        for parts in stages:
            made = []
            for columns, count in parts:
                words = (address(self._log), address(self._entries), mark, address(self._scratch))
                made.append(Part("note", words, columns, count, rows_per_tile))
                mark += 1
            self._plan.add(*made)
        self.workers = Workers(cast("KernelSet", Kernels()), threads=threads)
        self._threads = threads

    def start(self, *, meeting: bool = False) -> Machine:
        if meeting:
            words = (address(self._meeting), self._threads, address(self._failed))
            self._plan.add(Part("meet", words, self._threads, ONE))
        self._plan.add(Part("boundary", (), 1, ONE))
        self._linked = self._plan.link(compiled().address, self.counts, self._words)
        self.workers.start(self._linked.stages, self._linked.parts, self._words)
        return self

    def run(self, steps: int, changes: NDArray[np.int64] | None = None, *, going: int = 1) -> list[tuple[int, int]]:
        """One job; (mark, tile) of everything that ran, in order. `changes`: the counts of each step and the one after."""
        self._entries[0] = self._meeting[0] = 0
        shared = self.workers.shared
        self._words[:7] = (
            going, steps, 0, address(shared) + 8 * executor.HALT, address(shared), address(self.counts),
            0 if changes is None else address(changes),
        )  # fmt: skip
        if changes is not None:
            self.counts[:] = changes[0]
        self.workers.run()
        assert not self._failed[0], "the threads did not meet"
        return [(int(entry) >> 32, int(entry) & 0xFFFFFFFF) for entry in self._log[: self._entries[0]]]

    @property
    def scratches(self) -> set[int]:
        return set(self._scratch[: self._entries[0]].tolist())


@pytest.fixture
def machine() -> Iterator[Callable[..., Machine]]:
    made: list[Machine] = []

    def make(*arguments: Any, **options: Any) -> Machine:
        made.append(Machine(*arguments, **options))
        return made[-1]

    yield make
    for each in made:
        each.workers.close()


def in_stages(found: list[tuple[int, int]], stages: Sequence[dict[int, int]], steps: int) -> bool:
    """Whether the log is, step after step and stage after stage, every tile of every part once. A stage: tiles by mark."""
    at = 0
    for _ in range(steps):
        for stage in stages:
            expected = {(mark, tile) for mark, tiles in stage.items() for tile in range(tiles)}
            if set(found[at : at + len(expected)]) != expected:
                return False
            at += len(expected)
    return at == len(found)


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_every_tile_runs_once_in_its_stage_and_stages_follow_each_other(threads: int, machine: Any) -> None:
    made = machine(threads, [[(7, 0)], [(1, ONE)], [(2, 0), (5, 1), (40, ONE)]], rows_per_tile=2).start()
    made.counts[:2] = 5, 4
    found = made.run(30)
    assert in_stages(found, [{0: 21}, {1: 1}, {2: 6, 3: 10, 4: 40}], 30)
    assert len(made.scratches) <= threads and all(each % 64 == 0 for each in made.scratches)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_many_jobs_follow_each_other_without_a_tile_too_many(threads: int, machine: Any) -> None:
    made = machine(threads, [[(3, ONE)], [(1, ONE)]]).start()
    for job in range(300):
        steps = 1 + job % 3
        assert in_stages(made.run(steps), [{0: 3}, {1: 1}], steps)


@pytest.mark.parametrize("threads", [1, 3])
def test_stages_without_tiles_are_passed_over(threads: int, machine: Any) -> None:
    made = machine(threads, [[(4, 0)], [(3, 1), (2, 0)], [(2, 2)]]).start()
    for counts, tiles in [((0, 1, 0), [{1: 3}]), ((0, 0, 0), []), ((1, 0, 1), [{0: 4}, {2: 2}, {3: 2}])]:
        made.counts[:3] = counts
        assert in_stages(made.run(5), tiles, 5)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_the_boundary_decides_how_many_tiles_the_next_step_has(threads: int, machine: Any) -> None:
    made = machine(threads, [[(2, 0)], [(1, 1)]]).start()
    changes = np.array([[step % 5, (step * 7) % 3, 0, 1] for step in range(41)], np.int64)
    found, at = made.run(40, changes), 0
    for step in range(40):
        first, second = 2 * changes[step, 0], changes[step, 1]
        assert in_stages(found[at : at + first + second], [{0: first}, {1: second}], 1)
        at += first + second
    assert at == len(found)


def test_a_job_whose_first_step_has_no_rows_runs_nothing(machine: Any) -> None:
    made = machine(2, [[(4, ONE)]]).start()
    assert made.run(3, going=0) == []
    assert in_stages(made.run(1), [{0: 4}], 1)


@pytest.mark.parametrize("threads", [2, 3, 4])
def test_all_threads_take_part(threads: int, machine: Any) -> None:
    made = machine(threads, [[(1, ONE)]]).start(meeting=True)
    for _ in range(3):
        assert made.run(1) == [(0, 0)]


def test_a_worker_that_wakes_between_jobs_finds_nothing_to_do(machine: Any) -> None:
    made = machine(3, [[(5, ONE)]]).start()
    for job in range(50):
        for pipe in made.workers._pipes:
            os.write(pipe.write_fd, (1).to_bytes(8, "little"))
        assert in_stages(made.run(1 + job % 2), [{0: 5}], 1 + job % 2)


def workers_alive() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("tripower-worker")]


def test_closing_ends_the_threads_and_gives_their_descriptors_back() -> None:
    process = psutil.Process()
    before, alive = process.num_fds(), workers_alive()
    made = Machine(4, [[(3, ONE)]]).start()
    assert len(workers_alive()) == len(alive) + 3
    made.run(2)
    for _ in range(2):
        made.workers.close()
        assert workers_alive() == alive and process.num_fds() == before


def test_pipes_do_where_there_is_no_eventfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "eventfd", raising=False)
    process = psutil.Process()
    before, alive = process.num_fds(), workers_alive()
    made = Machine(3, [[(3, ONE)]]).start(meeting=True)
    for _ in range(20):
        assert in_stages(made.run(1), [{0: 3}], 1)
    made.workers.close()
    assert workers_alive() == alive and process.num_fds() == before


def test_a_program_that_ends_without_closing_ends() -> None:
    code = f"from {__name__} import Machine, ONE; Machine(3, [[(3, ONE)]]).start().run(2); print('done')"
    root = Path(__file__).parents[4]
    child = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=120, check=False)
    assert (child.returncode, child.stdout) == (0, "done\n"), child.stderr


def test_workers_that_never_ran_a_job_can_be_closed() -> None:
    alive = workers_alive()
    Machine(3, [[(3, ONE)]]).start().workers.close()
    assert workers_alive() == alive


def test_a_thread_that_cannot_be_started_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    process = psutil.Process()
    before, alive, start = process.num_fds(), workers_alive(), threading.Thread.start

    def failing(thread: threading.Thread) -> None:
        if thread.name == "tripower-worker-2":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", failing)
    with pytest.raises(RuntimeError):
        Machine(4, [[(3, ONE)]]).start()
    assert workers_alive() == alive and process.num_fds() == before


def test_two_executors_do_not_meet(machine: Any) -> None:
    first, second = (machine(2, [[(tiles, ONE)]]).start() for tiles in (6, 9))
    for _ in range(20):
        assert in_stages(first.run(2), [{0: 6}], 2)
        assert in_stages(second.run(3), [{0: 9}], 3)


def test_executors_run_side_by_side_on_threads_of_their_own(machine: Any) -> None:
    machines = [machine(2, [[(tiles, ONE)], [(2, ONE)]]).start() for tiles in (6, 9)]
    good: list[bool] = []

    def work(made: Machine, tiles: int) -> None:
        for _ in range(50):
            good.append(in_stages(made.run(4), [{0: tiles}, {1: 2}], 4))

    threads = [threading.Thread(target=work, args=pair) for pair in zip(machines, (6, 9), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(good) == 100 and all(good)
