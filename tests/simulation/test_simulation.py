"""The whole runtime on virtual time under injected faults, over many seeds; and proof that the checks can fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tripower.actors.model_queue import ModelQueueActor
from tripower.actors.queueing import Leave
from tripower.actors.simulation.harness import ENDS, simulate
from tripower.actors.simulation.runner import repeat_command, run_parallel
from tripower.actors.simulation.scenario import draw_scenario
from tripower.backends.toy import ToyEngine
from tripower.bench.simulate import main
from tripower.runtime.admission import Gate
from tripower.runtime.kernel import Outlet


@pytest.mark.parametrize("seeds", [250, pytest.param(1000, marks=pytest.mark.long)])
def test_every_seed_keeps_every_invariant(seeds: int) -> None:
    ends = dict.fromkeys(ENDS, 0)
    crashes = 0
    broken = []
    for report in run_parallel(0, seeds, os.cpu_count() or 1):
        crashes += report.crashes
        for end, count in report.ends.items():
            ends[end] += count
        if report.violations:
            broken.append(f"{report.violations}\nrepeat with: {repeat_command(report.seed)}")
    assert not broken, "\n".join(broken)
    # Every kind of end was seen, so that none of the checks was idle.
    assert all(ends.values()) and crashes > seeds / 10


def trace_hash_under(hash_seed: str) -> str:
    command = [
        sys.executable,
        "-m",
        "tripower.bench.simulate",
        "--first",
        "5000",
        "--seeds",
        "120",
        "--processes",
        "1",
        "--json",
    ]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return str(json.loads(finished.stdout)["cells"][0]["note"])


@pytest.mark.long
def test_the_trace_is_the_same_in_three_processes_with_different_hash_seeds() -> None:
    assert len({trace_hash_under(seed) for seed in ("0", "1", "4242")}) == 1


def test_a_seed_repeats_its_run() -> None:
    for seed in range(20):
        assert simulate(seed).trace == simulate(seed).trace


def test_a_failure_prints_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ToyEngine, "close_sequence", lambda self, sequence: None)
    assert main(["--seeds", "40", "--processes", "1"]) == 1
    assert "repeat with: tripower bench simulate --first" in capsys.readouterr().err


def forget_to_close(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ToyEngine, "close_sequence", lambda self, sequence: None)


def forget_to_leave(patch: pytest.MonkeyPatch) -> None:
    handle = ModelQueueActor.on_message

    async def deaf(self: ModelQueueActor, message: Any) -> Any:
        return None if isinstance(message, Leave) else await handle(self, message)

    patch.setattr(ModelQueueActor, "on_message", deaf)


def deliver_twice(patch: pytest.MonkeyPatch) -> None:
    put = Outlet.put

    def twice(self: Outlet[Any], item: Any) -> None:
        self._room += 1
        put(self, item)
        put(self, item)

    patch.setattr(Outlet, "put", twice)


def keep_the_permit(patch: pytest.MonkeyPatch) -> None:
    leave = Gate.leave

    def sometimes(self: Gate[int], ticket: int, *, expired: bool = False, served: float | None = None) -> None:
        if ticket % 7:
            leave(self, ticket, expired=expired, served=served)

    patch.setattr(Gate, "leave", sometimes)


def mix_up_rows(patch: pytest.MonkeyPatch) -> None:
    step = ToyEngine.step
    patch.setattr(ToyEngine, "step", lambda self, rows: list(reversed(step(self, rows))))


@pytest.mark.parametrize("bug", [forget_to_close, forget_to_leave, deliver_twice, keep_the_permit, mix_up_rows])
def test_the_checks_notice_a_planted_bug(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    assert any(report.violations for report in run_parallel(0, 60, 1))


def test_scenarios_cover_every_fault() -> None:
    faults = [draw_scenario(seed).faults for seed in range(300)]
    assert any(fault.step_fails == 1 for fault in faults)
    assert any(fault.slow_seconds > 100 and fault.step_slow for fault in faults)
    assert any(fault.load_fails for fault in faults)
    assert any(fault.shutdown_at is not None for fault in faults)
    assert {name for fault in faults if fault.crash_rate for name in fault.crash_actors} == {
        "queue:toy",
        "device:cpu0",
        "registry",
    }
