"""A checkpoint's folder where a model is asked for: it is used where it lies, and what cannot be run says so at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.api.children import tripower
from tripower.api.plan import find_any, find_source, find_stored, make_plan, read_needs
from tripower.api.pull.pull import pull_blocking
from tripower.runtime.configuration import Configuration, EngineSettings
from tripower.runtime.host import ModelNeeds
from tripower.runtime.kernel.errors import ModelRefused, NotFound
from tripower.runtime.store import Store

save_file = pytest.importorskip("safetensors.numpy").save_file

WIDTH, TOKENS, LAYERS, HEAD = 32, 256, 1, 16
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": TOKENS,
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A llama of one layer that knows bytes."""
    path = tmp_path / "tiny"
    path.mkdir()
    random = np.random.default_rng(0)
    prefix = "model.layers.0."
    shapes = {
        "model.embed_tokens": (TOKENS, WIDTH),
        "model.norm": (WIDTH,),
        **{f"{prefix}{name}": (WIDTH,) for name in ("input_layernorm", "post_attention_layernorm")},
        **{f"{prefix}self_attn.{name}_proj": (WIDTH, WIDTH) for name in "qkvo"},
        **{f"{prefix}mlp.{name}_proj": (WIDTH, WIDTH) for name in ("gate", "up", "down")},
    }
    weights = {f"{name}.weight": random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(weights, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(CONFIG))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({text: token for token, text in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


def edit(path: Path, **fields: Any) -> None:
    (path / "config.json").write_text(json.dumps(CONFIG | fields))


@pytest.mark.parametrize(
    ("form", "name"),
    [("{}", "tiny"), ("mine={}", "mine"), ("{}/model.safetensors", "model"), ("mine={}/model.safetensors", "mine")],
)
def test_a_folder_or_its_weights_go_to_picolm(form: str, name: str, folder: Path, store: Store) -> None:
    found = find_source(form.format(folder), store)
    path = str(folder / "model.safetensors" if "model." in form else folder)
    assert (found.name, found.source, found.backend) == (name, path, "picolm")
    any_of = find_any(store)(form.format(folder))
    assert any_of is not None and any_of.source == path
    assert not store.home.exists()


def test_the_needs_come_from_the_headers(folder: Path) -> None:
    matrices = TOKENS * WIDTH + 7 * WIDTH * WIDTH
    needs = read_needs(str(folder))
    assert needs == ModelNeeds(
        context_max=64, state_bytes_per_token=needs.state_bytes_per_token, weight_bytes=needs.weight_bytes
    )
    assert needs.weight_bytes >= 2 * matrices
    plan = make_plan(Configuration(), [find_source(str(folder), Store())])
    assert plan.sources[0].backend == "picolm"


def test_clients_over_the_network_reach_no_folder(folder: Path, store: Store) -> None:
    assert find_stored(store)(str(folder)) is None


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path, store: Store) -> None:
    with pytest.raises(ModelRefused, match=r"a folder without a config\.json"):
        find_source(str(tmp_path), store)
    with pytest.raises(NotFound, match="there is no file"):
        find_source(f"{tmp_path}/nothing", store)


def test_a_model_of_another_kind_is_refused_by_its_kind(folder: Path, store: Store) -> None:
    edit(folder, model_type="t5", architectures=["T5Model"])
    with pytest.raises(ModelRefused, match=r"'t5' \(T5Model\): no engine here runs that") as caught:
        find_source(str(folder), store)
    assert (caught.value.code, caught.value.param) == ("unsupported_architecture", "config.json model_type")


@pytest.mark.parametrize("backend", ["llamacpp", "mistralrs"])
def test_engines_that_run_gguf_only_refuse_a_folder(backend: str, folder: Path, store: Store) -> None:
    with pytest.raises(ModelRefused, match="leave out --backend"):
        find_source(str(folder), store, Configuration(engine=EngineSettings(backend=backend)))


def test_weights_without_a_configuration_are_no_model(folder: Path, store: Store) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ModelRefused, match="safetensors file, and no engine here runs those"):
        find_source(str(folder / "model.safetensors"), store)


def test_a_folder_needs_no_pull(folder: Path, store: Store) -> None:
    with pytest.raises(ModelRefused, match="used where it lies") as caught:
        pull_blocking(str(folder), store=store)
    assert caught.value.code == "not_a_file"


def test_the_command_line_answers_from_a_folder(folder: Path, tmp_path: Path) -> None:
    finished = tripower(tmp_path / "home", "run", f"mine={folder}", "hi", "--max-tokens", "4", "--temperature", "0", "--json")
    assert finished.returncode == 0, finished.stderr
    answer = json.loads(finished.stdout)
    assert answer["text"] and answer["model"] == f"mine={folder}"
