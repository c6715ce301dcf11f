"""Changes that turn a valid GGUF file into a hostile one: some know the structure, some only bytes."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from tripower.bench.gguf_samples import (
    ARRAY,
    Tensor,
    Typed,
    byte_level_metadata,
    llama_tensors,
    sentencepiece_metadata,
    write_gguf,
)

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
EXTREMES = (0, 1, 2, 7, 31, 255, 256, 65_535, 65_536, 2**20, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
KEYS = (
    "general.alignment", "general.architecture", "split.count", "general.sampling.temp", "general.sampling.top_k",
    "tokenizer.chat_template", "tokenizer.ggml.add_bos_token", "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.eot_token_id",
    "llama.rope.scaling.type", "llama.attention.key_length", "llama.expert_count",
)  # fmt: skip
TEXTS = (
    "",
    "\0",
    "a\nb",
    "default",
    "qwen2",
    "gemma3",
    "llama",
    "▁",
    "<0x00>",
    "<0xZZ>",
    "<|im_end|>",
    "{{ 'a' * 9**9 }}",
    "x" * 3000,
)


class Draft:
    """A file as its parts, before it is written."""

    def __init__(self, metadata: dict[str, object], tensors: list[Tensor], version: int = 3, alignment: int = 32) -> None:
        self.pairs: list[tuple[str, object]] = list(metadata.items())
        self.tensors = tensors
        self.version = version
        self.alignment = alignment
        self.tensor_count: int | None = None

    def write(self) -> bytes:
        return write_gguf(
            self.pairs, self.tensors, version=self.version, alignment=self.alignment, tensor_count=self.tensor_count
        )


def seeds() -> list[Callable[[], Draft]]:
    """Valid files of every kind that the reader and the text layer know."""

    def model(metadata: dict[str, object]) -> Draft:
        tokens = metadata["tokenizer.ggml.tokens"]
        assert isinstance(tokens, list)
        return Draft(metadata, llama_tensors(len(tokens)))

    every_type = {f"v.{kind}": Typed(kind, 1) for kind in (0, 1, 2, 3, 4, 5, 7, 10, 11)} | {"v.6": 1.5, "v.12": Typed(12, 2.5)}
    arrays = {"a.words": ["a", "bc", ""], "a.numbers": [1, 2, 3], "a.floats": [1.0, 2.0]}
    few = [Tensor("a", (32, 2))]
    kinds = [Tensor(f"t{kind}", (256, 2), kind) for kind in (0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 30, 39)]
    return [
        lambda: Draft({"general.architecture": "llama"}, list(few)),
        lambda: Draft(every_type | arrays, list(few), version=2),
        lambda: Draft({"general.alignment": 64}, list(kinds), alignment=64),
        lambda: model(byte_level_metadata(more={"tokenizer.chat_template": TEMPLATE})),
        lambda: model(byte_level_metadata("llama-bpe", more={"general.sampling.temp": 0.7, "general.sampling.top_k": 20})),
        lambda: model(sentencepiece_metadata()),
        lambda: model(sentencepiece_metadata(more={"tokenizer.ggml.add_space_prefix": False})),
    ]


def mutate(draft: Draft, rng: random.Random) -> bytes:
    """The bytes of a draft after one to four changes of structure, of bytes, or of both."""
    way = rng.random()
    if way < 0.7:
        for _ in range(rng.randint(1, 4)):
            rng.choice(STRUCTURE)(draft, rng)
    data = bytearray(draft.write())
    if way > 0.5:
        for _ in range(rng.randint(1, 4)):
            rng.choice(BYTES)(data, rng)
    return bytes(data)


def _change_value(draft: Draft, rng: random.Random) -> None:
    index = rng.randrange(len(draft.pairs))
    key, value = draft.pairs[index]
    draft.pairs[index] = (key, _other(value, rng))


def _other(value: object, rng: random.Random) -> object:
    """Another value: of another type, an extreme one, or an array with its items changed."""
    if isinstance(value, list) and value and rng.random() < 0.7:
        return _other_items(list(value), rng)
    return rng.choice(
        (
            Typed(10, rng.choice(EXTREMES)),
            Typed(4, rng.choice(EXTREMES) & 0xFFFFFFFF),
            Typed(11, -rng.choice(EXTREMES[:15])),
            Typed(5, -rng.randrange(1000)),
            float(rng.choice((0, -1, 1e38, float("nan"), float("inf")))),
            rng.choice(TEXTS),
            rng.random() < 0.5,
            Typed(ARRAY, []),
            [rng.choice(TEXTS)],
            [rng.randrange(-5, 300)],
            [float("nan"), 1.0],
        )
    )


def _other_items(items: list[object], rng: random.Random) -> list[object]:
    match rng.randrange(5):
        case 0:
            del items[rng.randrange(len(items)) :]
        case 1:
            rng.shuffle(items)
        case 2:
            items.append(items[rng.randrange(len(items))])
        case 3:
            items *= rng.randint(1, 3)
        case _:
            index = rng.randrange(len(items))
            kind = type(items[index])
            choices = [item for item in (rng.choice(TEXTS), rng.randrange(-9, 9), float("nan")) if isinstance(item, kind)]
            items[index] = choices[0] if choices else items[index]
    return items


def _remove_pair(draft: Draft, rng: random.Random) -> None:
    if len(draft.pairs) > 1:
        del draft.pairs[rng.randrange(len(draft.pairs))]


def _repeat_pair(draft: Draft, rng: random.Random) -> None:
    draft.pairs.append(rng.choice(draft.pairs))


def _add_pair(draft: Draft, rng: random.Random) -> None:
    draft.pairs = [pair for pair in draft.pairs if pair[0] != (key := rng.choice(KEYS))]
    draft.pairs.append((key, _other(None, rng)))


def _change_tensor(draft: Draft, rng: random.Random) -> None:
    if not draft.tensors:
        return
    index = rng.randrange(len(draft.tensors))
    tensor = draft.tensors[index]
    match rng.randrange(5):
        case 0:
            sizes = tuple(rng.choice((*EXTREMES, 32, 64, 256)) for _ in range(rng.choice((0, 1, 2, 3, 4, 5, 9))))
            tensor = tensor._replace(dimensions=sizes)
        case 1:
            tensor = tensor._replace(type_id=rng.randrange(45))
        case 2:
            tensor = tensor._replace(offset=rng.choice((*EXTREMES, 32, 64, 96)))
        case 3:
            tensor = tensor._replace(name=rng.choice((*TEXTS, draft.tensors[0].name)))
        case _:
            tensor = tensor._replace(dimensions=tuple(reversed(tensor.dimensions)))
    draft.tensors[index] = tensor


def _change_tensor_list(draft: Draft, rng: random.Random) -> None:
    match rng.randrange(4):
        case 0:
            draft.tensors.clear()
        case 1 if draft.tensors:
            draft.tensors.append(rng.choice(draft.tensors))
        case 2 if draft.tensors:
            del draft.tensors[rng.randrange(len(draft.tensors))]
        case _:
            draft.tensor_count = rng.choice(EXTREMES)


def _change_version(draft: Draft, rng: random.Random) -> None:
    draft.version = rng.choice((0, 1, 2, 4, 0x02000000, 0x03000000, 2**32 - 1))


def _flip_bits(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 8)):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _extend(data: bytearray, rng: random.Random) -> None:
    data += rng.randbytes(rng.choice((1, 31, 32, 33, 500)))


def _overwrite_number(data: bytearray, rng: random.Random) -> None:
    """An extreme number, mostly near the front, where lengths and counts are."""
    width = rng.choice((4, 8))
    if len(data) > width:
        reach = len(data) - width if rng.random() < 0.5 else min(len(data) - width, 400)
        place = rng.randrange(reach + 1)
        number = rng.choice(EXTREMES) & (2 ** (8 * width) - 1)
        data[place : place + width] = struct.pack("<Q", number)[:width]


def _move_range(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data) + 1)
    piece = data[start : start + rng.randint(1, 64)]
    if rng.random() < 0.5:
        del data[start : start + len(piece)]
    place = rng.randrange(len(data) + 1)
    data[place:place] = piece


STRUCTURE = (
    *[_change_value] * 6, *[_add_pair] * 3, *[_change_tensor] * 3,
    _remove_pair, _repeat_pair, _change_tensor_list, _change_version,
)  # fmt: skip
BYTES = (_flip_bits, _flip_bits, _cut, _extend, _overwrite_number, _overwrite_number, _move_range)
