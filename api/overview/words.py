"""Figures as people read them in narrow columns. Plain text; None is a dash."""

from __future__ import annotations

from collections.abc import Sequence

from tripower.api.overview.figures import Percentiles

NOTHING = "-"
BLOCKS = " ▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉█"
_HARMFUL = dict.fromkeys([*range(32), *range(127, 160)], "�")


def duration(seconds: float | None) -> str:
    """At most six characters: `12ms`, `1.24s`, `12.3s`, `2m05s`, `1h02m`, `3d04h`."""
    if seconds is None:
        return NOTHING
    if seconds < 0.9995:
        return f"{max(0.0, seconds) * 1000:.0f}ms"
    if seconds < 9.995:
        return f"{seconds:.2f}s"
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02}h"


def rate(value: float | None) -> str:
    """At most six characters: `0`, `0.4`, `12.5`, `1,234`, `56.7k`, `1.2M`."""
    if value is None:
        return NOTHING
    if value < 0.05:
        return "0"
    if value < 99.95:
        return f"{value:.1f}"
    if value < 9999.5:
        return f"{value:,.0f}"
    return f"{value / 1000:.1f}k" if value < 999_950 else f"{value / 1e6:.1f}M"


def percentiles(values: Percentiles) -> str:
    """Median, 95th and 99th in one unit: `62/81/90 ms`, `0.62/1.9/12 s`."""
    if values.p50 is None:
        return NOTHING
    known = [value or 0.0 for value in (values.p50, values.p95, values.p99)]
    if known[-1] < 1:
        return f"{'/'.join(f'{value * 1000:.0f}' for value in known)} ms"
    return f"{'/'.join(map(_seconds, known))} s"


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value < 0.995 else f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def share(part: float) -> str:
    """As a percentage; a dash where there is nothing of it."""
    return f"{part:.0%}" if part else NOTHING


def bar(part: float, width: int) -> str:
    """A part of 1 as a bar of so many cells."""
    eighths = round(max(0.0, min(1.0, part)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (EIGHTHS[rest] if rest else "")).ljust(width)


def sparkline(values: Sequence[float], width: int) -> str:
    """The last values, a cell each, between 0 and the highest of them."""
    shown = values[-width:] if width > 0 else ()
    highest = max(shown, default=0.0) or 1.0
    return "".join(BLOCKS[_level(value / highest)] for value in shown).rjust(width)


def _level(part: float) -> int:
    """Something is never drawn as nothing."""
    return 0 if part <= 0 else max(1, round(part * (len(BLOCKS) - 1)))


def harmless(text: str) -> str:
    """Text that others have chosen, without anything that a terminal would obey."""
    return text.translate(_HARMFUL)
