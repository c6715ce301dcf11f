"""`gemma2` (Gemma Team, "Gemma 2", 2024): GELU, norms before and after each part, soft-caps on scores and logits.

Embeddings are multiplied by the square root of the width. Every second layer, from the first on, sees a window only. RoPE works on
halves. Norm weights are used as stored: the "plus one" of the original is already in the file. Old files state neither soft-caps nor
window, so these have the defaults of the released models.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tripower.backends.model_file import ModelFile
from tripower.backends.picolm.architectures.fields import read_softcap, read_windows
from tripower.backends.picolm.architectures.plain import read_attention_scale, read_plain
from tripower.backends.picolm.architectures.rope import read_rope_base
from tripower.backends.picolm.architectures.tensors import wanted_tensors
from tripower.backends.picolm.decoder import Decoder
from tripower.backends.picolm.weights import Wanted

SLIDING_PERIOD = 2
WINDOW = 4_096
ATTENTION_SOFTCAP, LOGIT_SOFTCAP = 50.0, 30.0
LAYERS_27B = 46


def read_decoder(file: ModelFile) -> Decoder:
    """Raises `ModelRefused` naming the key."""
    metadata = file.metadata
    plain = read_plain(file, "gemma2", rope_pairs="halves")
    scale = plain.attention_scale
    if plain.layers == LAYERS_27B:  # the one size that was trained with another scale; its files do not say so
        scale = read_attention_scale(metadata, "gemma2", plain.width / plain.heads)
    [rope] = plain.ropes
    local = msgspec.structs.replace(rope, base=read_rope_base(metadata, "gemma2.rope.freq_base_swa", rope.base))
    windows = read_windows(metadata, "gemma2", plain.layers, window=WINDOW, period=SLIDING_PERIOD)
    return msgspec.structs.replace(
        plain,
        attention_scale=scale,
        embedding_scale=plain.width**0.5,
        activation="gelu",
        ropes=(rope, local),
        layer_rope=tuple(int(window > 0) for window in windows),
        windows=windows,
        attention_softcap=read_softcap(metadata, "gemma2.attn_logit_softcapping", ATTENTION_SOFTCAP),
        logit_softcap=read_softcap(metadata, "gemma2.final_logit_softcapping", LOGIT_SOFTCAP),
        post_norms=True,
    )


def wanted(decoder: Decoder) -> Iterable[Wanted]:
    return wanted_tensors(decoder)
