"""What is planned for a device, and what a load that does not fit leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from tripower.backends.gguf.reader import open_gguf
from tripower.backends.picolm import backend
from tripower.backends.picolm.accelerated import load as module
from tripower.backends.picolm.accelerated.engine import AcceleratedEngine
from tripower.backends.picolm.accelerated.load import device_room, estimate_weight_bytes, load_accelerated
from tripower.backends.picolm.accelerated.weights import Precision
from tripower.backends.picolm.backend import PicolmBackend, plan_load
from tripower.runtime.engine import LoadSpecification
from tripower.runtime.kernel.errors import ModelRefused

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
TinyModel = Callable[..., Path]


def specification(path: Path, **changes: Any) -> LoadSpecification:
    settings: dict[str, Any] = {"name": "tiny", "source": str(path), "context": 0, "sequences_max": 2}
    settings |= {"state_bytes_max": 1 << 30, "threads": 1, "prefill_chunk": 64}
    return LoadSpecification(**(settings | changes))


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`with_gpu(bytes)`: a machine with a CUDA device that has so much room for states."""

    def pretend(room: int) -> None:
        monkeypatch.setattr(backend, "choose_device", lambda wanted: GPU)
        monkeypatch.setattr(backend, "device_room", lambda device, weights: room)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))

    return pretend


def test_a_device_that_is_not_there_is_refused_before_anything_is_read(tiny_model: TinyModel) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    loading = PicolmBackend(device="cuda").load(specification(tiny_model()), lambda stage, done: None)
    with pytest.raises(ModelRefused) as caught:
        next(loading)
    assert caught.value.code == "device_not_available" and "set engine.device to cpu" in caught.value.message


@pytest.mark.parametrize(("kernels", "precision"), [("auto", "compact"), ("torch", "float32")])
def test_states_have_to_fit_into_the_devices_memory(
    kernels: str, precision: str, tiny_model: TinyModel, with_gpu: Callable[[int], None]
) -> None:
    path = tiny_model(context=512)
    position_bytes = 2 * 2 * 2 * 8 * 4
    with_gpu(2 * 320 * position_bytes)
    with open_gguf(path) as file:
        plan = plan_load(file, specification(path), kernels, "f32", "cuda")
        halves = plan_load(file, specification(path), kernels, "f16", "cuda")
    assert (plan.device, plan.precision, plan.context, plan.without_kernels) == ("cuda:0", precision, 320, "")
    assert halves.context == 512


def test_what_was_allowed_bounds_states_on_a_device_too(tiny_model: TinyModel, with_gpu: Callable[[int], None]) -> None:
    path = tiny_model(context=512)
    with_gpu(1 << 40)
    with open_gguf(path) as file:
        assert plan_load(file, specification(path, state_bytes_max=2 * 256 * 256), device="cuda").context == 256
        with pytest.raises(ModelRefused) as caught:
            plan_load(file, specification(path, state_bytes_max=1000), device="cuda")
    assert caught.value.code == "state_memory_too_small"


def test_generated_code_is_refused_on_a_device(tiny_model: TinyModel, with_gpu: Callable[[int], None]) -> None:
    path = tiny_model()
    with_gpu(1 << 40)
    with open_gguf(path) as file, pytest.raises(ModelRefused, match="runs on processors, not on cuda:0") as caught:
        plan_load(file, specification(path), "native", "f32", "cuda")
    assert caught.value.code == "kernels_unavailable"


def test_a_plan_for_a_device_is_loaded_there(tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a processor in the device's place, behind the seam."""
    asked: list[dict[str, Any]] = []

    def instead(*given: Any, **settings: Any) -> Generator[None, None, AcceleratedEngine]:
        asked.append(settings)
        return load_accelerated(*given, **settings | {"device": CPU})

    monkeypatch.setattr(backend, "load_accelerated", instead)
    path = tiny_model()
    with open_gguf(path) as file:
        plan = msgspec.structs.replace(plan_load(file, specification(path)), device="cuda:0")
        loading = backend.load_engine(file, plan, specification(path), lambda stage, done: None)
        while True:
            try:
                next(loading)
            except StopIteration as end:
                engine = end.value
                break
    assert asked == [{"device": GPU, "precision": "compact", "kv_type": "f32"}]
    assert isinstance(engine, AcceleratedEngine) and engine.sequences() == []
    engine.close()


@pytest.mark.parametrize("place", ["KvPool", "DeviceModel", "read_device_weights"])
def test_memory_that_runs_out_refuses_the_load_and_says_what_would_fit(
    place: str, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(module, place, fail)
    path = tiny_model(context=512)
    with open_gguf(path) as file:
        plan = plan_load(file, specification(path))
        loading = load_accelerated(
            file, plan.decoder, plan.wanted, plan.context, specification(path), lambda stage, done: None, device=CPU
        )
        with pytest.raises(ModelRefused, match="states of 2 sequences 0 MiB; allow fewer sequences") as caught:
            list(loading)
    assert caught.value.code == "out_of_memory" and caught.value.__cause__ is None


@pytest.mark.parametrize("precision", ["compact", "float32"])
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "F32"])
def test_weights_take_about_what_was_estimated(
    kind: str, precision: Precision, tiny_model: TinyModel, load_accelerated: Callable[..., AcceleratedEngine]
) -> None:
    path = tiny_model(kind=kind, width=64, heads=8)
    with open_gguf(path) as file:
        estimated = estimate_weight_bytes(file, CPU, precision)
    assert 0.95 < load_accelerated(path, precision=precision).info.weight_bytes / estimated < 1.05


def test_only_a_device_with_memory_of_its_own_bounds_states(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_room(CPU, 100) is None

    class Small:
        def bytes_free(self) -> int:
            return 1000

    monkeypatch.setattr(module, "open_stream", lambda device: Small())
    assert (device_room(GPU, 100), device_room(GPU, 2000)) == (800, 0)
