"""The families of checkpoints that are understood, as data: their names here and there, and what a GGUF conversion changes.

A GGUF converter renames tensors, reorders the rows of queries and keys where RoPE turns adjacent pairs, adds one to Gemma's
norm weights and stacks experts. What it does to a family is stated here and done by `views` when a tensor is read, so that an
engine cannot tell a checkpoint from a converted file. Names on the left are those of `transformers`, on the right those of
GGUF.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from tripower.backends.safetensors.documents import refuse, shorten
from tripower.backends.safetensors.fields import Fields
from tripower.runtime.kernel.errors import ModelRefused

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
OUTSIDE_LAYERS = {EMBEDDING: "token_embd.weight", "model.norm.weight": "output_norm.weight", HEAD: "output.weight"}

_ATTENTION = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
}
_FEED_FORWARD = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
_HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
_GEMMA_NORMS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """One family of checkpoints."""

    architecture: str
    """What GGUF calls it."""
    class_name: str
    """What `transformers` calls the model with a language head."""
    layer: dict[str, str]
    """Parts of a layer."""
    experts: Mapping[str, str] = {}
    """Parts of one expert, as `EXPERTS.N.PART`."""
    experts_in: str = ""
    """What the experts' names begin with inside a layer."""
    adjacent_pairs: bool = False
    """RoPE turns adjacent pairs in GGUF and halves in the checkpoint: rows of queries and keys have another order."""
    norms_plus_one: bool = False
    """The checkpoint has norm weights minus one."""
    tied: bool = False
    """Whether embedding and head are one where the configuration is silent."""
    activation: str = "silu"
    rope_base: float = 10_000.0
    windows: Literal["none", "all", "upper", "listed"] = "none"
    """Which layers have a sliding window: none, all, those above a stated one, or those that a list or a period names."""
    window: int = 0
    """The window where the configuration is silent; 0 is none."""
    window_period: int = 1
    """For `listed`: the last layer of each period has no window."""
    softcaps: Mapping[str, float] = {}
    """Soft-caps where the configuration is silent."""


_LLAMA = Family(
    architecture="llama",
    class_name="LlamaForCausalLM",
    layer=_ATTENTION | _FEED_FORWARD | _NORMS,
    adjacent_pairs=True,
)
_QWEN2 = Family(
    architecture="qwen2",
    class_name="Qwen2ForCausalLM",
    layer=_ATTENTION | _FEED_FORWARD | _NORMS,
    windows="upper",
    window=4_096,
)
_GEMMA2 = Family(
    architecture="gemma2",
    class_name="Gemma2ForCausalLM",
    layer=_ATTENTION | _FEED_FORWARD | _GEMMA_NORMS,
    norms_plus_one=True,
    tied=True,
    activation="gelu_pytorch_tanh",
    windows="listed",
    window=4_096,
    window_period=2,
    softcaps={"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
)

FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "mistral": msgspec.structs.replace(_LLAMA, class_name="MistralForCausalLM", windows="all", window=4_096),
    "mixtral": msgspec.structs.replace(
        _LLAMA,
        class_name="MixtralForCausalLM",
        layer=_ATTENTION | _NORMS | {"block_sparse_moe.gate": "ffn_gate_inp"},
        experts={"w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps"},
        experts_in="block_sparse_moe.experts",
        rope_base=1e6,
        windows="all",
    ),
    "qwen2": _QWEN2,
    "qwen3": msgspec.structs.replace(
        _QWEN2, architecture="qwen3", class_name="Qwen3ForCausalLM", layer=_QWEN2.layer | _HEAD_NORMS
    ),
    "qwen3_moe": Family(
        architecture="qwen3moe",
        class_name="Qwen3MoeForCausalLM",
        layer=_ATTENTION | _NORMS | _HEAD_NORMS | {"mlp.gate": "ffn_gate_inp"},
        experts={"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"},
        experts_in="mlp.experts",
        windows="all",
        window=4_096,
    ),
    "gemma2": _GEMMA2,
    "gemma3_text": msgspec.structs.replace(
        _GEMMA2,
        architecture="gemma3",
        class_name="Gemma3ForCausalLM",
        layer=_GEMMA2.layer | _HEAD_NORMS,
        rope_base=1e6,
        window_period=6,
        softcaps={},
    ),
}
"""By `model_type` in `config.json`."""


def find_family(config: Fields) -> Family:
    """The family that a configuration names. Raises `ModelRefused` (`unsupported_architecture`)."""
    model_type = config.text("model_type")
    classes = config.values.get("architectures", [])
    if model_type not in FAMILIES:
        raise _unknown(config.field("model_type"), f"{model_type!r}{_called(classes)}")
    family = FAMILIES[model_type]
    if classes != [] and classes != [family.class_name]:
        raise _unknown(config.field("architectures"), f"{shorten(repr(classes))}, not [{family.class_name!r}]")
    return family


def _unknown(field: str, what: str) -> ModelRefused:
    known = ", ".join(sorted(FAMILIES))
    return refuse("unsupported_architecture", field, f"is {what}: no engine here runs that; known are {known}")


def _called(classes: Any) -> str:
    return f" ({classes[0]})" if isinstance(classes, list) and classes and isinstance(classes[0], str) else ""
