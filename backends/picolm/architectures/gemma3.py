"""`gemma3` (Gemma Team, "Gemma 3 technical report", 2025): as `gemma2`, with norms of queries and keys in place of soft-caps on scores.

Five layers of six see a window only and have a RoPE base of their own, which is not scaled. RoPE works on halves. Norm weights are
used as stored: the "plus one" of the original is already in the file.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tripower.backends.model_file import ModelFile
from tripower.backends.picolm.architectures.fields import read_softcap, read_windows
from tripower.backends.picolm.architectures.plain import read_attention_scale, read_plain
from tripower.backends.picolm.architectures.rope import ROPE_BASE_DEFAULT, read_amplitude, read_rope_base
from tripower.backends.picolm.architectures.tensors import wanted_tensors
from tripower.backends.picolm.decoder import Decoder, RopeShape
from tripower.backends.picolm.weights import Wanted

SLIDING_PERIOD = 6
LAYERS_27B = 62


def read_decoder(file: ModelFile) -> Decoder:
    """Raises `ModelRefused` naming the key."""
    metadata = file.metadata
    plain = read_plain(file, "gemma3", rope_pairs="halves")
    scale = plain.attention_scale
    if plain.layers == LAYERS_27B:  # the one size that was trained with another scale; its files do not say so
        scale = read_attention_scale(metadata, "gemma3", plain.width / plain.heads)
    [rope] = plain.ropes
    local = RopeShape(
        rope.dimensions,
        read_rope_base(metadata, "gemma3.rope.freq_base_swa", ROPE_BASE_DEFAULT),
        amplitude=read_amplitude(metadata, "gemma3"),
    )
    windows = read_windows(metadata, "gemma3", plain.layers, period=SLIDING_PERIOD)
    return msgspec.structs.replace(
        plain,
        attention_scale=scale,
        embedding_scale=plain.width**0.5,
        activation="gelu",
        ropes=(rope, local),
        layer_rope=tuple(int(window > 0) for window in windows),
        windows=windows,
        logit_softcap=read_softcap(metadata, "gemma3.final_logit_softcapping", 0.0),
        query_key_norm=True,
        post_norms=True,
    )


def wanted(decoder: Decoder) -> Iterable[Wanted]:
    return wanted_tensors(decoder)
