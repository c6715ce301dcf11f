"""From bytes to a checked request, with the field named in every refusal.

The usual request is decoded once, into structs that know every field of it. Only when that fails does anything slower happen: telling
unknown fields from faulty ones, or finding the place of a number or a character that JSON does not allow.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from tripower.api.http.bodies import check_cost
from tripower.api.http.fields import refuse_unknown, review
from tripower.runtime.kernel import InvalidRequest

Request = TypeVar("Request", bound=msgspec.Struct)

DIAGNOSED_BYTES_MAX = 1 << 20
"""A longer body that is no JSON is refused without its place."""
_PLACE = re.compile(r"^(?P<fault>.*?)(?: - at (?:`key` in )?`\$(?P<path>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.+)`")
_EXPECTED = re.compile(r"Expected `(?P<types>[^`]*)`(?P<bound>[^,]*)(?:, got `(?P<got>[^`]*)`)?")
_TYPES = {
    "bool": "true or false", "int": "a whole number", "float": "a number", "str": "a text", "array": "a list", "object": "an object",
    "null": "null",
}  # fmt: skip
_BOUNDS = {" >= ": "of at least", " <= ": "of at most", " > ": "above", " < ": "below"}


class RequestDecoder(Generic[Request]):
    """Decodes one kind of request. `exact` is a subclass of `kind` that forbids unknown fields, on every level."""

    def __init__(self, kind: type[Request], exact: type[Request]) -> None:
        self._exact = msgspec.json.Decoder(exact)
        self._lenient = msgspec.json.Decoder(kind)
        self._honoured = frozenset(field.encode_name for field in msgspec.structs.fields(kind))

    def decode(self, body: bytes, *, strict: bool) -> tuple[Request, tuple[str, ...]]:
        """The request and the names of its unknown fields. Raises `InvalidRequest`; synchronous, so long bodies are read beside the loop."""
        check_cost(body)
        try:
            return self._exact.decode(body), ()
        except msgspec.ValidationError:
            return self._decode_leniently(body, strict=strict)
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            raise _not_json(body) from error

    def _decode_leniently(self, body: bytes, *, strict: bool) -> tuple[Request, tuple[str, ...]]:
        request = _decoded(self._lenient, body)
        unknown = review(decode_plain(body), self._honoured)
        if strict and unknown:
            raise refuse_unknown(unknown)
        return request, unknown


def decode_plain(body: bytes) -> Any:
    """A body as plain values, fields that nobody knows included. Raises `InvalidRequest`.

    It finds what a decoder for structs lets pass in a field that it skips: a number out of range, half a character.
    """
    try:
        return _decoded(_PLAIN, body)
    except InvalidRequest as error:
        raise _out_of_range(body) or error from error.__cause__


_PLAIN: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_Decoded = TypeVar("_Decoded")


def _decoded(decoder: msgspec.json.Decoder[_Decoded], body: bytes) -> _Decoded:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise named(str(error)) from error
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise _not_json(body) from error


def named(fault: str) -> InvalidRequest:
    """The refusal for one of msgspec's messages. They tell the place and the type, never the value."""
    match = _PLACE.match(fault)
    assert match is not None, "the pattern matches everything"
    path = (match["path"] or "").removeprefix(".")
    if missing := _MISSING.match(match["fault"]):
        path = f"{path}.{missing['name']}".removeprefix(".")
        return InvalidRequest(f"{path} is missing", param=path)
    return InvalidRequest(f"{path or 'the body'} {_in_words(match['fault'])}", param=path or None)


def _in_words(fault: str) -> str:
    """What msgspec says of a type or a bound, as people say it. Null stands for a field that is left out, and is not offered."""
    match = _EXPECTED.fullmatch(fault)
    if match is None:
        fault = fault.replace("`", "")
        word = fault.removeprefix("Invalid enum value ")
        return f"cannot be {word[:80]}" if word != fault else f"is not as it should be: {fault[:1].lower()}{fault[1:]}"
    types = [_TYPES.get(each, each) for each in match["types"].split(" | ") if each != "null"] or ["null"]
    given = "a fraction" if match["got"] == "float" else _TYPES.get(match["got"], match["got"])
    got = f", not {given}" if given else ""
    return f"should be {' or '.join(types)}{_bound(match['bound'], match['types'])}{got}"


def _bound(bound: str, kind: str) -> str:
    """Such as ` of at most 2` for ` <= 2.0`, and ` of at least 1 entry` for the same of a length."""
    lengths = bound.startswith(" of length ")
    bound = bound.removeprefix(" of length") if lengths else bound
    for sign, words in _BOUNDS.items():
        if bound.startswith(sign):
            number = bound.removeprefix(sign).removesuffix(".0")
            return f" {words} {number}" + (_unit(kind, number) if lengths else "")
    return f" of {bound.strip()}{_unit(kind, bound.strip())}" if lengths else bound


def _unit(kind: str, number: str) -> str:
    one, several = (" character", " characters") if kind == "str" else (" entry", " entries")
    return one if number == "1" else several


def _out_of_range(body: bytes) -> InvalidRequest | None:
    """The refusal of the first number that no float can hold; None where there is none."""
    try:
        plain = json.loads(body, parse_int=float) if len(body) <= DIAGNOSED_BYTES_MAX else None
    except (ValueError, RecursionError):
        return None
    for path, value in _leaves(plain):
        if isinstance(value, float) and math.isinf(value):
            return InvalidRequest(f"{path}: this number is out of range", param=path)
    return None


class _NotFinite:
    """Stands for NaN and the infinities while their place is looked for."""


_NOT_FINITE = _NotFinite()


def _not_json(body: bytes) -> InvalidRequest:
    """What is wrong with a body that cannot be decoded."""
    if len(body) <= DIAGNOSED_BYTES_MAX:
        try:
            # Bytes that are no UTF-8 become lone surrogates here, so that one search finds both.
            plain = json.loads(body.decode("utf-8", "surrogateescape"), parse_constant=lambda name: _NOT_FINITE)
        except (ValueError, RecursionError):
            plain = None
        for path, value in _leaves(plain):
            if value is _NOT_FINITE:
                return InvalidRequest(f"{path}: NaN and Infinity are no numbers in JSON", param=path)
            if isinstance(value, str) and not _is_unicode(value):
                return InvalidRequest(f"{path}: half a character is no text", code="invalid_unicode", param=path)
    if not _is_utf8(body):
        return InvalidRequest("the body is not UTF-8", code="invalid_unicode")
    return InvalidRequest("the body is not valid JSON, or nested too deeply", code="invalid_json")


def _leaves(plain: Any) -> Iterator[tuple[str, Any]]:
    """Every scalar of decoded JSON and every key, with its path. Without recursion: the nesting is the client's choice."""
    stack: list[tuple[str, Any]] = [("", plain)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, dict):
            for key, inner in value.items():
                clean = key.encode(errors="replace").decode()[:64]
                yield f"{path}.{clean}".removeprefix("."), key
                stack.append((f"{path}.{clean}".removeprefix("."), inner))
        elif isinstance(value, list):
            stack.extend((f"{path}[{index}]", inner) for index, inner in enumerate(value))
        else:
            yield path, value


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True
