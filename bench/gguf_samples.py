"""Small GGUF files made from nothing: seeds of the fuzzer, and vocabularies for tests.

The writer is the reader's opposite and knows nothing of its limits, so it can write what must be refused.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tripower.backends.gguf.types import TENSOR_TYPES
from tripower.backends.text.bpe import BYTE_OF_CHARACTER

NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
DATA_BYTES_MAX = 2**18
"""More than any sample needs; tensors that claim more are past the end."""


class Typed(NamedTuple):
    """A value with its GGUF type; plain Python values get the usual one."""

    kind: int
    value: object


class Tensor(NamedTuple):
    """`dimensions` as stored, fastest first. `offset` None means after the tensor before it."""

    name: str
    dimensions: tuple[int, ...]
    type_id: int = 0
    offset: int | None = None


def write_gguf(
    metadata: Mapping[str, object] | Sequence[tuple[str, object]],
    tensors: Sequence[Tensor] = (Tensor("output_norm.weight", (8,)),),
    *,
    version: int = 3,
    alignment: int = 32,
    tensor_count: int | None = None,
    fill: int = 0x3C,
) -> bytes:
    """The bytes of a file. Keys may repeat when given as pairs; tensor data is the byte `fill` throughout."""
    pairs = list(metadata.items() if isinstance(metadata, Mapping) else metadata)
    count = len(tensors) if tensor_count is None else tensor_count
    header = [b"GGUF", struct.pack("<IQQ", version, count, len(pairs))]
    header += [string(key) + typed_value(value) for key, value in pairs]
    end = 0
    for tensor in tensors:
        offset = end if tensor.offset is None else tensor.offset
        header.append(string(tensor.name) + struct.pack("<I", len(tensor.dimensions)))
        header += [struct.pack("<Q", size) for size in tensor.dimensions]
        header.append(struct.pack("<IQ", tensor.type_id, offset % 2**64))
        end = -(-(offset + data_bytes(tensor)) // alignment) * alignment
    head = b"".join(header)
    return head + bytes(-len(head) % alignment) + bytes([fill]) * min(end, DATA_BYTES_MAX)


def data_bytes(tensor: Tensor) -> int:
    kind = TENSOR_TYPES.get(tensor.type_id, TENSOR_TYPES[0])
    elements = 1
    for size in tensor.dimensions:
        elements *= size
    return elements // kind.block_elements * kind.block_bytes


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def typed_value(value: object) -> bytes:
    kind, plain = value if isinstance(value, Typed) else (_kind(value), value)
    return struct.pack("<I", kind) + _body(kind, plain)


def _kind(value: object) -> int:
    match value:
        case bool():
            return 7
        case int():
            return 4 if 0 <= value < 2**32 else 11
        case float():
            return 6
        case str() | bytes():
            return STRING
    return ARRAY


def _body(kind: int, value: object) -> bytes:
    if kind == STRING:
        assert isinstance(value, (str, bytes))
        return string(value)
    if kind == ARRAY:
        assert isinstance(value, (list, tuple))
        item = 5 if value and isinstance(value[0], int) else _kind(value[0]) if value else STRING
        return struct.pack("<IQ", item, len(value)) + b"".join(_body(item, part) for part in value)
    return struct.pack(NUMBERS[kind], value)


def byte_level_metadata(
    pre: str = "gpt-2", merges: Sequence[str] = ("h e", "l l", "he ll"), more: Mapping[str, object] | None = None
) -> dict[str, object]:
    """A llama-like model with a byte-level vocabulary: 256 bytes, what the merges make, three control tokens."""
    joined = ["".join(merge.split(" ", 1)) for merge in merges]
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = [*BYTE_OF_CHARACTER, *joined, *control]
    return {
        **_model_metadata(len(tokens)),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (256 + len(joined)) + [3] * 3,
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.bos_token_id": len(tokens) - 2,
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
        **(more or {}),
    }


def sentencepiece_metadata(
    pieces: Mapping[str, float] | None = None, more: Mapping[str, object] | None = None
) -> dict[str, object]:
    """The same with a SentencePiece vocabulary: three control tokens, 256 bytes, the pieces."""
    scores = dict(
        pieces or {"▁": -9.0, "h": -8.0, "e": -7.0, "l": -6.0, "o": -5.0, "he": -1.0, "ll": -2.0, "▁he": -3.0, "llo": -4.0}
    )
    return {
        **_model_metadata(259 + len(scores)),
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *scores],
        "tokenizer.ggml.scores": [0.0] * 259 + list(scores.values()),
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(scores),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **(more or {}),
    }


def every_pair_of_bytes(seed: int = 0) -> list[str]:
    """Merges that join any two bytes, in an order drawn from the seed: every place where text is cut shows in the ids."""
    characters = list(BYTE_OF_CHARACTER)
    merges = [f"{left} {right}" for left in characters for right in characters]
    random.Random(seed).shuffle(merges)
    return merges


def llama_tensors(vocabulary: int, *, type_id: int = 2) -> list[Tensor]:
    """The tensors of a one-layer llama of width 32; matrices have the given type, Q4_0 as a rule."""
    matrices = {
        "token_embd": (32, vocabulary),
        "blk.0.attn_q": (32, 32),
        "blk.0.attn_k": (32, 16),
        "blk.0.attn_v": (32, 16),
        "blk.0.attn_output": (32, 32),
        "blk.0.ffn_gate": (32, 64),
        "blk.0.ffn_up": (32, 64),
        "blk.0.ffn_down": (64, 32),
    }
    norms = ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")
    return [
        *(Tensor(f"{name}.weight", dimensions, type_id) for name, dimensions in matrices.items()),
        *(Tensor(f"{name}.weight", (32,)) for name in norms),
    ]


def _model_metadata(vocabulary: int) -> dict[str, object]:
    return {
        "general.architecture": "llama",
        "general.name": "sample",
        "llama.context_length": 128,
        "llama.embedding_length": 32,
        "llama.block_count": 1,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": 16,
        "llama.vocab_size": vocabulary,
    }
