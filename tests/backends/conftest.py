"""Tiny models with random weights, written as real GGUF files, and a way to make them resident."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
import torch

from tests.backends.k_quants import LAYOUT, random_blocks
from tripower.backends.gguf.reader import open_gguf
from tripower.backends.picolm.accelerated.engine import AcceleratedEngine, Outputs
from tripower.backends.picolm.accelerated.graph_cache import CapturePolicy
from tripower.backends.picolm.accelerated.load import load_accelerated as load_accelerated_engine
from tripower.backends.picolm.accelerated.weights import Precision
from tripower.backends.picolm.backend import load_engine, plan_load
from tripower.backends.picolm.engine import PicolmEngine
from tripower.backends.picolm.torch_model import TorchModel
from tripower.backends.picolm.weights import read_weights
from tripower.runtime.engine import LoadSpecification

if TYPE_CHECKING:
    from tripower.backends.llamacpp.engine import LlamacppEngine
    from tripower.backends.picolm.native.engine import NativeEngine

TinyModel = Callable[..., Path]
LoadTiny = Callable[..., Any]
LoadLlamacpp = Callable[..., "LlamacppEngine"]


class RecordedWork:
    """What stands for a CUDA graph on a processor: the same work again, into the same memory."""

    nbytes = 1 << 10

    def __init__(self, work: Callable[[], Outputs]) -> None:
        self._work, self._outputs = work, work()

    def replay(self) -> Outputs:
        again = self._work()
        self._outputs.logits.copy_(again.logits)
        self._outputs.tokens.copy_(again.tokens)
        return self._outputs

    def close(self) -> None:
        del self._outputs


POST_NORMS = ("gemma2", "gemma3")
HEAD_NORMS = ("gemma3", "qwen3", "qwen3moe")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny products gain nothing from a second thread, and threads that wait for each other crawl on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """`tiny_model("llama", kv_heads=2, metadata={"llama.rope.freq_base": 500.0}, drop=("output.weight",))` writes a file.

    `metadata` adds or, with None, removes keys; `tensors` adds or replaces arrays by name; `drop` removes tensors; `kind` is the
    storage type of all matrices, or says it by parts of their names, F32 for the rest (k-quants: random blocks of the right size).
    `biases` names projections, or is True for all of them. With `experts` every feed-forward is a mixture.
    """
    folder = tmp_path_factory.mktemp("tiny")
    numbers = itertools.count()

    def write(architecture: str = "llama", **options: Any) -> Path:
        path = folder / f"{architecture}-{next(numbers)}.gguf"
        write_tiny(path, architecture, **options)
        return path

    return write


@pytest.fixture
def load_tiny() -> Iterator[LoadTiny]:
    """`load_tiny(path, context=64, sequences_max=4)` gives a resident engine, closed after the test.

    It is the one that a load chooses on this machine, unless `kernels` says `native` or `torch`. `kv_type` may be `f16`.
    """
    engines = []

    def load(path: Path, **changes: Any) -> Any:
        engines.append(load_engine_now(path, **changes))
        return engines[-1]

    yield load
    for engine in engines:
        engine.close()


@pytest.fixture
def load_native(load_tiny: LoadTiny) -> LoadTiny:
    """The same in generated code."""
    return partial(load_tiny, kernels="native")


@pytest.fixture
def load_torch() -> Iterator[LoadTiny]:
    """The same through plain torch, whatever faster path this machine has: the reference itself."""
    engines = []

    def load(path: Path, **changes: Any) -> PicolmEngine:
        specification = specification_for(path, **changes)
        with open_gguf(path) as file:
            plan = plan_load(file, specification)
            weights = _result(read_weights(file, plan.wanted, lambda done: None))
        model = TorchModel(plan.decoder, weights)
        engines.append(PicolmEngine(model, context_max=plan.context, sequences_max=specification.sequences_max))
        return engines[-1]

    yield load
    for engine in engines:
        engine.close()


@pytest.fixture
def load_accelerated() -> Iterator[Callable[..., AcceleratedEngine]]:
    """The engine for accelerators, on the processor: float32 unless `precision` says otherwise, replaying what `capture` recorded."""
    engines: list[AcceleratedEngine] = []

    def load(path: Path, **changes: Any) -> AcceleratedEngine:
        engines.append(load_accelerated_now(path, **changes))
        return engines[-1]

    yield load
    for engine in engines:
        engine.close()


@pytest.fixture
def load_llamacpp() -> Iterator[LoadLlamacpp]:
    """The same in llama.cpp, with one thread. `library` and `gpu_layers` go to the backend."""
    if not all(importlib.util.find_spec(name) for name in ("cffi", "llama_cpp_py_sync", "xllamacpp")):
        pytest.skip("the llamacpp extra is not installed")
    from tripower.backends.llamacpp import LlamacppBackend

    engines: list[LlamacppEngine] = []

    def load(path: Path, *, library: Path | None = None, gpu_layers: int = 0, **changes: Any) -> LlamacppEngine:
        backend = LlamacppBackend(library=library, gpu_layers=gpu_layers)
        with open_gguf(path) as file:
            loading = backend.load_engine(file, specification_for(path, threads=1, **changes), lambda stage, done: None)
            engines.append(_result(loading))
        return engines[-1]

    yield load
    for engine in engines:
        engine.close()


def specification_for(path: Path, **changes: Any) -> LoadSpecification:
    settings: dict[str, Any] = {
        "name": path.name,
        "source": str(path),
        "context": 0,
        "sequences_max": 4,
        "state_bytes_max": 1 << 30,
        "threads": 0,
        "prefill_chunk": 64,
    }
    return LoadSpecification(**(settings | changes))


def load_engine_now(path: Path, *, kernels: str = "auto", kv_type: str = "f32", **changes: Any) -> NativeEngine | PicolmEngine:
    specification = specification_for(path, **changes)
    with open_gguf(path) as file:
        plan = plan_load(file, specification, kernels, kv_type)
        engine: NativeEngine | PicolmEngine = _result(load_engine(file, plan, specification, lambda stage, done: None))
    return engine


def load_accelerated_now(
    path: Path,
    *,
    precision: Precision = "float32",
    kv_type: str = "f32",
    graphs: bool = True,
    capture: Any = RecordedWork,
    policy: CapturePolicy | None = None,
    **changes: Any,
) -> AcceleratedEngine:
    specification = specification_for(path, **changes)
    with open_gguf(path) as file:
        plan = plan_load(file, specification)
        loading = load_accelerated_engine(
            file,
            plan.decoder,
            plan.wanted,
            plan.context,
            specification,
            lambda stage, done: None,
            device=torch.device("cpu"),
            precision=precision,
            kv_type=kv_type,
            graphs=graphs,
            capture=capture,
            policy=policy,
        )
        engine: AcceleratedEngine = _result(loading)
    return engine


def _result(loading: Generator[None, None, Any]) -> Any:
    """Run a load to its end."""
    while True:
        try:
            next(loading)
        except StopIteration as end:
            return end.value


def write_tiny(
    path: Path,
    architecture: str,
    *,
    layers: int = 2,
    width: int = 32,
    heads: int = 4,
    kv_heads: int = 2,
    head_size: int = 8,
    feed_forward: int = 64,
    vocabulary: int = 96,
    context: int = 512,
    window: int = 8,
    biases: bool | tuple[str, ...] = False,
    tied: bool = True,
    rope_factors: bool = False,
    experts: int = 0,
    experts_used: int = 2,
    kind: str | dict[str, str] = "F32",
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    seed: int = 0,
) -> None:
    """Write a tiny model with random weights. See the fixture `tiny_model`."""
    name = architecture
    keys: dict[str, Any] = {
        f"{name}.context_length": context,
        f"{name}.embedding_length": width,
        f"{name}.block_count": layers,
        f"{name}.feed_forward_length": feed_forward,
        f"{name}.attention.head_count": heads,
        f"{name}.attention.head_count_kv": kv_heads,
        f"{name}.attention.key_length": head_size,
        f"{name}.attention.value_length": head_size,
        f"{name}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{name}.rope.dimension_count": head_size,
        f"{name}.rope.freq_base": 10_000.0,
        f"{name}.vocab_size": vocabulary,
        "tokenizer.ggml.model": "no_vocab",
    }
    if architecture in ("gemma2", "gemma3"):
        keys[f"{name}.attention.sliding_window"] = window
    if experts:
        keys |= {f"{name}.expert_count": experts, f"{name}.expert_used_count": experts_used}
    if architecture == "qwen3moe":
        keys[f"{name}.expert_feed_forward_length"] = feed_forward
    random = np.random.default_rng(seed)
    arrays: dict[str, Any] = {
        "token_embd.weight": random.standard_normal((vocabulary, width)),
        "output_norm.weight": _gains(width),
    }
    if not tied:
        arrays["output.weight"] = random.standard_normal((vocabulary, width))
    if rope_factors:
        arrays["rope_freqs.weight"] = np.linspace(1.0, 8.0, head_size // 2)
    for layer in range(layers):
        prefix = f"blk.{layer}."
        arrays |= _norms(architecture, prefix, width, head_size)
        if experts:
            arrays[f"{prefix}ffn_gate_inp.weight"] = random.standard_normal((experts, width)) * 2.0 * width**-0.5
        for projection, outputs, inputs in (
            ("attn_q", heads * head_size, width),
            ("attn_k", kv_heads * head_size, width),
            ("attn_v", kv_heads * head_size, width),
            ("attn_output", width, heads * head_size),
            ("ffn_gate", feed_forward, width),
            ("ffn_up", feed_forward, width),
            ("ffn_down", width, feed_forward),
        ):
            mixed = experts > 0 and projection.startswith("ffn")
            shape = (experts, outputs, inputs) if mixed else (outputs, inputs)
            full = f"{prefix}{projection}_exps" if mixed else f"{prefix}{projection}"
            arrays[f"{full}.weight"] = random.standard_normal(shape) * 2.0 * inputs**-0.5
            if biases is True or (biases and projection in biases):
                arrays[f"{full}.bias"] = random.standard_normal(outputs) * 0.1
    _save(path, name, keys | (metadata or {}), arrays | (tensors or {}), drop, kind)


def _norms(architecture: str, prefix: str, width: int, head_size: int) -> dict[str, Any]:
    names = ("attn_norm", "ffn_norm", *(("post_attention_norm", "post_ffw_norm") if architecture in POST_NORMS else ()))
    gains = {f"{prefix}{name}.weight": _gains(width) for name in names}
    if architecture in HEAD_NORMS:
        gains |= {f"{prefix}{name}.weight": _gains(head_size) for name in ("attn_q_norm", "attn_k_norm")}
    return gains


def _gains(size: int) -> Any:
    return 1.0 + 0.2 * np.sin(np.arange(size))


def _save(
    path: Path,
    architecture: str,
    keys: dict[str, Any],
    arrays: dict[str, Any],
    drop: tuple[str, ...],
    kind: str | dict[str, str],
) -> None:
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        match value:
            case None:
                continue
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value) if value >= 0 else writer.add_int32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)
    for name, values in arrays.items():
        if name in drop:
            continue
        data = np.ascontiguousarray(values, np.float32)
        stored = "F32" if data.ndim < 2 else kind if isinstance(kind, str) else _kind_of(name, kind)
        if stored in LAYOUT:
            data = random_blocks(stored, data.shape, len(name), float(np.sqrt((data**2).mean())))
        elif stored != "F32":
            data = gguf.quants.quantize(data, gguf.GGMLQuantizationType[stored])
        writer.add_tensor(name, data, raw_dtype=None if stored == "F32" else gguf.GGMLQuantizationType[stored])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _kind_of(name: str, kinds: dict[str, str]) -> str:
    return next((stored for part, stored in kinds.items() if part in name), "F32")
