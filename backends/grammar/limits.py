"""How large a format may be, before llguidance sees it: its compiler recurses and multiplies out, and nothing can interrupt it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tripower.runtime.kernel.errors import InvalidRequest

FORMAT_BYTES_MAX = 256 * 1024
"""Of a schema as compact JSON, of a grammar's text, of a pattern and of all choices together."""
NESTING_MAX = 100
"""Lists and objects inside each other in a schema's JSON; the parser of llguidance stops at 128."""
LEVELS_MAX = 256
"""Schemas inside each other, those behind every `$ref` counted once: a compiler's stack overflows at about 700."""
SCHEMAS_MAX = 5000
PROPERTIES_MAX = 1000
"""Of one object; the time to compile grows with the square."""
ALTERNATIVES_MAX = 512
"""Cases that `allOf`, and keywords beside `anyOf`, may multiply out to."""
EXPANSIONS_MAX = 20_000
"""Schemas that are met when every `$ref` inside an `allOf` or `anyOf` is followed."""
RULES_MAX = 500
"""Of a grammar: one may name the next."""
GRAMMAR_LEVELS_MAX = 1000
"""Rules of a grammar inside each other, with the brackets in each: a compiler's stack overflows at some thousands."""
CHOICES_MAX = 2000
ROW_ITEMS_MAX = 5000
"""Readings of a text that may be open at once; an object has four for each property that may come next."""
LEXER_STATES_MAX = 25_000
"""Of one sequence, 1 to 2 kB each: they are made as its text goes on, some for each character of a bounded string."""


def check_json(value: Any, param: str | None) -> None:
    """Refuse (`invalid_schema`) what is no JSON or nested too deeply. Linear, without recursion."""
    pending: list[Iterator[Any]] = [iter((value,))]
    while pending:
        item = next(pending[-1], _END)
        if item is _END:
            pending.pop()
            continue
        inner = _check_item(item, param)
        if inner is not None:
            pending.append(inner)
            if len(pending) > NESTING_MAX + 1:
                raise invalid_schema(f"is nested more than {NESTING_MAX} levels deep: flatten it, or use `$ref`", param)


_END = object()


def _check_item(item: Any, param: str | None) -> Iterator[Any] | None:
    """What is inside, for a list or an object."""
    match item:
        case dict():
            for key in item:
                _check_text(key, param)
            return iter(item.values())
        case list() | tuple():
            return iter(item)
        case str():
            _check_text(item, param)
        case bool() | None:
            pass
        case int():
            if not -(2**63) <= item < 2**63:
                raise invalid_schema("holds a whole number of more than 64 bits", param)
        case float():
            if not math.isfinite(item):
                raise invalid_schema("holds a number that is not finite", param)
        case _:
            raise invalid_schema(f"holds a {type(item).__name__}, which is no JSON", param)
    return None


def _check_text(text: Any, param: str | None) -> None:
    if not isinstance(text, str):
        raise invalid_schema("has a key that is no text", param)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise invalid_schema("holds half of a surrogate pair", param) from None


def check_bytes(text: str, what: str, code: str, param: str | None) -> None:
    """Refuse a text that is too long or that is no UTF-8."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"the {what} holds half of a surrogate pair", code=code, param=param) from None
    if size > FORMAT_BYTES_MAX:
        reason = f"the {what} has {size} bytes; at most {FORMAT_BYTES_MAX} are taken: make it smaller"
        raise InvalidRequest(reason, code=code, param=param)


def invalid_schema(reason: str, param: str | None) -> InvalidRequest:
    """The error of a schema that is none."""
    return InvalidRequest(f"the schema {reason}", code="invalid_schema", param=param)
