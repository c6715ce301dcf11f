"""`qwen2`: Qwen 1.5 to 2.5 and what was distilled into them. As `llama`, with biases on queries, keys and values, and RoPE on halves.

Some of its models state YaRN. A sliding window is honoured only where the file says which layers have it: their original
configurations state a window and, apart from it, that it is not used. llama.cpp has none.
"""

from __future__ import annotations

from collections.abc import Iterable

from tripower.backends.model_file import ModelFile
from tripower.backends.picolm.architectures.plain import read_plain
from tripower.backends.picolm.architectures.tensors import ATTENTION, wanted_tensors
from tripower.backends.picolm.decoder import Decoder
from tripower.backends.picolm.weights import Wanted


def read_decoder(file: ModelFile) -> Decoder:
    """Raises `ModelRefused` naming the key."""
    return read_plain(file, "qwen2", rope_pairs="halves")


def wanted(decoder: Decoder) -> Iterable[Wanted]:
    return wanted_tensors(decoder, biases=ATTENTION)
