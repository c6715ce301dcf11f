"""`docs/robustness.md` is complete: every report has one row, every test it names exists and cites the report, every decision is there."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "robustness.md").read_text(encoding="utf-8")
DECISIONS = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
REPORTS = 78
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
LINKED = re.compile(r"\[([^\]]+)\]\(decisions\.md#([\w-]+)\)")


def rows_of(first_column: str) -> list[list[str]]:
    """The cells of the table whose first column has this name."""
    block = next(block for block in PAGE.split("\n\n") if block.startswith(f"| {first_column} |"))
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in block.splitlines()[2:]]


REPORTED, OTHERS = rows_of("id"), rows_of("kind")


@functools.cache
def names_in(file: str) -> frozenset[str]:
    """The names of a file's test functions."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.name for function in functions if function.name.startswith("test_"))


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_report_of_the_list_has_one_row_and_no_row_is_of_another() -> None:
    (listed,) = re.findall(r"^All of them: (.*)\.$", PAGE, re.MULTILINE)
    ids = listed.split(", ")
    assert ids == sorted(set(ids)) and len(ids) == REPORTS
    assert [row[0] for row in REPORTED] == ids
    assert len(OTHERS) == 11


@pytest.mark.parametrize("row", [*REPORTED, *OTHERS], ids=lambda row: row[0])
def test_a_row_has_no_empty_cell_and_a_proof(row: list[str]) -> None:
    assert len(row) in (3, 5) and all(row)
    assert len(row) == 3 or re.fullmatch(r"\[[^\]]+\]\(https://[^)]+\)", row[1])
    for piece in row[-1].split("<br>"):
        assert NAMED.fullmatch(piece) or LINKED.fullmatch(piece), piece


@pytest.mark.parametrize("row", [*REPORTED, *OTHERS], ids=lambda row: row[0])
def test_every_test_that_is_named_exists_and_its_file_cites_the_report(row: list[str]) -> None:
    named = NAMED.findall(row[-1])
    for file, name in named:
        assert name in names_in(file), f"{file} has no {name}"
    if row[0].startswith("BB-"):
        for file, _ in named:
            assert row[0] in (ROOT / file).read_text(encoding="utf-8"), f"{file} does not cite {row[0]}"


def test_every_decision_that_is_named_exists() -> None:
    headings = {heading: anchor(heading) for heading in re.findall(r"^## (.*)$", DECISIONS, re.MULTILINE)}
    for heading, target in LINKED.findall(PAGE):
        assert headings.get(heading) == target, heading


def test_no_test_cites_a_report_that_is_not_in_the_list() -> None:
    known = {row[0] for row in REPORTED}
    for path in (ROOT / "tests").rglob("*.py"):
        assert set(re.findall(r"BB-\d+", path.read_text(encoding="utf-8"))) <= known, path
