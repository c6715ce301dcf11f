"""A checkpoint folder is shown as a GGUF file is; whatever is wrong is refused by name, and nothing is left open."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.backends.safetensors.rigs import edit_json, logits, open_and_check, reference_engine, refused
from tripower.backends.gguf.dequantise import dequantise
from tripower.backends.model_file import ModelFile, is_complete_checkpoint, open_model
from tripower.backends.safetensors.checkpoint import Checkpoint, open_checkpoint
from tripower.runtime.kernel.errors import ModelRefused

safetensors_torch = pytest.importorskip("safetensors.torch")
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

Edit = Callable[[dict[str, torch.Tensor]], None]


@pytest.fixture(scope="module")
def llama(checkpoint: Any) -> Path:
    path: Path = checkpoint("Llama")
    return path


@pytest.fixture(scope="module")
def mixtral(checkpoint: Any) -> Path:
    path: Path = checkpoint("Mixtral", shard_bytes=100_000)
    return path


@pytest.fixture
def copy(llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama, tmp_path / "copy"))


@pytest.fixture
def parts(mixtral: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(mixtral, tmp_path / "parts"))


def edit_weights(path: Path, edit: Edit) -> None:
    tensors = safetensors_torch.load_file(path / WEIGHTS)
    edit(tensors)
    safetensors_torch.save_file(tensors, path / WEIGHTS)


def test_a_checkpoint_is_a_model_file(llama: Path) -> None:
    with open_checkpoint(llama) as file:
        shown: ModelFile = file
        assert shown.metadata["general.architecture"] == "llama"
        assert shown.path == llama
        assert not shown.changed()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_matrices_keep_their_bytes_and_vectors_become_float32(dtype: torch.dtype, checkpoint: Any) -> None:
    path = checkpoint("Llama", dtype=dtype, attention_bias=True)
    stored = safetensors_torch.load_file(path / WEIGHTS)
    with open_checkpoint(path) as file:
        for name, tensor in file.tensors.items():
            assert len(file.read(name)) == len(file.data(name)) == tensor.nbytes
            assert np.array_equal(file.read(name), file.data(name))
        matrix = stored["model.layers.1.mlp.down_proj.weight"]
        assert file.data("blk.1.ffn_down.weight").tobytes() == matrix.view(torch.uint8).numpy().tobytes()
        norm = file.tensor("blk.0.attn_norm.weight")
        assert (norm.type_name, norm.shape) == ("F32", (64,))
        expected = stored["model.layers.0.input_layernorm.weight"].float().numpy()
        assert np.array_equal(dequantise(file, norm.name), expected)


def test_rows_of_queries_and_keys_are_in_the_order_of_adjacent_pairs(llama: Path) -> None:
    stored = safetensors_torch.load_file(llama / WEIGHTS)["model.layers.0.self_attn.k_proj.weight"].numpy()
    with open_checkpoint(llama) as file:
        found = dequantise(file, "blk.0.attn_k.weight")
    head = stored[16:32]  # the second of two, 16 rows each
    assert np.array_equal(found[16:32], np.stack((head[:8], head[8:]), axis=1).reshape(16, -1))


def test_gemmas_norms_get_the_one_they_lack(checkpoint: Any) -> None:
    path = checkpoint("Gemma3", dtype=torch.bfloat16)
    stored = safetensors_torch.load_file(path / WEIGHTS)
    with open_checkpoint(path) as file:
        found = dequantise(file, "blk.0.attn_q_norm.weight")
    assert np.array_equal(found, stored["model.layers.0.self_attn.q_norm.weight"].float().numpy() + 1.0)


def test_experts_are_stacked_in_their_order(mixtral: Path) -> None:
    stored: dict[str, torch.Tensor] = {}
    for path in mixtral.glob("*.safetensors"):
        stored |= safetensors_torch.load_file(path)
    with open_checkpoint(mixtral) as file:
        found = dequantise(file, "blk.1.ffn_up_exps.weight")
    prefix = "model.layers.1.block_sparse_moe.experts"
    assert np.array_equal(found, np.stack([stored[f"{prefix}.{number}.w3.weight"].numpy() for number in range(8)]))


def test_data_is_a_view_where_it_can_be_and_outlives_the_file(llama: Path) -> None:
    with open_checkpoint(llama) as file:
        view = file.data("blk.0.ffn_up.weight")
        copied = file.read("blk.0.ffn_up.weight")
        assert not view.flags.owndata and not view.flags.writeable
    assert np.array_equal(view, copied)


def test_a_tensor_that_is_not_aligned_is_copied(copy: Path) -> None:
    path = copy / WEIGHTS
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    path.write_bytes((length + 1).to_bytes(8, "little") + content[8 : 8 + length] + b" " + content[8 + length :])
    with open_checkpoint(copy) as file:
        assert file.data("output.weight").flags.owndata
    assert np.isfinite(logits(reference_engine(copy), [1, 2, 3])).all()


def test_a_file_of_the_folder_stands_for_it(parts: Path, copy: Path) -> None:
    with open_model(next(parts.glob("*.safetensors"))) as file:
        assert file.path == parts and "blk.1.attn_q.weight" in file.tensors
    (copy / WEIGHTS).rename(copy / "other.safetensors")
    with open_model(copy / "other.safetensors") as file:
        assert isinstance(file, Checkpoint)


def test_a_gguf_file_is_opened_as_one(tiny_model: Any) -> None:
    path = tiny_model("llama")
    with open_model(path) as file:
        assert not isinstance(file, Checkpoint)
    assert not is_complete_checkpoint(path)


def test_a_lone_weight_file_is_no_model(copy: Path, tmp_path: Path) -> None:
    alone = tmp_path / "blobs" / "sha256-0"
    alone.parent.mkdir()
    shutil.copy(copy / WEIGHTS, alone)
    assert is_complete_checkpoint(copy / WEIGHTS) and is_complete_checkpoint(copy)
    assert not is_complete_checkpoint(alone)
    with refused("missing_file", "config.json"):
        open_model(alone)


def test_a_pipe_does_not_block(copy: Path) -> None:
    for name in ("config.json", WEIGHTS, "generation_config.json"):
        (copy / name).rename(copy / "kept")
        os.mkfifo(copy / name)
        with refused("unreadable", name):
            open_checkpoint(copy)
        (copy / name).unlink()
        (copy / "kept").rename(copy / name)
    os.mkfifo(copy / "pipe")
    with pytest.raises(ModelRefused):
        open_model(copy / "pipe")


@pytest.mark.parametrize("read", ["data", "read"])
def test_a_shard_cut_short_while_open_is_refused_and_the_process_lives(read: str, copy: Path) -> None:
    with open_checkpoint(copy) as file:
        os.truncate(copy / WEIGHTS, 100)
        assert file.changed()
        with refused("source_changed", WEIGHTS):
            getattr(file, read)("blk.1.ffn_down.weight")


def test_a_replaced_file_is_noticed_and_harmless(copy: Path) -> None:
    with open_checkpoint(copy) as file:
        expected = file.read("blk.0.ffn_up.weight")
        shutil.copy(copy / WEIGHTS, copy / "new")
        os.replace(copy / "new", copy / WEIGHTS)
        assert file.changed()
        assert np.array_equal(file.data("blk.0.ffn_up.weight"), expected)


def test_an_absent_tensor_is_refused_by_name(llama: Path) -> None:
    with open_checkpoint(llama) as file, refused("missing_tensor", "blk.9.attn_q.weight"):
        file.tensor("blk.9.attn_q.weight")


def test_nothing_stays_open_after_a_refusal(parts: Path, copy: Path) -> None:
    folder = Path("/proc/self/fd")
    if not folder.exists():
        pytest.skip("open files cannot be listed here")
    before = len(os.listdir(folder))
    last = max(parts.glob("*.safetensors"))
    os.truncate(last, last.stat().st_size - 1)
    edit_json(copy / "config.json", {"num_attention_heads": 3})
    for path in (parts, copy):
        with pytest.raises(ModelRefused):
            open_and_check(path)
    assert len(os.listdir(folder)) == before


def drop(name: str) -> Edit:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[name]

    return edit


def replace(name: str, values: torch.Tensor) -> Edit:
    return lambda tensors: tensors.update({name: values})


Q = "model.layers.0.self_attn.q_proj.weight"
DOWN = "model.layers.1.mlp.down_proj.weight"

WEIGHT_EDITS: dict[str, tuple[Edit, str, str]] = {
    "no embedding": (drop("model.embed_tokens.weight"), "missing_tensor", "model.embed_tokens.weight"),
    "no head": (drop("lm_head.weight"), "missing_tensor", "lm_head.weight"),
    "no matrix": (drop(DOWN), "missing_tensor", "blk.1.ffn_down.weight"),
    "queries of another size": (replace(Q, torch.zeros(60, 64)), "bad_shape", f"tensor {Q}"),
    "a matrix of another size": (replace(DOWN, torch.zeros(64, 95)), "bad_shape", "blk.1.ffn_down.weight"),
    "a matrix with a dimension too many": (replace(DOWN, torch.zeros(1, 64, 96)), "bad_shape", "blk.1.ffn_down.weight"),
    "a matrix without elements": (replace(DOWN, torch.zeros(0, 96)), "bad_shape", f"tensor {DOWN}"),
    "a scalar": (replace(DOWN, torch.tensor(1.0)), "bad_shape", f"tensor {DOWN}"),
    "integers": (replace(DOWN, torch.zeros(64, 96, dtype=torch.int32)), "unsupported_tensor_type", f"tensor {DOWN}"),
    "double precision": (replace(DOWN, torch.zeros(64, 96, dtype=torch.float64)), "unsupported_tensor_type", f"tensor {DOWN}"),
    "an adapter": (replace("model.lora", torch.zeros(2)), "unknown_tensor", "tensor model.lora"),
    "a name of the other format": (replace("rope_freqs.weight", torch.ones(8)), "unknown_tensor", "tensor rope_freqs.weight"),
    "a layer too many": (
        replace("model.layers.2.input_layernorm.weight", torch.zeros(64)),
        "unknown_tensor",
        "blk.2.attn_norm.weight",
    ),
    "a layer with a leading zero": (
        replace("model.layers.01.input_layernorm.weight", torch.zeros(64)),
        "unknown_tensor",
        "tensor model.layers.01.input_layernorm.weight",
    ),
}


@pytest.mark.parametrize("case", WEIGHT_EDITS)
def test_weights_that_do_not_fit_are_refused_by_name(case: str, copy: Path) -> None:
    edit, code, param = WEIGHT_EDITS[case]
    edit_weights(copy, edit)
    with refused(code, param):
        open_and_check(copy)


def test_stored_frequencies_of_old_checkpoints_are_no_weights(copy: Path) -> None:
    edit_weights(copy, replace("model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(8)))
    open_and_check(copy)


def test_a_stored_head_is_left_out_where_the_embedding_is_the_head(copy: Path) -> None:
    edit_json(copy / "config.json", {"tie_word_embeddings": True})
    with open_checkpoint(copy) as file:
        assert "output.weight" not in file.tensors


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/etc/model.safetensors", "a/b.safetensors", "model.bin", ".safetensors", 5]
)
def test_an_index_names_files_of_its_folder_only(name: Any, parts: Path) -> None:
    index = json.loads((parts / INDEX).read_text())
    index["weight_map"]["lm_head.weight"] = name
    (parts / INDEX).write_text(json.dumps(index))
    with refused("bad_value", f"{INDEX} weight_map lm_head.weight"):
        open_checkpoint(parts)


def test_an_index_and_its_files_must_agree(parts: Path) -> None:
    text = (parts / INDEX).read_text()
    index = json.loads(text)
    names = sorted(set(index["weight_map"].values()))
    here = index["weight_map"]["lm_head.weight"]
    index["weight_map"]["lm_head.weight"] = next(name for name in names if name != here)
    (parts / INDEX).write_text(json.dumps(index))
    with refused("missing_tensor", "lm_head.weight"):
        open_checkpoint(parts)
    del index["weight_map"]["lm_head.weight"]
    (parts / INDEX).write_text(json.dumps(index))
    with refused("duplicate", "lm_head.weight"):
        open_checkpoint(parts)
    (parts / INDEX).write_text(text)
    (parts / names[0]).unlink()
    with refused("missing_file", names[0]):
        open_checkpoint(parts)


def test_a_missing_expert_is_named(mixtral: Path, tmp_path: Path, checkpoint: Any) -> None:
    path = checkpoint("Mixtral", num_local_experts=3, num_experts_per_tok=2)
    edit_json(path / "config.json", {"num_local_experts": 4})
    with pytest.raises(ModelRefused, match="expert 3 of 4 is missing") as caught:
        open_checkpoint(path)
    assert caught.value.code == "missing_tensor"
    edit_json(path / "config.json", {"num_local_experts": 2})
    with pytest.raises(ModelRefused, match="there are 2 experts") as caught:
        open_checkpoint(path)
    assert caught.value.code == "unknown_tensor"


@pytest.mark.parametrize(
    ("name", "content", "code", "param"),
    [
        ("config.json", None, "missing_file", "config.json"),
        ("config.json", b"", "invalid_json", "config.json"),
        ("config.json", b"[]", "bad_type", "config.json"),
        ("config.json", b'{"model_type": "llama", "model_type": "llama"}', "duplicate", "config.json model_type"),
        ("config.json", b" " * (4 << 20) + b"{}", "limit_exceeded", "config.json"),
        (WEIGHTS, None, "missing_file", WEIGHTS),
        (WEIGHTS, b"", "truncated", WEIGHTS),
        (INDEX, b"{}", "bad_type", f"{INDEX} weight_map"),
        (INDEX, b'{"weight_map": {}}', "bad_type", f"{INDEX} weight_map"),
        ("generation_config.json", b"{", "invalid_json", "generation_config.json"),
        ("generation_config.json", b'{"temperature": -1}', "bad_value", "generation_config.json temperature"),
        ("generation_config.json", b'{"top_k": 1.5}', "bad_type", "generation_config.json top_k"),
        ("generation_config.json", b'{"eos_token_id": "</s>"}', "bad_value", "generation_config.json eos_token_id"),
    ],
)
def test_a_damaged_file_is_refused_by_its_name(name: str, content: bytes | None, code: str, param: str, copy: Path) -> None:
    if content is None:
        (copy / name).unlink()
    else:
        (copy / name).write_bytes(content)
    with refused(code, param):
        open_checkpoint(copy)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with refused("not_found", str(tmp_path / "nothing")):
        open_checkpoint(tmp_path / "nothing")
    with refused("missing_file", "config.json"):
        open_checkpoint(tmp_path)
