"""Typed access to the fields of a JSON document: every value is checked where it is read, and a refusal names file and field.

A field that is `null` counts as absent, unless the reader asks for `nulls`. Nothing here blocks.
"""

from __future__ import annotations

import math
from typing import Any, overload

from tripower.backends.safetensors.documents import refuse, shorten
from tripower.runtime.kernel.errors import ModelRefused

INT_MAX = 2**31 - 1
TEXT_CHARACTERS_MAX = 256


class Fields:
    """The fields of one object. `place` is what refusals call it: `config.json`, `config.json rope_scaling`."""

    def __init__(self, values: dict[str, Any], place: str) -> None:
        self.values = {name: value for name, value in values.items() if value is not None}
        self.nulls = values.keys() - self.values.keys()
        """Fields that say `null`: for some this is "none" where silence is a default."""
        self.place = place

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def field(self, name: str) -> str:
        """What refusals call a field."""
        return f"{self.place} {name}"

    def integer(self, name: str, minimum: int = 0, maximum: int = INT_MAX, *, default: int | None = None) -> int:
        """An integer in `minimum..maximum`; booleans and floats are not integers. Without a default it must be there."""
        value = self._get(name, default)
        if type(value) is not int:
            raise refuse("bad_type", self.field(name), f"is not an integer ({shorten(repr(value))})")
        return self._within(name, value, minimum, maximum)

    def number(self, name: str, minimum: float, maximum: float, *, default: float | None = None) -> float:
        """A finite number, as a float."""
        value = self._get(name, default)
        if type(value) not in (int, float):
            raise refuse("bad_type", self.field(name), f"is not a number ({shorten(repr(value))})")
        if isinstance(value, float) and not math.isfinite(value):
            raise refuse("bad_value", self.field(name), "is not a finite number")
        return float(self._within(name, value, minimum, maximum))

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._get(name, default)
        if type(value) is not bool:
            raise refuse("bad_type", self.field(name), f"is not a boolean ({shorten(repr(value))})")
        return value

    def text(self, name: str, *, default: str | None = None, length_max: int = TEXT_CHARACTERS_MAX) -> str:
        value = self._get(name, default)
        if not isinstance(value, str):
            raise refuse("bad_type", self.field(name), f"is not a string ({shorten(repr(value))})")
        if len(value) > length_max:
            raise refuse("limit_exceeded", self.field(name), f"has {len(value)} characters, more than {length_max}")
        return value

    def inner(self, name: str) -> Fields:
        """The fields of an object; none where it is absent."""
        value = self.values.get(name, {})
        if not isinstance(value, dict):
            raise refuse("bad_type", self.field(name), "is not an object")
        return Fields(value, self.field(name))

    def unsupported(self, name: str, reason: str) -> ModelRefused:
        """The refusal of a field that is well formed and means something which is not computed here."""
        return refuse("unsupported_model", self.field(name), reason)

    def _get(self, name: str, default: object) -> Any:
        value = self.values.get(name, default)
        if value is None:
            raise refuse("missing_key", self.field(name), "is missing")
        return value

    @overload
    def _within(self, name: str, value: int, minimum: int, maximum: int) -> int: ...

    @overload
    def _within(self, name: str, value: float, minimum: float, maximum: float) -> float: ...

    def _within(self, name: str, value: float, minimum: float, maximum: float) -> float:
        if not minimum <= value <= maximum:
            raise refuse("bad_value", self.field(name), f"is {shorten(repr(value))}, outside {minimum}..{maximum}")
        return value
