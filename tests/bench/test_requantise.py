"""A model in another encoding: the values of the reference arithmetic, everything else as it was, whole or not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tripower.backends.gguf.dequantise import dequantise
from tripower.backends.gguf.reader import open_gguf
from tripower.bench import requantise
from tripower.bench.requantise import requantised, write_requantised
from tripower.runtime.kernel import InvalidConfiguration

WIDTH = 64
TENSORS = {"token_embd.weight": "Q8_0", "blk.0.attn_q.weight": "Q4_1", "blk.0.ffn_down.weight": "Q8_0", "odd.weight": "F32"}
METADATA: dict[str, Any] = {
    "llama.context_length": 77,
    "llama.rope.freq_base": 5000.5,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.tokens": ["a", "ü", "<s>"],
    "tokenizer.ggml.scores": [0.5, -1.25, 0.0],
    "tokenizer.ggml.token_type": [1, 1, 3],
    "tokenizer.chat_template": "{{ messages }}",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with one matrix of each kind that is treated differently, and a norm."""
    path = tmp_path_factory.mktemp("source") / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(int(gguf.LlamaFileType.MOSTLY_Q4_1))
    for key, value in METADATA.items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)
    random = np.random.default_rng(5)
    for name, kind in TENSORS.items():
        values = random.standard_normal((6, 20 if kind == "F32" else WIDTH)).astype(np.float32)
        stored = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, values if kind == "F32" else gguf.quants.quantize(values, stored), raw_dtype=stored)
    writer.add_tensor("blk.0.attn_norm.weight", random.standard_normal(WIDTH).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def made(source: Path, tmp_path: Path) -> Path:
    return requantised(source, "Q4_0", home=tmp_path)


def test_matrices_have_the_values_of_the_reference_arithmetic(source: Path, made: Path) -> None:
    with open_gguf(source) as old, open_gguf(made) as new:
        for name in ("blk.0.attn_q.weight", "blk.0.ffn_down.weight"):
            expected = gguf.quants.quantize(dequantise(old, name), gguf.GGMLQuantizationType.Q4_0)
            assert new.tensor(name).type_name == "Q4_0"
            assert new.tensor(name).shape == old.tensor(name).shape
            assert new.read(name).tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.0.attn_norm.weight", "odd.weight"])
def test_the_embedding_norms_and_rows_without_whole_blocks_stay_as_they_are(name: str, source: Path, made: Path) -> None:
    with open_gguf(source) as old, open_gguf(made) as new:
        assert new.tensor(name).type_name == old.tensor(name).type_name
        assert new.read(name).tobytes() == old.read(name).tobytes()


def test_metadata_is_kept_but_for_the_name_of_the_encoding(source: Path, made: Path) -> None:
    old, new = gguf.GGUFReader(source), gguf.GGUFReader(made)
    kept = [name for name in old.fields if not name.startswith("GGUF.") and name != "general.file_type"]
    assert set(METADATA) <= set(kept)
    for name in kept:
        assert new.fields[name].contents() == old.fields[name].contents()
        assert new.fields[name].types == old.fields[name].types
    assert list(new.fields) == list(old.fields)
    assert new.fields["general.file_type"].contents() == int(gguf.LlamaFileType.MOSTLY_Q4_0)


def test_it_is_made_once_for_a_source_and_an_encoding(
    source: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requantise, "write_requantised", None)  # whoever calls it fails
    assert requantised(source, "Q4_0", home=tmp_path) == made
    copy = tmp_path / "another-name.gguf"
    copy.write_bytes(source.read_bytes())
    assert requantised(copy, "Q4_0", home=tmp_path) == made


def test_another_source_or_encoding_gets_another_file(source: Path, made: Path, tmp_path: Path) -> None:
    assert requantised(source, "Q8_0", home=tmp_path) != made
    assert requantised(made, "Q4_0", home=tmp_path) != made


def test_a_failure_in_the_middle_leaves_nothing(source: Path, tmp_path: Path) -> None:
    class Interrupted(Exception):
        pass

    def give_up(done: float) -> None:
        if done > 0.5:
            raise Interrupted

    with pytest.raises(Interrupted):
        requantised(source, "Q4_0", home=tmp_path, progress=give_up)
    assert not list((tmp_path / "bench").glob("*.gguf*"))
    assert requantised(source, "Q4_0", home=tmp_path).exists()


def test_progress_grows_to_one(source: Path, tmp_path: Path) -> None:
    seen: list[float] = []
    write_requantised(source, tmp_path / "out.gguf", "Q4_0", seen.append)
    assert seen == sorted(seen)
    assert len(seen) == len(TENSORS) + 1
    assert seen[-1] == 1.0


def test_an_encoding_that_cannot_be_written_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="Q4_0 or Q8_0"):
        requantised(source, "Q2_K", home=tmp_path)
    assert not (tmp_path / "bench").exists()
