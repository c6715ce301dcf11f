"""The engine's process, and what its parent asks of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tripower.backends.toy import ToyEngine
from tripower.bench.engine.child import awake, competitor, running_worker
from tripower.bench.engine.worker import PROMPT_TOKENS, StepTimer
from tripower.runtime.kernel import Unavailable


def test_steps_always_begin_at_the_same_positions() -> None:
    engine = ToyEngine(native=False)
    timer = StepTimer(engine)
    for rows, steps in ((2, 3), (1, 5), (4, 2), (2, 7)):
        assert timer.time_steps(rows, steps) > 0
        assert [engine.length(sequence) for sequence in range(rows)] == [PROMPT_TOKENS + steps] * rows
    assert engine.sequences() == [0, 1, 2, 3]


def test_a_worker_says_how_it_was_loaded_and_times_steps(tiny_gguf: Path, tmp_path: Path) -> None:
    with running_worker(tiny_gguf, threads=1, kernel_cache=tmp_path) as worker:
        assert worker.loaded["weight_bytes"] > 0
        assert 0 < worker.loaded["load_seconds"] < worker.start_seconds
        assert worker.step_milliseconds(1, 2) > 0
        assert worker.step_milliseconds(3, 2) > 0


@pytest.mark.long
def test_a_worker_that_fails_is_quoted(tmp_path: Path) -> None:
    with (
        pytest.raises(Unavailable, match="there is no model file"),
        running_worker(tmp_path / "nothing.gguf", threads=1),
    ):
        raise AssertionError("it cannot have been loaded")


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes cannot be stopped here")
def test_a_competitor_runs_only_while_it_is_awake() -> None:
    with competitor(0.3) as process:
        for _ in range(2):
            stopped = os.waitid(os.P_PID, process.pid, os.WSTOPPED)  # blocks until it is
            assert stopped is not None and stopped.si_code == os.CLD_STOPPED
            with awake(process):
                resumed = os.waitid(os.P_PID, process.pid, os.WCONTINUED)
                assert resumed is not None and resumed.si_code == os.CLD_CONTINUED
    assert process.returncode is not None
