"""Which device computes, and where its work is issued.

`engine.device` is `auto`, `cpu`, `cuda` or `cuda:N`. `auto` is a CUDA device where there is one. What was asked for by name and is not
there is refused with what would help, and never replaced.

A device has one stream for each lane, of high priority, on which everything of ours runs: steps, copies, captures and replays, one after
the other. What torch has as switches of the process is set when a CUDA device is first used, because it has no other form; a program
that only uses the processor finds every switch as it left it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from tripower.backends.picolm.accelerated.graph_cache import Capture
from tripower.runtime.kernel.errors import ModelRefused

AUTO, CPU, CUDA = "auto", "cpu", "cuda"
PRIORITY = -1
"""Of streams: below zero goes before others of the process."""
WORKSPACE, WORKSPACES = "CUBLAS_WORKSPACE_CONFIG", (":4096:8", ":16:8")
"""With one of these cuBLAS gives the same bits twice."""

Outputs = TypeVar("Outputs")


def choose_device(wanted: str) -> torch.device:
    """What `engine.device` stands for on this machine. Raises `ModelRefused` (`device_not_available`) naming what would help."""
    if wanted == CPU:
        return torch.device(CPU)
    available = torch.cuda.is_available()
    if wanted == AUTO and not available:
        return torch.device(CPU)
    if wanted not in (AUTO, CUDA) and not wanted.startswith(f"{CUDA}:"):
        raise _refused(f"there is no kind of device called {wanted}: set engine.device to auto, cpu, cuda or cuda:N")
    if not available:
        raise _refused(f"{wanted} was asked for, and {_why_no_cuda()}, or set engine.device to cpu")
    number, count = wanted.partition(":")[2] or "0", torch.cuda.device_count()
    if not number.isdecimal() or int(number) >= count:
        raise _refused(f"{wanted} was asked for, and the CUDA devices here are {CUDA}:0 to {CUDA}:{count - 1}")
    return torch.device(CUDA, int(number))


def device_name(device: torch.device) -> str:
    """For people."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == CUDA else CPU


class Stream:
    """Where an engine's work is issued. This is the processor's, where a call returns when its work is done."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Around every use of the device; also chooses inference mode, which torch keeps for each thread."""
        with torch.inference_mode():
            yield

    def wait(self) -> None:
        """Block until everything that was issued has ended."""

    def bytes_free(self) -> int | None:
        """Of the device's memory; None where the host's is meant."""
        return None

    def free_scratch(self) -> None:
        """Give unused memory back to the device."""

    def capture(self, work: Callable[[], Outputs]) -> Capture[Outputs]:
        """Record what `work` launches. Raises `NotImplementedError` where nothing can be recorded."""
        raise NotImplementedError(f"{self.device} has no graphs")


class CudaStream(Stream):
    """A stream of a CUDA device with the pool that its captures share: they are replayed one at a time."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        apply_numerics()
        make_stream: Any = torch.cuda.Stream
        self._stream = make_stream(device, priority=PRIORITY)
        self._pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def entered(self) -> Iterator[None]:
        with torch.inference_mode(), torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            yield

    def wait(self) -> None:
        self._stream.synchronize()

    def bytes_free(self) -> int | None:
        return torch.cuda.mem_get_info(self.device)[0]

    def free_scratch(self) -> None:
        torch.cuda.empty_cache()

    def capture(self, work: Callable[[], Outputs]) -> Capture[Outputs]:
        return CudaCapture(self.device, self._stream, self._pool, work)


class CudaCapture(Capture[Outputs]):
    """A CUDA graph. Its outputs are overwritten by the next replay of any capture of the stream.

    Recorded in the mode `thread_local`: in the default one an allocation of any other thread of the process would end the capture.
    """

    def __init__(self, device: torch.device, stream: Any, pool: Any, work: Callable[[], Outputs]) -> None:
        torch.cuda.empty_cache()  # so that what is reserved afterwards is the capture's
        before = torch.cuda.memory_reserved(device)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            self._outputs = work()
        self.nbytes = max(0, torch.cuda.memory_reserved(device) - before)

    def replay(self) -> Outputs:
        self._graph.replay()
        return self._outputs

    def close(self) -> None:
        """Give its memory back to the pool; nothing of it may be running."""
        self._graph.reset()
        del self._outputs


@functools.cache
def open_stream(device: torch.device) -> Stream:
    """The stream of a device's lane, shared by all models that are resident there."""
    return CudaStream(device) if device.type == CUDA else Stream(device)


def apply_numerics() -> None:
    """float32 is float32 and the same twice: no TF32, no reductions in 16 bits, deterministic algorithms. For the whole process.

    Memory is not filled before it is used, which torch otherwise does beside deterministic algorithms.
    """
    if os.environ.get(WORKSPACE) not in WORKSPACES:
        os.environ[WORKSPACE] = WORKSPACES[0]  # cuBLAS reads it when it is first used
    matmul: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    matmul.fp32_precision = "ieee"
    cudnn.conv.fp32_precision = "ieee"
    matmul.allow_bf16_reduced_precision_reduction = False
    matmul.allow_fp16_reduced_precision_reduction = False
    torch.use_deterministic_algorithms(True)
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = False


def _why_no_cuda() -> str:
    if torch.version.cuda is None:
        return f"this build of torch ({torch.__version__}) is without CUDA: install one that has it"
    return "torch finds no CUDA device: look at the driver and at CUDA_VISIBLE_DEVICES"


def _refused(message: str) -> ModelRefused:
    return ModelRefused(message, code="device_not_available", param="engine.device")
