"""The threads of an engine: one native call for each job, workers parked in native code between jobs.

Workers are Python threads only to be started and joined; they enter `park` and hold no interpreter lock from then on. The calling
thread, the lane, takes part in every job.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading

import numpy as np
from numpy.typing import NDArray

from tripower.backends.picolm.native import executor
from tripower.backends.picolm.native.kernel_set import KernelSet
from tripower.backends.picolm.native.memory import address, zeros

ONE = (1).to_bytes(8, "little")


class Workers:
    """`threads` in all, the caller's included. `close` must be called on the thread that owns the engine."""

    def __init__(self, kernels: KernelSet, *, threads: int) -> None:
        self._run = kernels.function("run", None, ctypes.c_void_p, ctypes.c_void_p)
        self._park = kernels.function("park", None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)
        self.shared = zeros(executor.SHARED_WORDS, np.int64)
        self.shared[executor.TICKET] = np.uint64(executor.HALTED << (2 * executor.TILE_BITS)).astype(np.int64)
        self._scratch = [zeros(kernels.scratch_bytes, np.uint8) for _ in range(threads)]
        self._lane_arguments = address(self.shared), address(self._scratch[0])
        self._descriptors = zeros(max(threads - 1, 1), np.int64)
        self._pipes: list[_Wakeup] = []
        self._threads: list[threading.Thread] = []

    @property
    def lane_scratch(self) -> int:
        """Address of the calling thread's memory, free between jobs."""
        return self._lane_arguments[1]

    def start(self, stages: NDArray[np.int64], parts: NDArray[np.int64], boundary_words: NDArray[np.int64]) -> None:
        """Start the threads, for this program and no other. The arrays must outlive them. A failure leaves no thread."""
        assert len(stages) <= executor.STAGES_MAX and not self._threads
        self.shared[executor.STAGES], self.shared[executor.PARTS] = address(stages), address(parts)
        self.shared[executor.STAGE_COUNT] = len(stages)
        self.shared[executor.BOUNDARY_WORDS] = address(boundary_words)
        self.shared[executor.WORKER_FDS] = address(self._descriptors)
        try:
            for scratch in self._scratch[1:]:
                self._start_thread(scratch)
        except BaseException:
            self.close()
            raise
        self.shared[executor.WORKERS] = len(self._threads)

    def _start_thread(self, scratch: NDArray[np.uint8]) -> None:
        index = len(self._pipes)
        pipe = _Wakeup()
        self._pipes.append(pipe)
        self._descriptors[index] = pipe.write_fd
        thread = threading.Thread(
            target=self._park,
            args=(address(self.shared), address(scratch), pipe.read_fd),
            name=f"tripower-worker-{index + 1}",
            daemon=True,  # a program that ends without closing must not hang on a thread parked in native code
        )
        thread.start()
        self._threads.append(thread)

    def run(self) -> None:
        """One job. Blocks until the boundary halts; the interpreter lock is free meanwhile."""
        self._run(*self._lane_arguments)

    def close(self) -> None:
        """End the threads. Idempotent; nothing can be run afterwards."""
        self.shared[executor.WORKERS] = 0
        self.shared[executor.QUIT] = 1
        for pipe in self._pipes:
            with contextlib.suppress(BlockingIOError):  # a full pipe wakes its reader as well
                os.write(pipe.write_fd, ONE)
        for thread in self._threads:
            thread.join()
        for pipe in self._pipes:
            pipe.close()
        self._threads, self._pipes = [], []


class _Wakeup:
    """A descriptor that blocks its reader until it is written: an eventfd, or a pipe where there is none."""

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self.read_fd = self.write_fd = os.eventfd(0, os.EFD_CLOEXEC)
        else:
            self.read_fd, self.write_fd = os.pipe()
            os.set_blocking(self.write_fd, False)

    def close(self) -> None:
        for descriptor in {self.read_fd, self.write_fd}:
            os.close(descriptor)
