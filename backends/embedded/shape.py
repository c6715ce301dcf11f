"""What a folder says of a sentence encoder: its sizes, its limit, and how one vector is made of many.

The folder is one as sentence-transformers writes it. `modules.json` is what makes a BERT an encoder of sentences: without it nobody
knows how its vectors are meant to be pooled, and nothing is guessed. Everything that would be computed otherwise than here is refused
by file and field. Vectors always get unit length, whether the folder asks for it or not: clients of embeddings rely on it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tripower.backends.safetensors.checkpoint import CONFIG, read_config_fields
from tripower.backends.safetensors.documents import decode_object, read_document, read_object, refuse
from tripower.backends.safetensors.fields import Fields
from tripower.runtime.kernel.errors import ModelRefused

KIND = "bert"
MODULES = "modules.json"
POOLING = "1_Pooling/config.json"
LIMIT = "sentence_bert_config.json"
STEPS = ("Transformer", "Pooling", "Normalize")
LAYERS_MAX = 256
WIDTH_MAX = 1 << 16


class EncoderShape(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a BERT. `tokens_max` is the longest row, which may be shorter than its table of positions."""

    width: int
    inner: int
    layers: int
    heads: int
    vocabulary: int
    positions: int
    types: int
    norm_epsilon: float
    tokens_max: int


def folder_of(source: Path | str) -> Path:
    """The folder of a checkpoint that is named by its folder or by its weights."""
    path = Path(source)
    return path if path.is_dir() else path.parent


def is_encoder(path: Path) -> bool:
    """Whether a checkpoint is of the kind that this backend is for, be it usable or not. Blocks for a small read."""
    try:
        config = read_config_fields(folder_of(path))
        return config.values.get("model_type") == KIND
    except ModelRefused:
        return False  # who reads it next says what is wrong


def read_shape(folder: Path) -> EncoderShape:
    """Check everything but the weights. Blocks for small reads.

    Raises `ModelRefused`: `unsupported_architecture`, `unsupported_model`, `missing_file`, and those of `Fields` and `decode_object`.
    """
    config = read_config_fields(folder)
    if config.text("model_type") != KIND:
        raise refuse("unsupported_architecture", config.field("model_type"), f"is not {KIND}")
    _check_modules(folder)
    width = config.integer("hidden_size", 1, WIDTH_MAX)
    heads = config.integer("num_attention_heads", 1, width)
    if width % heads:
        raise refuse("bad_value", config.field("num_attention_heads"), f"does not divide a width of {width}")
    _check_pooling(folder, width)
    _check_computation(config)
    positions = config.integer("max_position_embeddings", 1, 1 << 20)
    stated = Fields(read_object(folder, LIMIT) or {}, LIMIT)
    return EncoderShape(
        width=width,
        inner=config.integer("intermediate_size", 1, WIDTH_MAX),
        layers=config.integer("num_hidden_layers", 1, LAYERS_MAX),
        heads=heads,
        vocabulary=config.integer("vocab_size", 1, 1 << 24),
        positions=positions,
        types=config.integer("type_vocab_size", 1, 1024, default=2),
        norm_epsilon=config.number("layer_norm_eps", 0.0, 1.0, default=1e-12),
        tokens_max=min(positions, stated.integer("max_seq_length", 1, default=positions)),
    )


def _check_computation(config: Fields) -> None:
    if config.text("hidden_act", default="gelu") != "gelu":
        raise config.unsupported("hidden_act", "only gelu is computed here")
    if config.text("position_embedding_type", default="absolute") != "absolute":
        raise config.unsupported("position_embedding_type", "only absolute positions are computed here")
    if config.flag("is_decoder", default=False):
        raise config.unsupported("is_decoder", "a decoder is no encoder of sentences")


def _check_modules(folder: Path) -> None:
    """`modules.json` is a list of steps, each with a type that ends in its name."""
    data = read_document(folder, MODULES)
    if data is None:
        raise ModelRefused(
            f"{folder} has a {KIND} model and no {MODULES}, so nothing says how its vectors are pooled: "
            "save it with sentence-transformers",
            code="unsupported_model",
            param=MODULES,
        )
    names = tuple(str(each.get("type")).rpartition(".")[2] if isinstance(each, dict) else "" for each in _list(data))
    if names not in (STEPS, STEPS[:2]):
        raise refuse("unsupported_model", MODULES, f"has other steps than {', '.join(STEPS)}")


def _list(data: bytes) -> list[Any]:
    wrapped = decode_object(b'{"modules":' + data + b"}", MODULES)  # one strict reader for all: it takes objects
    found = wrapped["modules"]
    if not isinstance(found, list):
        raise refuse("bad_type", MODULES, "is not a list")
    return found


def _check_pooling(folder: Path, width: int) -> None:
    values = read_object(folder, POOLING)
    if values is None:
        raise ModelRefused(f"{folder} has no {POOLING}", code="missing_file", param=POOLING)
    pooling = Fields(values, POOLING)
    modes = {name for name in pooling.values if name.startswith("pooling_mode_") and pooling.flag(name, default=False)}
    if modes != {"pooling_mode_mean_tokens"}:
        raise refuse("unsupported_model", POOLING, "asks for another pooling than the mean of the tokens")
    if pooling.integer("word_embedding_dimension", 1, default=width) != width:
        raise refuse("bad_value", pooling.field("word_embedding_dimension"), f"is not the width of {CONFIG}, {width}")
