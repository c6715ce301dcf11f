"""Settings given as text: by the environment, or by a flag that is a string (SCH-C3)."""

from __future__ import annotations

import tomllib
from typing import Any

from tripower.runtime.configuration.schema import Refused, Setting

_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})


def value_from_text(setting: Setting, text: str) -> Any:
    """The value that `text` stands for, not yet checked against the range. Raises `Refused`.

    Texts are taken as they are. A list is split at commas, its items trimmed, empty ones dropped; a TOML array works too. Everything
    else is a TOML value, and must not be empty.
    """
    if setting.kind == "text":
        return text
    if setting.kind == "list":
        return _list(setting, text)
    if not text.strip():
        raise Refused(setting.expected)
    if setting.kind == "boolean":
        return _boolean(setting, text.strip().lower())
    try:
        return _toml_value(text)
    except ValueError:
        if setting.kind == "seconds":
            return text  # `30s` is no TOML value
        raise Refused(setting.expected) from None


def _list(setting: Setting, text: str) -> list[Any]:
    if not text.strip().startswith("["):
        return [item.strip() for item in text.split(",") if item.strip()]
    try:
        value = _toml_value(text)
    except ValueError:
        raise Refused(setting.expected) from None
    assert isinstance(value, list)
    return value


def _boolean(setting: Setting, text: str) -> bool:
    if text not in _TRUE | _FALSE:
        raise Refused(setting.expected)
    return text in _TRUE


def _toml_value(text: str) -> Any:
    """Raises `ValueError` when `text` is more or less than one value."""
    if "\n" in text or "\r" in text:
        raise ValueError("more than one line")
    return tomllib.loads(f"value = {text}")["value"]
