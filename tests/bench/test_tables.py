"""The page of figures follows the reports."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tripower.bench.paired import Paired
from tripower.bench.schema import Report, Target, make_report, paired_cell, single_cell
from tripower.bench.suite import RUNS
from tripower.bench.tables import PLACE, missing, render, shown, updated_page

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
HOST = {
    "processor": "a processor",
    "cores": 4,
    "threads": 2,
    "model": "small-1m",
    "encoding": "Q4_0",
    "file_mb": 1.5,
    "peer": "somebody",
    "provisional": None,
    "measured": "2026-11-29",
    "versions": {"python": "3.11", "tripower": "0.1.0", "xllamacpp": "9"},
}
PAIRED = Paired(ours=1200.4, peer=2.0, ratio=0.5, iqr=(0.4, 0.6), rounds=4)


def report(**host: object) -> Report:
    cells = (
        paired_cell("slow", PAIRED, unit="ms", target=Target("ratio", ">=", 1.0), note="as it was"),
        paired_cell("slow too", PAIRED, unit="ms", target=Target("ratio", "<=", 1.0), note="as it was"),
        single_cell("plain", 3.0, unit="MB"),
    )
    return make_report("a bench", HOST | host, cells)


def test_a_table_shows_every_cell_and_marks_the_lost_ones() -> None:
    lines = render(report()).splitlines()
    assert "| slow | 1 200 | 2.00 | ms | 0.500 | 0.400 – 0.600 | ratio ≥ 1 | **missed** |" in lines
    assert "| slow too | 1 200 | 2.00 | ms | 0.500 | 0.400 – 0.600 | ratio ≤ 1 | met |" in lines
    assert "| plain | 3.00 | – | MB | – | – | – |  |" in lines


def test_a_note_is_given_once_with_all_its_cells() -> None:
    assert render(report()).splitlines()[-1] == "- *slow*, *slow too*: as it was."


def test_the_machine_the_model_and_the_versions_are_named() -> None:
    first = render(report()).splitlines()[0]
    assert first == (
        "small-1m; Q4_0 (1.5 MB); peer somebody; 2 of 4 cores of a processor; tripower 0.1.0; xllamacpp 9; 2026-11-29."
    )


def test_a_busy_machine_is_admitted() -> None:
    assert "Provisional" in render(report(provisional="yes: other work was running"))
    assert "Provisional" not in render(report())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0.00"),
        (1.0, "1.00"),
        (123.4, "123"),
        (999.6, "1 000"),
        (1234567.0, "1 234 567"),
        (1.234e-5, "1.23e-05"),
    ],
)
def test_figures_have_three_digits(value: float | None, text: str) -> None:
    assert shown(value) == text


def test_only_the_places_of_reports_change(tmp_path: Path) -> None:
    (tmp_path / "known.json").write_bytes(msgspec.json.encode(report()))
    page = (
        "before\n<!-- figures: known -->\nold figures\n<!-- end of figures -->\nbetween\n"
        "<!-- figures: unknown -->\n<!-- end of figures -->\nafter\n"
    )
    updated = updated_page(page, tmp_path)
    assert "old figures" not in updated
    assert render(report()) in updated
    assert missing("unknown") in updated
    prose = [line for line in updated.splitlines() if line in ("before", "between", "after")]
    assert prose == ["before", "between", "after"]
    assert updated_page(updated, tmp_path) == updated


def test_a_plot_beside_the_report_is_shown_below_it(tmp_path: Path) -> None:
    (tmp_path / "known.json").write_bytes(msgspec.json.encode(report()))
    page = "<!-- figures: known -->\n<!-- end of figures -->\n"
    assert "![" not in updated_page(page, tmp_path)
    (tmp_path / "known.svg").write_text("<svg/>")
    shown = updated_page(page, tmp_path)
    assert shown.endswith("![Every measured block](../bench/results/known.svg)\n<!-- end of figures -->\n")
    assert updated_page(shown, tmp_path) == shown


def test_the_page_has_a_place_for_every_report_of_the_suite() -> None:
    places = [place["name"] for place in PLACE.finditer(PAGE.read_text(encoding="utf-8"))]
    assert sorted(places) == sorted(run.name for run in RUNS)
