"""A file's tensors are compared with what the architecture wants before anything is allocated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from tripower.backends.gguf.dequantise import dequantise
from tripower.backends.gguf.reader import open_gguf
from tripower.backends.picolm.weights import Wanted, Weights, check_weights, read_weights
from tripower.runtime.kernel.errors import ModelRefused


def write(path: Path, tensors: dict[str, Any], kinds: dict[str, gguf.GGMLQuantizationType] | None = None) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for name, values in tensors.items():
        kind = (kinds or {}).get(name)
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def read(path: Path, wanted: list[Wanted]) -> tuple[Weights, list[float]]:
    done: list[float] = []
    with open_gguf(path) as file:
        check_weights(file, wanted)
        reading = read_weights(file, wanted, done.append)
        while True:
            try:
                next(reading)
            except StopIteration as end:
                return end.value, done


def matrix(rows: int, columns: int = 32, start: float = 0.0) -> Any:
    return (np.arange(rows * columns, dtype=np.float32) + start).reshape(rows, columns)


def test_tensors_with_one_destination_are_stacked_in_the_order_of_the_list(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"k": matrix(1, start=500.0), "q": matrix(2), "alone": matrix(3)})
    wanted = [Wanted("q", (2, 32), "qk"), Wanted("k", (1, 32), "qk"), Wanted("alone", (3, 32))]
    weights, done = read(path, wanted)
    assert weights.keys() == {"qk", "alone"}
    assert torch.equal(weights["qk"], torch.from_numpy(np.concatenate((matrix(2), matrix(1, start=500.0)))))
    assert weights["qk"].is_contiguous()
    assert done == pytest.approx([1 / 3, 1 / 2, 1.0])


def test_an_absent_part_is_zero_and_an_absent_weight_does_not_exist(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"b": np.ones(2, np.float32)})
    optional = [Wanted("a", (1,), "ab", True), Wanted("b", (2,), "ab", True), Wanted("c", (4,), "", True)]
    weights, _ = read(path, optional)
    assert weights.keys() == {"ab"}
    assert weights["ab"].tolist() == [0.0, 1.0, 1.0]


def test_weights_are_copies_that_outlive_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"a": matrix(2)})
    weights, _ = read(path, [Wanted("a", (2, 32))])
    path.write_bytes(b"\0" * path.stat().st_size)
    assert torch.equal(weights["a"], torch.from_numpy(matrix(2)))


@pytest.mark.parametrize(
    ("tensors", "name", "code"),
    [
        ({}, "a", "missing_tensor"),
        ({"a": matrix(3)}, "a", "bad_shape"),
        ({"a": matrix(2, 64)}, "a", "bad_shape"),
        ({"a": np.zeros(64, np.float32)}, "a", "bad_shape"),
        ({"a": np.zeros((1, 2, 32), np.float32)}, "a", "bad_shape"),
        ({"a": np.zeros((2, 32), np.int32)}, "a", "unsupported_tensor_type"),
        ({"a": matrix(2), "a.lora": matrix(2)}, "a.lora", "unknown_tensor"),
        ({"a": matrix(2), "b": matrix(5)}, "b", "bad_shape"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_by_name(tensors: dict[str, Any], name: str, code: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"other": matrix(1)} | tensors)
    wanted = [Wanted("other", (1, 32)), Wanted("a", (2, 32)), Wanted("b", (2, 32), optional=True)]
    with open_gguf(path) as file, pytest.raises(ModelRefused) as caught:
        check_weights(file, wanted)
    assert (caught.value.param, caught.value.code) == (name, code)
    assert name in caught.value.message


def test_a_type_that_cannot_be_computed_with_is_refused_by_the_tensors_name(tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType.IQ4_NL
    path = write(tmp_path / "m.gguf", {"a": np.zeros((2, 18), np.uint8)}, {"a": kind})
    with open_gguf(path) as file, pytest.raises(ModelRefused, match="IQ4_NL") as caught:
        check_weights(file, [Wanted("a", (2, 32))])
    assert caught.value.param == "a"


@pytest.mark.parametrize("drop", ["output_norm.weight", "blk.1.ffn_gate.weight", "blk.0.attn_k.weight"])
def test_a_model_without_one_of_its_tensors_names_it(drop: str, tiny_model: Any, load_tiny: Any) -> None:
    with pytest.raises(ModelRefused) as caught:
        load_tiny(tiny_model("llama", drop=(drop,)))
    assert (caught.value.param, caught.value.code) == (drop, "missing_tensor")


def test_a_tensor_that_the_architecture_does_not_know_is_refused(tiny_model: Any, load_tiny: Any) -> None:
    path = tiny_model("gemma3", tensors={"blk.0.attn_q.bias": np.zeros(32)})
    with pytest.raises(ModelRefused) as caught:
        load_tiny(path)
    assert (caught.value.param, caught.value.code) == ("blk.0.attn_q.bias", "unknown_tensor")


def test_quantised_matrices_become_their_float32_values(tiny_model: Any, load_torch: Any) -> None:
    path = tiny_model("llama", kind="Q8_0")
    with open_gguf(path) as file:
        expected = dequantise(file, "token_embd.weight")
    model = load_torch(path)._model
    assert torch.equal(model.embedding, torch.from_numpy(expected))
    assert model.head is model.embedding
