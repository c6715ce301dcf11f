"""`tripower bench overload`: every part runs against real servers, and nothing is lost on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tripower.bench.overload import command

Run = Callable[..., dict[str, Any]]
EXACT = {
    "requests lost",
    "contradictions in the books",
    "seats and state not given back",
    "refusals without retry-after",
    "quiet requests denied",
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("part", "first"),
    [
        ("load", "work beside the excess"),
        ("crowd", "streams beside a crowd"),
        ("events", "events"),
    ],
)
def test_every_part_reports_and_keeps_its_books(part: str, first: str, run_quick: Run) -> None:
    report = run_quick(command.main, ["--model", "toy", "--seats", "4", "--only", part])
    cells = {cell["name"]: cell for cell in report["cells"]}
    assert first in cells
    assert all(cells[name]["ours"] == 0 for name in EXACT & cells.keys()), report


@pytest.mark.long
def test_fairness_reports(run_quick: Run) -> None:
    report = run_quick(command.main, ["--model", "toy", "--only", "fairness"])
    assert [cell["name"] for cell in report["cells"]] == [
        f"{figure}, beside {peer}"
        for peer in ("the noisy key within its share", "nobody else")
        for figure in ("first token of quiet keys, p95", "first token of quiet keys, median", "quiet requests denied")
    ]
