"""Which device is chosen, what is refused, and the CUDA lines with torch's side of them replaced."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tripower.backends.picolm.accelerated import device as module
from tripower.backends.picolm.accelerated.device import CudaStream, Stream, apply_numerics, choose_device, device_name
from tripower.runtime.kernel.errors import ModelRefused

CPU = torch.device("cpu")


@pytest.fixture
def cuda_devices(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`cuda_devices(2)`: a machine with two of them."""

    def pretend(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return pretend


@pytest.mark.parametrize(
    ("wanted", "count", "expected"),
    [
        ("auto", 0, "cpu"),
        ("cpu", 0, "cpu"),
        ("cpu", 2, "cpu"),
        ("auto", 1, "cuda:0"),
        ("cuda", 1, "cuda:0"),
        ("cuda:1", 2, "cuda:1"),
    ],
)
def test_auto_takes_cuda_where_there_is_one(
    wanted: str, count: int, expected: str, cuda_devices: Callable[[int], None]
) -> None:
    cuda_devices(count)
    assert str(choose_device(wanted)) == expected


@pytest.mark.parametrize(
    ("wanted", "count", "said"),
    [
        ("cuda", 0, "cuda was asked for, and this build of torch"),
        ("cuda:1", 0, "or set engine.device to cpu"),
        ("cuda:2", 2, "the CUDA devices here are cuda:0 to cuda:1"),
        ("cuda:x", 2, "cuda:0 to cuda:1"),
        ("tpu", 2, "auto, cpu, cuda or cuda:N"),
    ],
)
def test_a_device_that_is_not_there_is_refused_with_what_helps(
    wanted: str, count: int, said: str, cuda_devices: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    cuda_devices(count)
    with pytest.raises(ModelRefused, match=said) as caught:
        choose_device(wanted)
    assert (caught.value.code, caught.value.param) == ("device_not_available", "engine.device")


def test_a_build_with_cuda_and_no_device_points_to_the_driver(
    cuda_devices: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda_devices(0)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with pytest.raises(ModelRefused, match="CUDA_VISIBLE_DEVICES"):
        choose_device("cuda")


def test_the_processor_has_no_stream_and_no_graphs() -> None:
    stream = Stream(CPU)
    with stream.entered():
        assert torch.is_inference_mode_enabled()
    assert not torch.is_inference_mode_enabled()
    stream.wait()
    stream.free_scratch()
    assert stream.bytes_free() is None and device_name(CPU) == "cpu"
    with pytest.raises(NotImplementedError):
        stream.capture(lambda: 1)


SWITCHES: tuple[tuple[Any, str], ...] = (
    (torch.backends.cuda.matmul, "fp32_precision"),
    (torch.backends.cudnn.conv, "fp32_precision"),  # type: ignore[attr-defined]
    (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
    (torch.utils.deterministic, "fill_uninitialized_memory"),
)


def switches() -> list[object]:
    return [getattr(owner, name) for owner, name in SWITCHES] + [torch.are_deterministic_algorithms_enabled()]


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = switches()
    monkeypatch.delenv(module.WORKSPACE, raising=False)
    yield
    torch.use_deterministic_algorithms(bool(before[-1]))
    for (owner, name), value in zip(SWITCHES, before, strict=False):
        setattr(owner, name, value)


def test_numerics_are_float32_and_deterministic(restored: None) -> None:
    apply_numerics()
    assert switches() == ["ieee", "ieee", False, False, False, True]
    assert os.environ[module.WORKSPACE] == ":4096:8"


def test_the_processor_leaves_every_switch_as_it_was(restored: None) -> None:
    before = switches()
    module.open_stream.cache_clear()
    with module.open_stream(CPU).entered():
        torch.zeros(2) + 1
    assert switches() == before and module.WORKSPACE not in os.environ


class FakeCuda:
    """What of `torch.cuda` a stream uses, and in which order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[Any] = []
        self.reserved = 1000
        fake = self

        class FakeStream:
            def __init__(self, device: torch.device, priority: int) -> None:
                fake.calls.append(("stream", str(device), priority))

            def synchronize(self) -> None:
                fake.calls.append("synchronize")

        class FakeGraph:
            def replay(self) -> None:
                fake.calls.append("replay")

            def reset(self) -> None:
                fake.calls.append("reset")

        @contextmanager
        def record(graph: Any, *, pool: Any, stream: Any, capture_error_mode: str) -> Iterator[None]:
            fake.calls.append(("record", pool, capture_error_mode))
            yield
            fake.reserved += 500

        @contextmanager
        def current(what: Any) -> Iterator[None]:
            fake.calls.append(("enter", type(what).__name__))
            yield
            fake.calls.append("leave")

        replacements = {
            "Stream": FakeStream,
            "CUDAGraph": FakeGraph,
            "graph": record,
            "stream": current,
            "device": current,
            "graph_pool_handle": lambda: "pool",
            "empty_cache": lambda: fake.calls.append("empty"),
            "memory_reserved": lambda device: fake.reserved,
            "mem_get_info": lambda device: (123, 456),
            "get_device_name": lambda device: "Toy 9000",
        }
        for name, replacement in replacements.items():
            monkeypatch.setattr(torch.cuda, name, replacement)
        monkeypatch.setattr(module, "apply_numerics", lambda: fake.calls.append("numerics"))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    module.open_stream.cache_clear()
    yield FakeCuda(monkeypatch)
    module.open_stream.cache_clear()


def test_models_of_one_device_share_one_stream_of_high_priority(fake: FakeCuda) -> None:
    stream = module.open_stream(torch.device("cuda:0"))
    assert stream is module.open_stream(torch.device("cuda:0")) and isinstance(stream, CudaStream)
    assert fake.calls == ["numerics", ("stream", "cuda:0", -1)]
    assert device_name(stream.device) == "cuda:0 (Toy 9000)"


def test_work_runs_on_the_stream_and_is_waited_for_there(fake: FakeCuda) -> None:
    stream = module.open_stream(torch.device("cuda:0"))
    fake.calls.clear()
    with stream.entered():
        assert torch.is_inference_mode_enabled()
        stream.wait()
    stream.free_scratch()
    assert fake.calls == [("enter", "device"), ("enter", "FakeStream"), "synchronize", "leave", "leave", "empty"]
    assert stream.bytes_free() == 123


def test_a_capture_knows_its_bytes_and_does_not_mind_other_threads(fake: FakeCuda) -> None:
    stream = module.open_stream(torch.device("cuda:0"))
    fake.calls.clear()
    capture = stream.capture(lambda: "outputs")
    assert (capture.nbytes, capture.replay()) == (500, "outputs")
    capture.close()
    assert fake.calls == ["empty", ("record", "pool", "thread_local"), "replay", "reset"]
