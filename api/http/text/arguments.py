"""Arguments of calls in a history."""

from __future__ import annotations

import msgspec

from tripower.api.http.text.nesting import check_depth
from tripower.runtime.kernel import InvalidRequest


def object_text(path: str, text: str) -> str:
    """The text of a JSON object, as it is; an empty one stands for no arguments. Raises `InvalidRequest`: templates read it."""
    if not text:
        return "{}"
    try:
        plain = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        plain = None
    if not isinstance(plain, dict):
        raise InvalidRequest(f"{path}: is not the text of a JSON object", param=path)
    check_depth(plain, path)
    return text
