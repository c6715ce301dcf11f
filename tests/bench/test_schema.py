"""The report that all benches print."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
import pytest

from tripower.bench.paired import Paired
from tripower.bench.schema import (
    Cell,
    Report,
    Target,
    add_report_options,
    as_table,
    finish,
    keep_unfinished,
    make_report,
    paired_cell,
    single_cell,
    unfinished,
)

HOST = {"processor": "a processor", "cores": 2, "governor": None, "versions": {"python": "3.11"}}
PAIRED = Paired(ours=1.5, peer=1.0, ratio=1.5, iqr=(1.4, 1.6), rounds=4)


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_report_options(parser)
    return parser.parse_args(arguments)


def report_with(*cells: Cell) -> Report:
    return make_report("a bench", HOST, cells)


LOSING = paired_cell("slow", PAIRED, unit="µs", target=Target("ratio", "<=", 1.0))
WINNING = paired_cell("fast", PAIRED, unit="µs", target=Target("ratio", ">=", 1.0), note="as hoped")
PLAIN = single_cell("plain", 3.0, unit="MB")


@pytest.mark.parametrize(
    ("relation", "value", "met"),
    [
        ("<=", 1.0, True),
        ("<=", 1.01, False),
        ("<", 1.0, False),
        ("<", 0.99, True),
        (">=", 1.0, True),
        (">=", 0.99, False),
        ("<=", float("nan"), False),
        (">=", float("nan"), False),
    ],
)
def test_a_target_knows_what_meets_it(relation: str, value: float, met: bool) -> None:
    target = msgspec.convert({"column": "ratio", "relation": relation, "limit": 1.0}, Target)
    assert target.met_by(value) is met
    assert str(target) == f"ratio {relation} 1"


def test_a_paired_cell_is_judged_by_its_ratio() -> None:
    assert (LOSING.ours, LOSING.peer, LOSING.ratio, LOSING.iqr) == (1.5, 1.0, 1.5, (1.4, 1.6))
    assert LOSING.ok is False
    assert WINNING.ok is True


def test_a_single_cell_is_judged_by_its_own_figure() -> None:
    assert single_cell("few", 4, unit="MB", target=Target("ours", "<=", 4)).ok is True
    assert single_cell("many", 5, unit="MB", target=Target("ours", "<=", 4)).ok is False
    assert single_cell("nothing", None, unit="MB", target=Target("ours", "<=", 4)).ok is False
    assert PLAIN.ok is None and PLAIN.target is None and PLAIN.peer is None


def test_figures_are_rounded_to_what_they_are_worth() -> None:
    assert single_cell("figure", 123.456789, unit="s").ours == 123.46
    assert single_cell("figure", 0.000123456789, unit="s").ours == 0.00012346


def test_the_json_has_the_columns_of_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert finish(report_with(LOSING, PLAIN), options("--json")) == 0
    decoded = msgspec.json.decode(capsys.readouterr().out)
    assert set(decoded) == {"bench", "host", "cells", "ok"}
    assert decoded["bench"] == "a bench"
    assert decoded["host"] == HOST
    assert decoded["ok"] is False
    assert decoded["cells"][0] == {
        "name": "slow",
        "ours": 1.5,
        "peer": 1.0,
        "ratio": 1.5,
        "target": "ratio <= 1",
        "ok": False,
        "unit": "µs",
        "iqr": [1.4, 1.6],
        "note": None,
    }


@pytest.mark.parametrize(
    ("cells", "arguments", "status"),
    [
        ((LOSING,), (), 0),
        ((LOSING,), ("--check",), 1),
        ((WINNING, PLAIN), ("--check",), 0),
        ((WINNING, LOSING), ("--check",), 1),
    ],
)
def test_a_missed_target_fails_the_command_only_when_asked(
    cells: tuple[Cell, ...], arguments: tuple[str, ...], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert finish(report_with(*cells), options(*arguments)) == status
    assert capsys.readouterr().out


def test_the_table_shows_losing_cells_units_and_notes() -> None:
    table = as_table(report_with(LOSING, WINNING, PLAIN))
    lines = {line.split("  ")[0]: line for line in table.splitlines()}
    assert "MISSED" in lines["slow"] and "ratio at most 1" in lines["slow"]
    assert lines["fast"].endswith("met")
    assert "MB" in lines["plain"]
    assert "fast: as hoped" in table
    assert "python 3.11" in table
    assert "governor" not in table
    assert table.endswith("1 of 2 targets met")


def test_the_report_can_be_kept_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    assert finish(report_with(PLAIN), options("--out", str(file))) == 0
    assert msgspec.json.decode(file.read_bytes())["cells"][0]["name"] == "plain"
    assert "plain" in capsys.readouterr().out


def test_what_a_run_has_so_far_is_kept_until_its_report_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results.json"
    keep_unfinished(make_report("x", HOST, []), options())
    keep_unfinished(make_report("x", HOST, []), options("--out", str(out)))
    assert [file.name for file in tmp_path.iterdir()] == ["results.unfinished.json"]
    assert msgspec.json.decode(unfinished(out).read_bytes(), type=Report).bench == "x"
    finish(make_report("x", HOST, []), options("--out", str(out)))
    assert list(tmp_path.iterdir()) == [out]
