"""`qwen3`: dense Qwen 3. Queries and keys have a norm over each head before RoPE, which works on halves."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tripower.backends.model_file import ModelFile
from tripower.backends.picolm.architectures.plain import read_plain
from tripower.backends.picolm.architectures.tensors import ATTENTION, wanted_tensors
from tripower.backends.picolm.decoder import Decoder
from tripower.backends.picolm.weights import Wanted


def read_decoder(file: ModelFile) -> Decoder:
    """Raises `ModelRefused` naming the key."""
    return msgspec.structs.replace(read_plain(file, "qwen3", rope_pairs="halves"), query_key_norm=True)


def wanted(decoder: Decoder) -> Iterable[Wanted]:
    return wanted_tensors(decoder, biases=ATTENTION)
