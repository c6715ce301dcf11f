"""A plot of a run as SVG, written by hand: every measured block as a dot, one row for each series, on a logarithmic axis.

Dots rather than bars of medians: who reads it sees how far the blocks lie apart, and that none was left out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from html import escape

WIDTH, ROW, LEFT, RIGHT, TOP, BOTTOM = 760, 34, 230, 30, 46, 40
MARKS = (1, 2, 5)
SHORT = 100
"""An axis that reaches from a value to this many times the value has more ticks."""
COLOURS = ("#2a6f97", "#c8553d", "#588b4c", "#7a5195", "#b08900")


def dots_svg(title: str, series: Mapping[str, Sequence[float]], *, unit: str) -> str:
    """A document of SVG. Values are above 0; a line marks each median."""
    values = [value for each in series.values() for value in each]
    low, high = max(mark for mark in _marks(min(values)) if mark <= min(values)), min(_marks_above(max(values)))
    height = TOP + ROW * len(series) + BOTTOM

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(value / low) / math.log(high / low)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="16" y="24" font-size="15">{escape(title)}</text>',
    ]
    for tick in _ticks(low, high):
        at = x(tick)
        lines.append(f'<line x1="{at:.1f}" y1="{TOP - 8}" x2="{at:.1f}" y2="{height - BOTTOM}" stroke="#ddd"/>')
        lines.append(f'<text x="{at:.1f}" y="{height - 16}" text-anchor="middle" fill="#555">{tick:g} {escape(unit)}</text>')
    for number, (name, found) in enumerate(series.items()):
        y, colour = TOP + ROW * (number + 0.5), COLOURS[number % len(COLOURS)]
        middle = x(statistics.median(found))
        lines.append(f'<text x="{LEFT - 12}" y="{y + 4:.1f}" text-anchor="end">{escape(name)}</text>')
        lines.append(f'<line x1="{middle:.1f}" y1="{y - 12:.1f}" x2="{middle:.1f}" y2="{y + 12:.1f}" stroke="{colour}"/>')
        lines += [f'<circle cx="{x(value):.1f}" cy="{y:.1f}" r="4" fill="{colour}" opacity="0.6"/>' for value in found]
    return "\n".join([*lines, "</svg>", ""])


def _marks(value: float) -> Iterator[float]:
    """1, 2, 5 and 10 of the power of ten that a value lies in."""
    power = 10.0 ** math.floor(math.log10(value))
    yield from (mark * power for mark in MARKS)
    yield 10 * power


def _marks_above(value: float) -> Iterator[float]:
    yield from (mark for mark in (*_marks(value), *_marks(10 * value)) if mark > value)


def _ticks(low: float, high: float) -> Iterator[float]:
    """Powers of ten; on a short axis 1, 2 and 5 of each as well."""
    power = 10.0 ** math.floor(math.log10(low) + 1e-9)
    while power <= high * 1.0001:
        for mark in MARKS if high <= SHORT * low else MARKS[:1]:
            if low * 0.9999 <= mark * power <= high * 1.0001:
                yield mark * power
        power *= 10
