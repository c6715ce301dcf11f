"""Tiny checkpoints with random weights, saved by transformers itself, and small tokenizers trained on a few lines."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.backends.safetensors.rigs import edit_json

WriteCheckpoint = Callable[..., Path]
SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}


@pytest.fixture(scope="session", autouse=True)
def no_hub() -> Iterator[None]:
    """transformers must never look for anything outside the folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.fixture(scope="session")
def transformers() -> Any:
    """The library, imported once; its dependencies warn of each other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("transformers")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, transformers: Any) -> WriteCheckpoint:
    """`checkpoint("Llama", attention_bias=True)` writes a folder as `save_pretrained` does.

    Keywords are fields of the configuration. `dtype` is the type of the weights, `shard_bytes` cuts them into files of that
    size, and `edit` changes the fields in `config.json` afterwards (None removes one).
    """
    folder = tmp_path_factory.mktemp("checkpoints")
    numbers = itertools.count()

    def write(
        family: str = "Llama",
        *,
        dtype: torch.dtype = torch.float32,
        shard_bytes: int | None = None,
        edit: dict[str, Any] | None = None,
        **fields: Any,
    ) -> Path:
        path = folder / f"{family.lower()}-{next(numbers)}"
        config_class = getattr(transformers, {"Gemma3": "Gemma3TextConfig"}.get(family, f"{family}Config"))
        model = getattr(transformers, f"{family}ForCausalLM")(config_class(**(SHAPE | fields))).to(dtype)
        _randomise(model)
        model.save_pretrained(path, **({"max_shard_size": shard_bytes} if shard_bytes else {}))
        if edit:
            edit_json(path / "config.json", edit)
        return path

    return write


def _randomise(model: Any) -> None:
    """Weights that leave no part of the model without effect."""
    torch.manual_seed(0)
    with torch.no_grad():
        for weights in model.parameters():
            noise = torch.randn(weights.shape)
            if weights.dim() == 1:
                weights += 0.2 * noise.to(weights.dtype)
            else:
                weights.copy_(noise * 2.0 * weights.shape[-1] ** -0.5)
