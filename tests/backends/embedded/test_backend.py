"""A folder is loaded whole, or refused by file and field."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from tests.backends.embedded.folders import MODULES, SHAPE, edit, random_weights, save_file, write_encoder, write_json
from tripower.backends.embedded.backend import EmbeddedBackend, estimate_needs
from tripower.backends.embedded.shape import is_encoder, read_shape
from tripower.runtime.engine import LoadSpecification
from tripower.runtime.engine.encoder import LoadedEncoder, Vectors
from tripower.runtime.kernel.errors import ModelRefused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_encoder(tmp_path / "tiny")


def load(source: Path) -> LoadedEncoder:
    stages: list[tuple[str, float]] = []
    specification = LoadSpecification(
        name="tiny", source=str(source), context=4096, sequences_max=1, state_bytes_max=0, threads=1, prefill_chunk=1
    )
    *boundaries, loaded = EmbeddedBackend().load(specification, lambda *stage: stages.append(stage))
    assert loaded is not None
    assert boundaries == [None] * (1 + len(random_weights()))
    assert stages[-2:] == [("weights", 1.0), ("self-test", 1.0)]
    return loaded


def vector(loaded: LoadedEncoder, text: str) -> Vectors:
    vectors: Vectors = np.empty((1, loaded.engine.dimensions), np.float32)
    list(loaded.engine.encode(loaded.text.tokenize([text]), vectors))
    return vectors.reshape(-1)


def test_a_folder_is_loaded_and_keeps_nothing_of_its_files(folder: Path) -> None:
    loaded = load(folder)
    (folder / "model.safetensors").write_bytes(b"")
    assert loaded.text.tokenize(["Red GREENS", ""]) == [[2, 4, 5, 7, 3], [2, 3]]
    assert np.isclose(np.linalg.norm(vector(loaded, "red")), 1)
    assert read_shape(folder) == SHAPE
    assert estimate_needs(str(folder)).weight_bytes == loaded.engine.info.weight_bytes


def test_the_path_of_the_weights_names_the_folder(folder: Path) -> None:
    assert is_encoder(folder / "model.safetensors")
    load(folder / "model.safetensors")


def test_names_may_begin_with_bert_and_values_may_have_half_the_bits(folder: Path) -> None:
    plain = vector(load(folder), "red")
    halved = {f"bert.{name}": values.astype(np.float16) for name, values in random_weights().items()}
    save_file(halved, folder / "model.safetensors")
    assert float(plain @ vector(load(folder), "red")) > 0.99


def test_without_a_limit_of_sentences_the_positions_are_the_limit(folder: Path) -> None:
    (folder / "sentence_bert_config.json").unlink()
    assert read_shape(folder).tokens_max == SHAPE.positions


def test_cutting_loses_the_end_of_the_text_only(folder: Path) -> None:
    text = load(folder).text
    assert text.tokens_min == 3
    [row] = text.tokenize(["red green blue red green blue"])
    assert text.cut(row, 5) == [2, 4, 5, 6, 3]
    assert text.cut(row, 100) == row


@pytest.mark.parametrize(
    ("file", "changes", "code", "param"),
    [
        ("config.json", {"model_type": "roberta"}, "unsupported_architecture", "config.json model_type"),
        ("config.json", {"hidden_act": "relu"}, "unsupported_model", "config.json hidden_act"),
        (
            "config.json",
            {"position_embedding_type": "relative_key"},
            "unsupported_model",
            "config.json position_embedding_type",
        ),
        ("config.json", {"is_decoder": True}, "unsupported_model", "config.json is_decoder"),
        ("config.json", {"num_attention_heads": 3}, "bad_value", "config.json num_attention_heads"),
        ("config.json", {"hidden_size": None}, "missing_key", "config.json hidden_size"),
        ("config.json", {"layer_norm_eps": "x"}, "bad_type", "config.json layer_norm_eps"),
        ("config.json", {"num_hidden_layers": 2}, "missing_tensor", "encoder.layer.1.attention.self.query.weight"),
        ("config.json", {"intermediate_size": 31}, "bad_shape", "tensor encoder.layer.0.intermediate.dense.weight"),
        ("config.json", {"vocab_size": 4}, "bad_value", "tokenizer.json"),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": True}, "unsupported_model", "1_Pooling/config.json"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False}, "unsupported_model", "1_Pooling/config.json"),
        (
            "1_Pooling/config.json",
            {"word_embedding_dimension": 8},
            "bad_value",
            "1_Pooling/config.json word_embedding_dimension",
        ),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "bad_value", "sentence_bert_config.json max_seq_length"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_file_and_field(
    folder: Path, file: str, changes: dict[str, object], code: str, param: str
) -> None:
    edit(folder / file, **changes)
    with pytest.raises(ModelRefused) as error:
        load(folder)
    assert (error.value.code, error.value.param) == (code, param)


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("config.json", "missing_file"),
        ("modules.json", "unsupported_model"),
        ("1_Pooling/config.json", "missing_file"),
        ("tokenizer.json", "missing_file"),
        ("model.safetensors", "missing_file"),
    ],
)
def test_a_missing_file_is_named(folder: Path, file: str, code: str) -> None:
    (folder / file).unlink()
    with pytest.raises(ModelRefused, match=file.rpartition("/")[2]) as error:
        load(folder)
    assert error.value.code == code


def a_dense_step(folder: Path) -> None:
    write_json(folder / "modules.json", [*MODULES, {"type": "sentence_transformers.models.Dense"}])


def steps_that_are_no_list(folder: Path) -> None:
    write_json(folder / "modules.json", {"type": "Transformer"})


def a_step_without_type(folder: Path) -> None:
    write_json(folder / "modules.json", [1, 2, 3])


def a_tokenizer_of_another_kind(folder: Path) -> None:
    Tokenizer(models.BPE()).save(str(folder / "tokenizer.json"))


def a_tokenizer_that_is_none(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")


def weights_that_are_not_finite(folder: Path) -> None:
    broken = random_weights()
    broken["embeddings.LayerNorm.bias"][:] = np.inf
    save_file(broken, folder / "model.safetensors")


def weights_of_whole_numbers(folder: Path) -> None:
    save_file({name: values.astype(np.int32) for name, values in random_weights().items()}, folder / "model.safetensors")


def a_file_that_is_cut_short(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (a_dense_step, "unsupported_model"),
        (steps_that_are_no_list, "bad_type"),
        (a_step_without_type, "unsupported_model"),
        (a_tokenizer_of_another_kind, "unsupported_tokenizer"),
        (a_tokenizer_that_is_none, "bad_value"),
        (weights_that_are_not_finite, "self_test_failed"),
        (weights_of_whole_numbers, "unsupported_tensor_type"),
        (a_file_that_is_cut_short, "past_end"),
    ],
)
def test_damage_is_refused(folder: Path, damage: Callable[[Path], None], code: str) -> None:
    damage(folder)
    with pytest.raises(ModelRefused) as error:
        load(folder)
    assert error.value.code == code


def test_an_encoder_is_known_by_its_configuration(folder: Path, tmp_path: Path) -> None:
    assert is_encoder(folder)
    assert not is_encoder(tmp_path)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert not is_encoder(folder)
