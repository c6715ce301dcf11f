"""What comes of a line; clients know it too, and load nothing of the rest."""

from __future__ import annotations

import msgspec


class LineAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a line."""

    output: str = ""
    """What it printed."""
    value: str = ""
    """What its last expression was; empty for None and for a statement."""
    error: str = ""
    """A traceback of the line's own frames and of what they called, or why it was cut off."""
    incomplete: bool = False
    """It has not been run: more lines must follow."""
