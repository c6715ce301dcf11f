"""Bodies: a valid one for each route, and how they are spoilt.

Spoiling happens at three levels: a value in the tree is replaced, taken out or said twice; the text is cut, bent or wrapped; the bytes are
no text at all. Most bodies are spoilt once, so that what they reach lies behind the first check.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Any

import attrs

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOLS = [{"type": "function", "function": {"name": "look", "description": "", "parameters": SCHEMA}}]
CHAT = {
    "model": "toy", "messages": MESSAGES, "max_completion_tokens": 4, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1,
    "stop": ["zz"], "seed": 7, "n": 2, "logprobs": True, "top_logprobs": 2, "logit_bias": {"97": 1.5}, "stream": False,
    "presence_penalty": 0.1, "frequency_penalty": 0.1, "user": "me", "priority": 3, "ignore_eos": True,
}  # fmt: skip
COMPLETION = {
    "model": "toy", "prompt": "abc", "max_tokens": 4, "logprobs": 2, "echo": True, "min_tokens": 1, "stop_token_ids": [98],
    "suffix": None, "best_of": 1, "repeat_penalty": 1.1, "stream": False,
}  # fmt: skip

BODIES: Mapping[str, Sequence[Mapping[str, Any]]] = MappingProxyType(
    {
        "/v1/chat/completions": (
            CHAT,
            {"model": "toy", "messages": MESSAGES, "max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}},
            {"model": "toy", "messages": MESSAGES, "max_tokens": 20, "response_format": {"type": "json_object"}},
            {
                "model": "toy",
                "messages": MESSAGES,
                "max_tokens": 20,
                "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}},
            },
            {"model": "toy", "messages": MESSAGES, "max_tokens": 5, "tools": TOOLS, "tool_choice": "auto"},
        ),
        "/v1/completions": (
            COMPLETION,
            {"model": "toy", "prompt": [97, 98], "max_tokens": 3, "stream": True},
            {"model": "toy", "prompt": [[97], [98]], "max_tokens": 0, "echo": True, "logprobs": 1},
            {"model": "toy", "prompt": "a", "max_tokens": 8, "structured_outputs": {"regex": "[ab]{2}"}},
            {"model": "toy", "prompt": "a", "max_tokens": 8, "grammar": 'root ::= "a" | "b"'},
        ),
        "/v1/embeddings": ({"model": "toy", "input": ["a", "b"], "encoding_format": "base64", "dimensions": 4},),
        "/tokenize": ({"content": "abc", "with_pieces": True}, {"prompt": "abc"}, {"model": "toy", "messages": MESSAGES}),
        "/detokenize": ({"tokens": [97, 98, 99]},),
        "/apply-template": ({"messages": MESSAGES, "chat_template_kwargs": {"a": 1}},),
        "/v1/chat/completions/input_tokens": (CHAT,),
        "/models/load": ({"model": "toy"},),
        "/models/unload": ({"model": "toy"},),
        "/v1/responses": (
            {"model": "toy", "input": "abc", "max_output_tokens": 4, "instructions": "x", "temperature": 0.2},
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}], "stream": True},
            {"input": [{"type": "function_call_output", "call_id": "c", "output": "1"}], "text": {"format": {"type": "text"}}},
        ),
        "/v1/responses/input_tokens": ({"model": "toy", "input": "abc"},),
        "/v1/messages": (
            {"model": "toy", "max_tokens": 4, "messages": [{"role": "user", "content": "a"}], "stop_sequences": ["q"]},
            {"max_tokens": 4, "system": [{"type": "text", "text": "s"}], "messages": MESSAGES[1:], "stream": True},
        ),
        "/v1/messages/count_tokens": ({"model": "toy", "messages": [{"role": "user", "content": "a"}]},),
    }
)
"""By route: what is answered with 200, or refused for a reason of the model's."""


@attrs.frozen
class Raw:
    """Text that stands in a document as it is."""

    text: str


Pairs = list[tuple[str, Any]]
"""An object whose keys may be there twice; told from an array by `Twice`."""


@attrs.frozen
class Twice:
    """An object with one of its keys said twice."""

    pairs: Pairs


