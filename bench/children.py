"""Servers that a bench starts, watches and ends: its own, a bare one, or a peer's."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import psutil
import trio

from tripower.bench.http_client import HttpConnection, build_request
from tripower.runtime.kernel import Unavailable

START_SECONDS = 180.0
END_SECONDS = 15.0
POLL_SECONDS = 0.05
LOG_TAIL = 1500
CPU_CLOCK_OF_PROCESS = 2
"""`CPUCLOCK_SCHED`: with a negated process id it names the processor-time clock of that process, in nanoseconds."""


class Server:
    """A child process that answers HTTP on `port`."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: int) -> None:
        self.process = process
        self.port = port
        self._log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    def cpu_seconds(self) -> float:
        """User and system time of the process so far, all threads."""
        if sys.platform == "linux":
            return time.clock_gettime(~self.pid << 3 | CPU_CLOCK_OF_PROCESS)
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system

    def anonymous_bytes(self) -> int:
        """Memory of its own, resident or swapped out, without mapped files such as a model's. What the system calls resident,
        where it does not tell them apart."""
        try:
            with open(f"/proc/{self.pid}/status") as lines:
                fields = dict(line.split(":", 1) for line in lines if line.startswith(("RssAnon", "VmSwap")))
            return sum(int(value.split()[0]) * 1024 for value in fields.values())
        except OSError:
            return int(psutil.Process(self.pid).memory_info().rss)

    def log_bytes(self, offset: int = 0) -> bytes:
        """What it has written so far into its log, from `offset` on. While it runs only."""
        return os.pread(self._log, max(0, os.fstat(self._log).st_size - offset), offset)

    def resident_bytes(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the process for the length of the block, so that whoever is measured has the machine to itself."""
        if not hasattr(signal, "SIGSTOP"):
            yield
            return
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


def module_command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module of ours in a child."""
    return [sys.executable, "-m", module, *arguments]


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def running_server(
    command: Sequence[str], *, name: str, ready_path: str = "/health", output: int | None = None
) -> AsyncIterator[Server]:
    """Start a server and wait until it is ready; it ends with the block. `{port}` in the command stands for its port.

    Its standard output goes to the descriptor `output`, if given, else with its errors into a log. Blocks for as long as it loads. Raises `Unavailable` with the end of its log when it ends or does not become ready in time.
    """
    port = free_port()
    with tempfile.TemporaryFile() as log:
        process = _start([part.replace("{port}", str(port)) for part in command], log.fileno(), output)
        server = Server(process, port, log.fileno())
        try:
            with trio.move_on_after(START_SECONDS) as patience:
                while not await _is_ready(server, ready_path):
                    if process.poll() is not None:
                        raise Unavailable(
                            f"{name} ended with status {process.returncode} before it was ready:\n{_tail(log.fileno())}"
                        )
                    await trio.sleep(POLL_SECONDS)
            if patience.cancelled_caught:
                raise Unavailable(f"{name} was not ready after {START_SECONDS:.0f} seconds:\n{_tail(log.fileno())}")
            yield server
        finally:
            end_process(process)


def _start(command: Sequence[str], log: int, output: int | None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log if output is None else output, stderr=log)


async def _is_ready(server: Server, path: str) -> bool:
    try:
        async with HttpConnection(server.port) as connection:
            return (await connection.fetch(build_request("GET", path))).status == 200
    except Unavailable:
        return False


def end_process(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Ask a process to end, then make it. Blocks for `END_SECONDS` at most, twice."""
    for stop in (process.terminate, process.kill):
        if process.poll() is not None:
            return
        stop()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            continue


def _tail(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, LOG_TAIL, max(0, size - LOG_TAIL)).decode(errors="replace").strip()
