"""Workers and competitors as their parent sees them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tripower.bench.children import end_process, module_command
from tripower.runtime.kernel import Unavailable

KERNEL_CACHE = "TRIPOWER_KERNEL_CACHE"
LOG_TAIL = 1500


class Worker:
    """A process of `worker.py`. Every method blocks and raises `Unavailable` with its last words when it has ended."""

    def __init__(self, process: subprocess.Popen[str], log: Any, began: float) -> None:
        self._process = process
        self._log = log
        self.loaded: Mapping[str, Any] = self._answer()
        """What it said of its load."""
        self.start_seconds = time.perf_counter() - began
        """From the start of the process until the model was loaded."""

    def step_milliseconds(self, rows: int, steps: int) -> float:
        """The time of one step of so many rows, over some steps."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"rows": rows, "steps": steps}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._gone() from error
        return float(self._answer()["milliseconds"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._gone()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _gone(self) -> Unavailable:
        self._process.wait()
        self._log.seek(0)
        words = self._log.read().decode(errors="replace")[-LOG_TAIL:].strip()
        return Unavailable(f"the engine's process ended with status {self._process.returncode}: {words}")


@contextmanager
def running_worker(
    model: Path, *, threads: int, kernel_cache: Path | None = None, sequences: int | None = None
) -> Iterator[Worker]:
    """Start a worker and wait until its model is loaded; it ends with the block. `kernel_cache` is the folder for compiled code."""
    command = module_command("tripower.bench.engine.worker", "--model", str(model), "--threads", str(threads))
    if sequences is not None:
        command += ["--sequences", str(sequences)]
    environment = dict(os.environ) | ({KERNEL_CACHE: str(kernel_cache)} if kernel_cache else {})
    with tempfile.TemporaryFile() as log:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
        try:
            yield Worker(process, log, began)
        finally:
            end_process(process)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


@contextmanager
def competitor(share: float) -> Iterator[subprocess.Popen[bytes]]:
    """A process that keeps a core busy for a share of the time; stopped until `awake`."""
    process = subprocess.Popen(module_command("tripower.bench.engine.competitor", str(share)))
    try:
        process.send_signal(signal.SIGSTOP)
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        end_process(process)


@contextmanager
def awake(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Let a competitor run for the length of the block."""
    process.send_signal(signal.SIGCONT)
    try:
        yield
    finally:
        process.send_signal(signal.SIGSTOP)
