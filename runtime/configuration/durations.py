"""Durations as people write them (SCH-C8): `90`, `30s`, `5m`, `1h`, `0`, and `-1` for never."""

from __future__ import annotations

import math
import re

YEAR_SECONDS = 365 * 24 * 3600
_PATTERN = re.compile(r"(\d{1,12})([smh]?)\Z", re.ASCII)
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


def parse_duration(text: str) -> float:
    """Seconds; `math.inf` for `-1`. Raises `ValueError` for anything else, also for more than a year."""
    text = text.strip()
    if text == "-1":
        return math.inf
    match = _PATTERN.match(text)
    if match is None:
        raise ValueError("a duration is 0, -1, or a whole number with s, m or h")
    seconds = int(match[1]) * _SECONDS[match[2]]
    if seconds > YEAR_SECONDS:
        raise ValueError("a duration is at most one year")
    return float(seconds)
