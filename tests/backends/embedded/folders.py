"""A sentence encoder of one layer with random weights, as the folder that sentence-transformers writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from tripower.backends.embedded.shape import EncoderShape
from tripower.backends.embedded.weights import wanted

save_file = pytest.importorskip("safetensors.numpy").save_file

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "red", "green", "blue", "##s", "a")
SHAPE = EncoderShape(
    width=16, inner=32, layers=1, heads=2, vocabulary=len(WORDS), positions=12, types=2, norm_epsilon=1e-12, tokens_max=8
)
CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_act": "gelu",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 12,
    "type_vocab_size": 2,
    "vocab_size": len(WORDS),
    "layer_norm_eps": 1e-12,
}
MODULES = [
    {"idx": index, "name": str(index), "path": "", "type": f"sentence_transformers.models.{name}"}
    for index, name in enumerate(("Transformer", "Pooling", "Normalize"))
]
POOLING = {"word_embedding_dimension": 16, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}


def write_encoder(folder: Path) -> Path:
    """All files of it."""
    (folder / "1_Pooling").mkdir(parents=True)
    write_json(folder / "config.json", CONFIG)
    write_json(folder / "modules.json", MODULES)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": SHAPE.tokens_max, "do_lower_case": False})
    write_json(folder / "1_Pooling" / "config.json", POOLING)
    tokenizer().save(str(folder / "tokenizer.json"))
    save_file(random_weights(), folder / "model.safetensors")
    return folder


def random_weights() -> dict[str, NDArray[np.float32]]:
    """float32, by name."""
    random = np.random.default_rng(0)
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in wanted(SHAPE).items()}


def tokenizer() -> Tokenizer:
    """Word pieces, lower-cased, between [CLS] and [SEP]."""
    made = Tokenizer(models.WordPiece({word: token for token, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", WORDS.index("[CLS]")), ("[SEP]", WORDS.index("[SEP]"))]
    )
    return made


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def edit(path: Path, **changes: Any) -> None:
    """Change fields of a JSON file; None removes one."""
    values = json.loads(path.read_text()) | changes
    write_json(path, {name: value for name, value in values.items() if value is not None})
