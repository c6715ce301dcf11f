"""Requests with blocks within blocks: decoded leniently, and what nobody read is found by comparing what came with what was read.

The rules are those of `fields`: refused by name when a value would matter, passed when it would not, named when nobody knows it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec

from tripower.api.http.decoding import RequestDecoder, decode_plain
from tripower.api.http.fields import Unsupported, asks_for_more, first_names, refusal, refuse_unknown
from tripower.runtime.kernel import InvalidRequest

Request = TypeVar("Request", bound=msgspec.Struct)


class DialectDecoder(Generic[Request]):
    """Decodes one kind of request. `passed` are fields without effect on an answer, at any depth."""

    def __init__(self, kind: type[Request], *, passed: frozenset[str], unsupported: Mapping[str, Unsupported]) -> None:
        self._decoder = RequestDecoder(kind, kind)
        self._passed = passed
        self._unsupported = unsupported

    def decode(self, body: bytes, *, strict: bool) -> tuple[Request, tuple[str, ...]]:
        """The request and the names of its unknown fields. Raises `InvalidRequest`; synchronous."""
        request, _ = self._decoder.decode(body, strict=False)
        plain = decode_plain(body)
        for name, rule in self._unsupported.items():
            if asks_for_more(rule, plain.get(name)):
                raise refusal(name, rule)
        passed = self._passed | self._unsupported.keys()
        unknown = first_names(unread(plain, request, passed))
        if strict and unknown:
            raise refuse_unknown(unknown)
        return request, unknown


def unread(plain: Any, read: Any, passed: frozenset[str]) -> Iterator[str]:
    """Names of the fields of decoded JSON that the structs read from it do not have, the outermost first.

    Places in lists are left out of them. Without recursion: the nesting is the client's choice.
    """
    waiting = deque([(plain, read, "")])
    while waiting:
        plain, read, path = waiting.popleft()
        if isinstance(read, msgspec.Struct) and isinstance(plain, dict):
            known = _fields(type(read))
            for name, value in plain.items():
                if name in known:
                    if isinstance(value, dict | list):
                        waiting.append((value, getattr(read, known[name]), f"{path}{name}."))
                elif name not in passed:
                    yield path + name
        elif isinstance(read, tuple) and isinstance(plain, list):
            pairs = zip(plain, read, strict=True)
            waiting.extend((inner, inner_read, path) for inner, inner_read in pairs if isinstance(inner, dict | list))


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The attribute of each name in JSON. Kept for each kind: finding it out evaluates the annotations of all of them."""
    return {field.encode_name: field.name for field in msgspec.structs.fields(kind)}


def unsupported(path: str, instead: str) -> InvalidRequest:
    """The refusal of something that is known and not done here, with what would work."""
    return InvalidRequest(f"{path} is not supported: {instead}", code="unsupported_parameter", param=path.partition(":")[0])
