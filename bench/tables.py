"""Reports as tables of a page, so that a rerun of the benches updates the documentation.

A page says where a report belongs:

    <!-- figures: engine-smollm2 -->
    <!-- end of figures -->

Whatever stands between the two lines is replaced by the report of that name: the machine, every cell, losing ones included, and the
notes, and the plot that lies beside the report, if there is one. A report that does not exist yet leaves a sentence that says so.
Everything else on the page is prose and stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tripower.bench.schema import Cell, Report

END = "<!-- end of figures -->"
PLACE = re.compile(r"<!-- figures: (?P<name>[\w.-]+) -->\n(?P<old>.*?)" + re.escape(END), re.DOTALL)
HEAD = "| cell | ours | peer | unit | ratio | quartiles | target | |\n| --- | --- | --- | --- | --- | --- | --- | --- |"
PICTURES = "../bench/results"
"""Where a page in `docs/` finds the plots."""
SIGNS = {"<=": "≤", "<": "<", ">=": "≥"}
PACKAGES = ("llvmlite", "torch", "xllamacpp", "mistralrs", "transformers")
VERDICTS = {None: "", True: "met", False: "**missed**"}


def updated_page(text: str, results: Path) -> str:
    """The page with the figures of the reports in `results`. Blocks for small reads."""
    return PLACE.sub(lambda place: _place(place["name"], results), text)


def _place(name: str, results: Path) -> str:
    file = results / f"{name}.json"
    shown = render(msgspec.json.decode(file.read_bytes(), type=Report)) if file.exists() else missing(name)
    if file.exists() and file.with_suffix(".svg").exists():
        shown += f"\n\n![Every measured block]({PICTURES}/{name}.svg)"
    return f"<!-- figures: {name} -->\n{shown}\n{END}"


def missing(name: str) -> str:
    """What stands where a report will be."""
    return f"Not measured yet: `tripower bench all --only {name}` writes it."


def render(report: Report) -> str:
    """Machine, table, notes."""
    rows = "\n".join(f"| {' | '.join(row)} |" for row in map(_row, report.cells))
    notes = "\n".join(f"- {', '.join(f'*{name}*' for name in names)}: {note}." for note, names in _notes(report))
    return "\n\n".join(part for part in (_machine(report.host), f"{HEAD}\n{rows}", notes) if part)


def _machine(host: dict[str, Any]) -> str:
    """One sentence of what it was measured on."""
    parts = [str(host["model"])] if host.get("model") else []
    if host.get("encoding"):
        parts.append(f"{host['encoding']} ({host.get('file_mb')} MB)")
    parts += [f"{key} {host[key]}" for key in ("peer", "backend", "streams") if host.get(key)]
    parts.append(f"{host.get('threads') or host.get('cores')} of {host.get('cores')} cores of {host.get('processor')}")
    versions = host.get("versions", {})
    parts += [f"{name} {versions[name]}" for name in ("tripower", *PACKAGES) if name in versions]
    if host.get("measured"):
        parts.append(str(host["measured"]))
    warning = "\n**Provisional: other work was running.**" if host.get("provisional") else ""
    return "; ".join(parts) + "." + warning


def _row(cell: Cell) -> tuple[str, ...]:
    target = "–"
    if cell.target:
        column, relation, limit = cell.target.split()
        target = f"{column} {SIGNS[relation]} {limit}"
    quartiles = f"{shown(cell.iqr[0])} – {shown(cell.iqr[1])}" if cell.iqr else "–"
    return (
        cell.name,
        shown(cell.ours),
        shown(cell.peer),
        cell.unit or "",
        shown(cell.ratio),
        quartiles,
        target,
        VERDICTS[cell.ok],
    )


def shown(value: float | None) -> str:
    """Three digits, or all of a large number, in groups of three."""
    if value is None:
        return "–"
    if abs(value) >= 999.5:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:#.3g}".rstrip(".")


def _notes(report: Report) -> Iterator[tuple[str, list[str]]]:
    """Each note once, with the cells that have it."""
    by_note: dict[str, list[str]] = {}
    for cell in report.cells:
        if cell.note:
            by_note.setdefault(cell.note, []).append(cell.name)
    yield from by_note.items()