LONG = "x" * 20_000
VALUES: Sequence[Any] = (
    None, True, False, 0, -1, 1, 2, 1.5, -0.0, 1e308, 5e-324, 255, 256, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**40,
    "", "a", " ", "toy", "auto", "\x00", "\ud800", "\udfff\ud800", "a\x00b", "\u202e", "é" * 50, "😀", LONG, "%s%n{}", "../../etc", "<end>",
    [], {}, [[]], [None], [""], [0], [{}], {"": ""}, {"type": "text"}, {"type": "function"}, ["a"] * 300, list(range(300)),
    Raw("1e999"), Raw("-1e999"), Raw("NaN"), Raw("Infinity"), Raw("-"), Raw("00"), Raw("1" * 5000), Raw("'a'"), Raw('"\\ud800"'),
    Raw('"\\u0000"'), Raw("[" * 300 + "]" * 300), Raw('{"a":' * 200 + "1" + "}" * 200), Raw("[" * 100_000), Raw("tru"), Raw(""),
)  # fmt: skip


def write(value: Any) -> str:
    """JSON, except for what is raw in it."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, Twice):
        return "{" + ",".join(f"{json.dumps(key)}:{write(each)}" for key, each in value.pairs) + "}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{write(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(write, value)) + "]"
    return json.dumps(value)


def make_body(path: str, choose: Random) -> bytes:
    """A body for this route: valid one time in five."""
    valid = choose.choice(BODIES.get(path, ({},)))
    if choose.random() < 0.2:
        return write(dict(valid)).encode()
    tree: Any = dict(valid)
    for _ in range(choose.choice((0, 1, 1, 1, 1, 2, 3))):
        tree = spoil_tree(tree, choose)
    text = write(tree)
    if choose.random() < 0.2:
        return choose.choice(SPOILERS)(text.encode(errors="surrogatepass"), choose)
    return text.encode(errors="surrogatepass")


# In the tree.


def spoil_tree(value: Any, choose: Random) -> Any:
    """The same with one place spoilt: any place of it is as likely as any other on the way down."""
    if isinstance(value, dict) and value and choose.random() < 0.9:
        return _spoil_object(value, choose)
    if isinstance(value, list) and value and choose.random() < 0.7:
        place = choose.randrange(len(value))
        return [*value[:place], spoil_tree(value[place], choose), *value[place + 1 :]]
    return choose.choice(VALUES)


def _spoil_object(value: dict[str, Any], choose: Random) -> Any:
    key = choose.choice(list(value))
    match choose.randrange(8):
        case 0:
            return {name: each for name, each in value.items() if name != key}
        case 1:
            return {**value, choose.choice(("unknown", "", "\x00", "\ud800", key.upper(), "x" * 3000)): choose.choice(VALUES)}
        case 2:
            return Twice([*value.items(), (key, choose.choice(VALUES))])
        case 3:
            other = choose.choice(ALL_FIELDS)
            return {**value, other: choose.choice(VALUES)}
        case _:
            return {**value, key: spoil_tree(value[key], choose)}


ALL_FIELDS = sorted({key for bodies in BODIES.values() for body in bodies for key in body})
"""So that a route is given what another one knows."""


# In the text.


def _cut(text: bytes, choose: Random) -> bytes:
    return text[: choose.randrange(len(text) + 1)]


def _flip(text: bytes, choose: Random) -> bytes:
    spoilt = bytearray(text)
    for _ in range(choose.randint(1, 4)):
        if spoilt:
            spoilt[choose.randrange(len(spoilt))] = choose.randrange(256)
    return bytes(spoilt)


def _insert(text: bytes, choose: Random) -> bytes:
    place = choose.randrange(len(text) + 1)
    return (
        text[:place] + choose.choice((b"\x00", b"\xff", b"\xed\xa0\x80", b"\xc0\xaf", b",", b"}", b"\\", b'"')) + text[place:]
    )


def _wrap(text: bytes, choose: Random) -> bytes:
    depth = choose.choice((1, 100, 2000, 50_000))
    opening, closing = choose.choice(((b"[", b"]"), (b'{"a":', b"}")))
    return opening * depth + text + closing * depth


def _around(text: bytes, choose: Random) -> bytes:
    return choose.choice((b"\xef\xbb\xbf", b" \n", b"")) + text + choose.choice((b"x", b"\x00", text, b"\n\n", b",{}"))


def _something_else(text: bytes, choose: Random) -> bytes:
    return choose.choice(
        (b"", b"null", b"[]", b'""', b"0", b"a=b&c=d", b"\xff\xfe{\x00}\x00", b"<xml/>", choose.randbytes(200))
    )


def _large(text: bytes, choose: Random) -> bytes:
    return text[:1] + b'"large":"' + b"y" * choose.choice((70_000, 1_200_000)) + b'",' + text[1:]


SPOILERS: Sequence[Callable[[bytes, Random], bytes]] = (_cut, _flip, _insert, _wrap, _around, _something_else, _large)
