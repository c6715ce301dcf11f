"""How many positions each sequence gets, decided from the file's header before anything native is allocated."""

from __future__ import annotations

from tripower.backends.gguf.metadata import Metadata, get_int, require_int, require_string
from tripower.backends.llamacpp.native import POSITIONS_UNIT, padded
from tripower.runtime.engine import LoadSpecification
from tripower.runtime.kernel.errors import ModelRefused

HALF_BYTES = 2
SEQUENCES_MAX = 256
"""LLAMA_MAX_SEQ of the tried builds."""
LAYERS_MAX, SIZE_MAX = 1_024, 1 << 20


def state_bytes(metadata: Metadata) -> int:
    """What one position of one sequence takes in half precision: a key and a value for each kv head of each layer.

    More than llama.cpp needs for families that compress their state, so a context that is admitted by this fits.
    """
    name = require_string(metadata, "general.architecture")
    layers = require_int(metadata, f"{name}.block_count", 1, LAYERS_MAX)
    width = require_int(metadata, f"{name}.embedding_length", 1, SIZE_MAX)
    heads = _largest(metadata, f"{name}.attention.head_count", 1)
    kv_heads = _largest(metadata, f"{name}.attention.head_count_kv", heads)
    key = get_int(metadata, f"{name}.attention.key_length", width // heads, 1, SIZE_MAX)
    value = get_int(metadata, f"{name}.attention.value_length", width // heads, 1, SIZE_MAX)
    return layers * kv_heads * (key + value) * HALF_BYTES


def choose_context(metadata: Metadata, specification: LoadSpecification) -> int:
    """Positions for each sequence: as asked, else as many as the model was trained for and memory allows.

    Raises `ModelRefused` (`context_too_long`, `state_memory_too_small`, `too_many_sequences`) with the sizes that would do.
    """
    name = require_string(metadata, "general.architecture")
    trained = require_int(metadata, f"{name}.context_length", 1)
    sequences, asked = specification.sequences_max, specification.context
    if sequences > SEQUENCES_MAX:
        raise ModelRefused(
            f"llama.cpp has places for {SEQUENCES_MAX} sequences, {sequences} were asked for",
            code="too_many_sequences",
            param="sequences_max",
        )
    if asked > trained:
        raise ModelRefused(
            f"a context of {asked} positions was asked for; {specification.name} was trained for {trained}",
            code="context_too_long",
            param="context",
        )
    each = state_bytes(metadata)
    room = specification.state_bytes_max // (sequences * each * POSITIONS_UNIT) * POSITIONS_UNIT
    needed = padded(asked or min(trained, POSITIONS_UNIT))
    if needed > room:
        raise ModelRefused(
            f"{sequences} sequences of {needed} positions need {needed * each * sequences} bytes of state memory, "
            f"{specification.state_bytes_max} are allowed: allow more memory, fewer sequences or a shorter context",
            code="state_memory_too_small",
            param="state_bytes_max",
        )
    return asked or min(trained, room)


def _largest(metadata: Metadata, key: str, default: int) -> int:
    """A number that may be given once for all layers or for each of them: the largest."""
    value = metadata.get(key)
    if value is None or isinstance(value, int):
        return get_int(metadata, key, default, 1, SIZE_MAX)
    if not hasattr(value, "__iter__") or isinstance(value, str):
        return require_int(metadata, key, 1, SIZE_MAX)
    return max(1, *(int(each) for each in value))
