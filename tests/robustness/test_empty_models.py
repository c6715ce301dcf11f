"""Model files that are well formed and have next to nothing in them: refused with the reason, and nobody else notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.api.serving import serving_toy
from tests.backends.conftest import specification_for
from tests.robustness.routes import ROUTES
from tripower.actors.models import ModelSource
from tripower.actors.runtime import toy_plan
from tripower.backends.picolm.backend import PicolmBackend
from tripower.backends.toy import ToyBackend
from tripower.runtime.kernel.errors import ModelRefused

KEYS = ("context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count", "attention.head_count_kv",
        "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon", "rope.dimension_count",
        "rope.freq_base", "vocab_size")  # fmt: skip
NEEDED = ("context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count")
COUNTS = (
    "context_length",
    "embedding_length",
    "block_count",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
)

EMPTY: dict[str, dict[str, Any]] = {
    "a header and the architecture alone": {"metadata": dict.fromkeys(f"llama.{key}" for key in KEYS)},
    "no layers": {"layers": 0},
    "layers that are counted and not there": {"layers": 0, "metadata": {"llama.block_count": 2}},
    "more layers than there are": {"metadata": {"llama.block_count": 3}},
    "no embedding": {"drop": ("token_embd.weight",)},
    "no last norm": {"drop": ("output_norm.weight",)},
    "one matrix missing": {"drop": ("blk.1.ffn_up.weight",)},
    **{f"no {key}": {"metadata": {f"llama.{key}": None}} for key in NEEDED},
    **{f"{key} of zero": {"metadata": {f"llama.{key}": 0}} for key in COUNTS},
}


@pytest.mark.parametrize("case", EMPTY)
def test_a_model_with_nothing_in_it_is_refused_with_the_reason(case: str, tiny_model: Any) -> None:  # BB-068
    path = tiny_model("llama", **EMPTY[case])
    for kernels in ("native", "torch"):
        with pytest.raises(ModelRefused) as caught:
            for _ in PicolmBackend(kernels).load(specification_for(path), lambda stage, done: None):
                pass
        assert caught.value.param and len(caught.value.message) > 10


@pytest.mark.parametrize(
    "case", ["a header and the architecture alone", "layers that are counted and not there", "attention.head_count of zero"]
)
async def test_other_models_are_served_on(case: str, tiny_model: Any) -> None:  # BB-068
    empty = ModelSource(name="empty", source=str(tiny_model("llama", **EMPTY[case])), backend="picolm")
    plan = toy_plan()
    plan = toy_plan(backends={"toy": ToyBackend(), "picolm": PicolmBackend("torch")}, sources=(*plan.sources, empty))
    async with serving_toy(plan) as server:
        for route in ROUTES:
            for stream in (False, True):
                refused = await server.ask(route.path, route.body(model="empty", stream=stream))
                assert refused.status == 503 and route.error(refused)["message"]
                assert (await server.ask(route.path, route.body(stream=stream))).status == 200
        assert (await server.ask("/health")).status == 200


def test_a_file_of_a_few_bytes_is_refused(tmp_path: Path) -> None:  # BB-068
    for data in (b"", b"GGUF", b"GGUF" + bytes(20), b"x" * 40):
        path = tmp_path / "few.gguf"
        path.write_bytes(data)
        with pytest.raises(ModelRefused):
            for _ in PicolmBackend("torch").load(specification_for(path), lambda stage, done: None):
                pass
