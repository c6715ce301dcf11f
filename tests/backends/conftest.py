"""Tiny models with random weights, written as real GGUF files, and a way to make them resident."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from tripower.backends.gguf.reader import open_gguf
from tripower.backends.picolm.backend import load_engine, plan_load
from tripower.backends.picolm.engine import PicolmEngine
from tripower.runtime.engine import LoadSpecification

TinyModel = Callable[..., Path]
LoadTiny = Callable[..., PicolmEngine]

NORMS = {
    "llama": ("attn_norm", "ffn_norm"),
    "gemma3": ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"),
}


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
    storage type of all matrices.
    """
    folder = tmp_path_factory.mktemp("tiny")
    numbers = itertools.count()

    def write(architecture: str = "llama", **options: Any) -> Path:
        path = folder / f"{architecture}-{next(numbers)}.gguf"
        _write(path, architecture, **options)
        return path

    return write


@pytest.fixture
def load_tiny() -> Iterator[LoadTiny]:
    """`load_tiny(path, context=64, sequences_max=4)` gives a resident engine, closed after the test."""
    engines = []

    def load(path: Path, **changes: Any) -> PicolmEngine:
        engines.append(load_engine_now(path, **changes))
        return engines[-1]

    yield load
    for engine in engines:
        engine.close()


def load_engine_now(path: Path, **changes: Any) -> PicolmEngine:
    settings: dict[str, Any] = {
        "name": path.name,
        "source": str(path),
        "context": 0,
        "sequences_max": 4,
        "state_bytes_max": 1 << 30,
        "threads": 0,
        "prefill_chunk": 64,
    }
    specification = LoadSpecification(**(settings | changes))
    with open_gguf(path) as file:
        loading = load_engine(file, plan_load(file, specification), specification, lambda stage, done: None)
        while True:
            try:
                next(loading)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return] # the generator's return value is untyped here


def _write(
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
    biases: bool = False,
    tied: bool = True,
    rope_factors: bool = False,
    kind: str = "F32",
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    seed: int = 0,
) -> None:
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
    if architecture == "gemma3":
        keys[f"{name}.attention.sliding_window"] = window
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
        for norm in NORMS.get(architecture, ()):
            arrays[f"{prefix}{norm}.weight"] = _gains(width)
        if architecture == "gemma3":
            arrays[f"{prefix}attn_q_norm.weight"] = _gains(head_size)
            arrays[f"{prefix}attn_k_norm.weight"] = _gains(head_size)
        for projection, outputs, inputs in (
            ("attn_q", heads * head_size, width),
            ("attn_k", kv_heads * head_size, width),
            ("attn_v", kv_heads * head_size, width),
            ("attn_output", width, heads * head_size),
            ("ffn_gate", feed_forward, width),
            ("ffn_up", feed_forward, width),
            ("ffn_down", width, feed_forward),
        ):
            arrays[f"{prefix}{projection}.weight"] = random.standard_normal((outputs, inputs)) * 2.0 * inputs**-0.5
            if biases:
                arrays[f"{prefix}{projection}.bias"] = random.standard_normal(outputs) * 0.1
    _save(path, name, keys | (metadata or {}), arrays | (tensors or {}), drop, kind)


def _gains(size: int) -> Any:
    return 1.0 + 0.2 * np.sin(np.arange(size))


def _save(
    path: Path, architecture: str, keys: dict[str, Any], arrays: dict[str, Any], drop: tuple[str, ...], kind: str
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
        if kind != "F32" and data.ndim == 2:
            stored = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(name, gguf.quants.quantize(data, stored), raw_dtype=stored)
        else:
            writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
