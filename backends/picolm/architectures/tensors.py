"""Which tensors a decoder has, by their GGUF names and with their shapes."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tripower.backends.picolm.decoder import EMBEDDING, HEAD, ROPE_FACTORS, Decoder
from tripower.backends.picolm.weights import Wanted

ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
FEED_FORWARD = ("ffn_gate", "ffn_up", "ffn_down")
EXPERTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
STACKED = {
    "attn_q": "attn_qkv", "attn_k": "attn_qkv", "attn_v": "attn_qkv", "ffn_gate": "ffn_gate_up", "ffn_up": "ffn_gate_up",
}  # fmt: skip
"""Projections of the same rows, which become one weight."""


def wanted_tensors(decoder: Decoder, *, biases: Collection[str] = (), rope_factors: bool = False) -> Iterator[Wanted]:
    """Every tensor that a file of this decoder may have.

    Optional are an own head, the biases of the projections named, and the factors of RoPE frequencies where the family has them.
    """
    yield Wanted(EMBEDDING, (decoder.vocabulary_size, decoder.width))
    yield Wanted("output_norm.weight", (decoder.width,))
    yield Wanted(HEAD, (decoder.vocabulary_size, decoder.width), optional=True)
    if rope_factors:
        yield Wanted(ROPE_FACTORS, (decoder.ropes[0].dimensions // 2,), optional=True)
    for layer in range(decoder.layers):
        yield from _norms(decoder, f"blk.{layer}.")
        yield from _projections(decoder, layer, biases)


def _norms(decoder: Decoder, prefix: str) -> Iterator[Wanted]:
    names = ["attn_norm", "ffn_norm"]
    if decoder.post_norms:
        names += ["post_attention_norm", "post_ffw_norm"]
    for name in names:
        yield Wanted(f"{prefix}{name}.weight", (decoder.width,))
    if decoder.query_key_norm:
        for name in ("attn_q_norm", "attn_k_norm"):
            yield Wanted(f"{prefix}{name}.weight", (decoder.head_size,))


def _projections(decoder: Decoder, layer: int, biases: Collection[str]) -> Iterator[Wanted]:
    prefix = f"blk.{layer}."
    mixture = decoder.has_experts(layer)
    if mixture:
        yield Wanted(f"{prefix}ffn_gate_inp.weight", (decoder.experts, decoder.width))
        for name in EXPERTS:
            yield Wanted(f"{prefix}{name}.weight", (decoder.experts, *_sizes(decoder, name)))
    for name in ATTENTION if mixture else ATTENTION + FEED_FORWARD:
        outputs, inputs = _sizes(decoder, name)
        into = STACKED.get(name, name)
        yield Wanted(f"{prefix}{name}.weight", (outputs, inputs), f"{prefix}{into}.weight")
        if name in biases:
            yield Wanted(f"{prefix}{name}.bias", (outputs,), f"{prefix}{into}.bias", optional=True)


def _sizes(decoder: Decoder, name: str) -> tuple[int, int]:
    """Outputs and inputs of a projection, of one expert where it is one of them."""
    width = decoder.width
    queries, keys = decoder.heads * decoder.head_size, decoder.kv_heads * decoder.head_size
    inside = decoder.expert_feed_forward if name in EXPERTS else decoder.feed_forward
    match name:
        case "attn_q":
            return queries, width
        case "attn_k" | "attn_v":
            return keys, width
        case "attn_output":
            return width, queries
        case "ffn_down" | "ffn_down_exps":
            return width, inside
    return inside, width
