"""The one form in which every bench of the project reports.

A report is a list of cells, each a figure of ours beside a figure of a peer, with the target it has to meet where there is one. It is
printed as a table for people or as JSON for programs:

    {"bench": …, "host": {…}, "cells": [{"name", "ours", "peer", "ratio", "target", "ok", "unit", "iqr", "note"}], "ok": …}

A column that does not apply is null. A missed target stays visible as a losing cell and turns `ok` to false; it fails the command only
where `--check` asks for that, because a figure is information and not an error.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from tripower.bench.paired import Paired

EXIT_MISSED = 1
RELATIONS = {"<=": "at most", "<": "below", ">=": "at least"}


class Target(msgspec.Struct, frozen=True):
    """What a cell has to reach: a column of it, a relation, a limit."""

    column: Literal["ratio", "ours"]
    relation: Literal["<=", "<", ">="]
    limit: float

    def __str__(self) -> str:
        return f"{self.column} {self.relation} {self.limit:g}"

    def met_by(self, value: float) -> bool:
        """Whether `value` reaches it. What is not a number reaches nothing."""
        match self.relation:
            case "<=":
                return value <= self.limit
            case "<":
                return value < self.limit
            case ">=":
                return value >= self.limit


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One figure. `ours` and `peer` are medians in `unit`; `ratio` is the median of paired ratios ours / peer, `iqr` its quartiles."""

    name: str
    ours: float | None
    peer: float | None
    ratio: float | None
    target: str | None
    ok: bool | None
    """None where there is no target."""
    unit: str | None = None
    iqr: tuple[float, float] | None = None
    note: str | None = None


Keep = Callable[[Sequence[Cell]], None]
"""Told all cells so far, by a bench that takes long: see `keep_unfinished`."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a bench found on one host. `ok` is false when a cell has missed its target."""

    bench: str
    host: dict[str, Any]
    cells: tuple[Cell, ...]
    ok: bool


def paired_cell(name: str, paired: Paired, *, unit: str, target: Target | None = None, note: str | None = None) -> Cell:
    """A cell from paired blocks."""
    return Cell(
        name=name,
        ours=_rounded(paired.ours),
        peer=_rounded(paired.peer),
        ratio=_rounded(paired.ratio),
        iqr=(_rounded(paired.iqr[0]), _rounded(paired.iqr[1])),
        target=None if target is None else str(target),
        ok=None if target is None else target.met_by(paired.ratio),
        unit=unit,
        note=note,
    )


def single_cell(
    name: str, ours: float | None, *, unit: str, target: Target | None = None, ok: bool | None = None, note: str | None = None
) -> Cell:
    """A cell without a peer. `ok` is worked out from the target when it is not given."""
    if target is not None and ok is None:
        ok = ours is not None and target.met_by(ours)
    return Cell(
        name=name,
        ours=None if ours is None else _rounded(ours),
        peer=None,
        ratio=None,
        target=None if target is None else str(target),
        ok=ok,
        unit=unit,
        note=note,
    )


def make_report(bench: str, host: dict[str, Any], cells: Sequence[Cell]) -> Report:
    return Report(bench=bench, host=host, cells=tuple(cells), ok=all(cell.ok is not False for cell in cells))


def _rounded(value: float) -> float:
    """Five significant digits: more would only pretend."""
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, 4 - math.floor(math.log10(abs(value))))


# Showing a report.


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """The options that every bench has."""
    parser.add_argument("--json", action="store_true", help="print the report as JSON instead of a table")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON report to FILE as well")
    parser.add_argument("--check", action="store_true", help=f"exit with {EXIT_MISSED} when a target is missed")
    parser.add_argument(
        "--quick", action="store_true", help="a few short blocks: shows that the bench runs, its figures say little"
    )


def finish(report: Report, options: argparse.Namespace) -> int:
    """Print the report as `options` say; returns the exit status. Raises `OSError` when FILE cannot be written."""
    if options.out is not None:
        options.out.write_text(as_json(report))
        unfinished(options.out).unlink(missing_ok=True)
    print(as_json(report).rstrip() if options.json else as_table(report))
    return EXIT_MISSED if options.check and not report.ok else 0


def keep_unfinished(report: Report, options: argparse.Namespace) -> None:
    """Write what a long run has so far, beside the FILE of `--out`, where it stays if the run ends early. Raises `OSError`."""
    if options.out is not None:
        unfinished(options.out).write_text(as_json(report))


def unfinished(out: Path) -> Path:
    """Where `keep_unfinished` writes."""
    return out.with_suffix(f".unfinished{out.suffix}")


def as_json(report: Report) -> str:
    """The report for programs."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"


def as_table(report: Report) -> str:
    """The report for people: host, one line a cell, losing cells marked, notes below."""
    rows: list[tuple[str, ...]] = [("", "ours", "peer", "unit", "ratio", "quartiles", "target", "")]
    rows += [_row(cell) for cell in report.cells]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [f"tripower bench {report.bench}", *_host_lines(report.host), ""]
    for row in rows:
        padded = [row[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(padded).rstrip())
    notes = [f"  {cell.name}: {cell.note}" for cell in report.cells if cell.note]
    missed = sum(cell.ok is False for cell in report.cells)
    aimed = sum(cell.ok is not None for cell in report.cells)
    lines += ["", *notes, f"{aimed - missed} of {aimed} targets met"]
    return "\n".join(lines)


def _row(cell: Cell) -> tuple[str, ...]:
    target = ""
    if cell.target:
        column, relation, limit = cell.target.split()
        target = f"{column} {RELATIONS[relation]} {limit}"
    verdict = {None: "", True: "met", False: "MISSED"}[cell.ok]
    quartiles = f"{cell.iqr[0]:.3g} – {cell.iqr[1]:.3g}" if cell.iqr else ""
    return (cell.name, _shown(cell.ours), _shown(cell.peer), cell.unit or "", _shown(cell.ratio), quartiles, target, verdict)


def _shown(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _host_lines(host: dict[str, Any]) -> list[str]:
    lines = [
        f"{key.replace('_', ' ')}: {value}" for key, value in host.items() if not isinstance(value, dict) and value is not None
    ]
    for key, value in host.items():
        if isinstance(value, dict):
            lines.append(f"{key}: " + ", ".join(f"{name} {version}" for name, version in value.items()))
    return lines
