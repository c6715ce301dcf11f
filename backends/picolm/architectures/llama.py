"""`llama`: Llama 1 to 3, Mistral, SmolLM2 and others of that form, and with experts Mixtral.

Positions turn adjacent pairs: the converter reorders the rows of queries and keys for that. Any projection may have a bias. Llama 3
has factors of its RoPE frequencies. Experts are as large as `feed_forward_length` says. A stated sliding window is honoured in every
layer (Mistral 7B 0.1 was trained with one), which llama.cpp does not do.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tripower.backends.gguf.metadata import get_int
from tripower.backends.model_file import ModelFile
from tripower.backends.picolm.architectures.fields import read_windows, with_experts
from tripower.backends.picolm.architectures.plain import read_plain
from tripower.backends.picolm.architectures.tensors import ATTENTION, FEED_FORWARD, wanted_tensors
from tripower.backends.picolm.decoder import Decoder
from tripower.backends.picolm.weights import Wanted


def read_decoder(file: ModelFile) -> Decoder:
    """Raises `ModelRefused` naming the key."""
    decoder = read_plain(file, "llama", rope_pairs="adjacent")
    windows = read_windows(file.metadata, "llama", decoder.layers, period=0)
    decoder = msgspec.structs.replace(decoder, windows=windows)
    if not get_int(file.metadata, "llama.expert_count", 0):
        return decoder
    return with_experts(decoder, file.metadata, expert_feed_forward=decoder.feed_forward)


def wanted(decoder: Decoder) -> Iterable[Wanted]:
    return wanted_tensors(decoder, biases=ATTENTION + FEED_FORWARD, rope_factors=True)
