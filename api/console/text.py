"""How figures and words are written for people."""

from __future__ import annotations


def duration(seconds: float | None) -> str:
    """Three figures at most, with a unit: `12 ms`, `3.4 s`, `5 min 20 s`, `2 h 5 min`. Nothing for None."""
    if seconds is None:
        return ""
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def encodable(text: str) -> str:
    """The same where it is text; a file's name in it may be no UTF-8."""
    return text.encode(errors="replace").decode()
