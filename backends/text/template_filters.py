"""Filters and string operations of chat templates, each with a cap on what it can make.

Filters that no chat template needs are not offered; the ones that are either cannot grow their input or are written again here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from jinja2 import Environment
from jinja2.filters import FILTERS

from tripower.backends.text.template_budget import OUTPUT_CHARACTERS_MAX, BudgetExceeded, admit, current, text_of

WIDTH_MAX = 1_000
INDENT_MAX = 64
PRECISION_MAX = 30
INTEGER_BITS_MAX = 1_024

HARMLESS_FILTERS = (
    "abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "groupby", "int", "items",
    "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "safe", "select", "selectattr",
    "sort", "title", "trim", "truncate", "unique", "upper", "urlencode", "wordcount",
)  # fmt: skip

STRING_METHODS = frozenset(
    {
        "capitalize", "casefold", "center", "count", "endswith", "find", "format", "index", "isalnum", "isalpha", "isascii",
        "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "join",
        "ljust", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rjust",
        "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper", "zfill",
    }
)  # fmt: skip

_WIDE = re.compile(r"%(?:\([^)]*\))?[-+ #0]*(?:\d*\.)?(?:\d{4,}|\*)")
_WIDE_FIELD = re.compile(r"\{[^{}]*:[^{}]*\d{4,}|\{[^{}]*\{")


def filters() -> dict[str, Callable[..., Any]]:
    """All filters by name."""
    table = {name: _admitting(FILTERS[name]) for name in HARMLESS_FILTERS}
    own: dict[str, Callable[..., Any]] = {
        "center": center,
        "format": format_percent,
        "indent": indent,
        "join": join,
        "replace": replace,
        "round": rounded,
    }
    return table | own | {"string": lambda value: admit(text_of(value)), "tojson": tojson}


def _admitting(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same filter (with the marks that the engine put on it), its result accounted for."""

    @wraps(function)
    def admitting(*args: Any, **options: Any) -> Any:
        return admit(function(*args, **options))

    return admitting


def tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as templates of the model hubs expect it: letters as they are, keys in their order, nothing escaped for HTML."""
    text_of(value)  # accounts for the size
    if isinstance(indent, int) and indent > INDENT_MAX:
        raise BudgetExceeded(f"an indent of more than {INDENT_MAX}")
    separators = None if separators is None else (str(separators[0])[:INDENT_MAX], str(separators[1])[:INDENT_MAX])
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    admit(text)
    return text


def join(value: Iterable[object], d: str = "", attribute: str | None = None) -> str:
    if attribute is not None:
        value = (item.get(attribute, "") if isinstance(item, dict) else "" for item in value)
    return concatenate([text_of(item) for item in value], text_of(d))


def concatenate(parts: Iterable[object], between: str = "") -> str:
    """Strings and other values as one string."""
    texts = [text_of(part) for part in parts]
    length = sum(map(len, texts)) + len(between) * max(len(texts) - 1, 0)
    if length > OUTPUT_CHARACTERS_MAX:
        raise BudgetExceeded(f"a text of more than {OUTPUT_CHARACTERS_MAX} characters")
    current.get().reserve(length)
    return between.join(texts)


def replace(value: object, old: str, new: str, count: int = -1) -> str:
    text, old, new = text_of(value), text_of(old), text_of(new)
    found = text.count(old) if old else len(text) + 1
    found = found if count is None or count < 0 else min(found, count)
    current.get().reserve(len(text) + found * len(new))
    return text.replace(old, new, found)


def center(value: object, width: int = 80) -> str:
    check_width(width)
    return text_of(value).center(width)


def indent(value: object, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    margin = text_of(width) if isinstance(width, str) else " " * min(width, INDENT_MAX + 1)
    if len(margin) > INDENT_MAX:
        raise BudgetExceeded(f"an indent of more than {INDENT_MAX}")
    lines = text_of(value).splitlines()
    kept = [(margin + line if index or first else line) if line or blank else line for index, line in enumerate(lines)]
    return concatenate(kept, "\n")


def rounded(value: float, precision: int = 0, method: str = "common") -> Any:
    if not -PRECISION_MAX <= precision <= PRECISION_MAX:
        raise BudgetExceeded(f"a precision of more than {PRECISION_MAX}")
    return FILTERS["round"](value, precision, method)


def format_percent(value: object, *args: object, **options: object) -> str:
    return percent(text_of(value), options or args)


def percent(form: str, values: object) -> str:
    """`form % values` with widths below a thousand."""
    if _WIDE.search(form):
        raise BudgetExceeded(f"a padding of more than {WIDTH_MAX}")
    text_of(values if isinstance(values, (tuple, dict, list)) else (values,))
    text = form % values
    admit(text)
    return text


def check_format(form: str, values: tuple[object, ...], named: dict[str, object]) -> None:
    """Refuse `str.format` with a wide or computed width, or with values that would not fit."""
    if _WIDE_FIELD.search(form.replace("{{", "").replace("}}", "")):
        raise BudgetExceeded(f"a padding of more than {WIDTH_MAX}")
    text_of(values)
    text_of(named)
    current.get().reserve(
        len(form) + form.count("{") * max((len(text_of(item)) for item in (*values, *named.values())), default=0)
    )


def check_string_method(text: str, name: str, args: tuple[Any, ...]) -> None:
    """Refuse a method of a string whose result would be too long, before it is called."""
    match name, args:
        case (("center" | "ljust" | "rjust" | "zfill"), (int() as width, *_)):
            check_width(width)
        case "replace", (str() as old, str() as new, *_):
            found = text.count(old) if old else len(text) + 1
            current.get().reserve(len(text) + found * len(new))


def check_width(width: int) -> None:
    if width > WIDTH_MAX:
        raise BudgetExceeded(f"a padding of more than {WIDTH_MAX}")


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Refuse arithmetic whose result would be too large."""
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        if operator in ("**", "*") and bits > INTEGER_BITS_MAX:
            raise BudgetExceeded(f"a number of more than {INTEGER_BITS_MAX} bits")
    elif operator == "*":
        for sequence, times in ((left, right), (right, left)):
            if isinstance(sequence, (str, list, tuple)) and isinstance(times, int):
                current.get().reserve(len(sequence) * max(times, 0))
    elif operator == "+" and isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
        current.get().reserve(len(left) + len(right))


def install(environment: Environment) -> None:
    """Replace an environment's filters by these."""
    environment.filters.clear()
    environment.filters.update(filters())
