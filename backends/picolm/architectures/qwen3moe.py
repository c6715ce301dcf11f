"""`qwen3moe`: `qwen3` with a mixture of experts in every layer; there is no dense feed-forward and no shared expert."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tripower.backends.gguf.metadata import get_int
from tripower.backends.model_file import ModelFile
from tripower.backends.picolm.architectures.fields import WIDTH_MAX, with_experts
from tripower.backends.picolm.architectures.plain import read_plain
from tripower.backends.picolm.architectures.tensors import ATTENTION, wanted_tensors
from tripower.backends.picolm.decoder import Decoder
from tripower.backends.picolm.weights import Wanted


def read_decoder(file: ModelFile) -> Decoder:
    """Raises `ModelRefused` naming the key.

    An expert is as large as stated; old files leave that out and share `feed_forward_length` among the experts that a row passes.
    """
    dense = read_plain(file, "qwen3moe", rope_pairs="halves")
    decoder = with_experts(dense, file.metadata, expert_feed_forward=0)
    shared = max(1, dense.feed_forward // decoder.experts_used)
    inside = get_int(file.metadata, "qwen3moe.expert_feed_forward_length", shared, 1, WIDTH_MAX)
    return msgspec.structs.replace(decoder, expert_feed_forward=inside, query_key_norm=True)


def wanted(decoder: Decoder) -> Iterable[Wanted]:
    return wanted_tensors(decoder, biases=ATTENTION)
