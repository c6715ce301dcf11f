"""`tripower bench prefix`: it runs and reports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tripower.bench.plot import dots_svg
from tripower.bench.prefix import command
from tripower.bench.prefix.asking import beginning, question
from tripower.bench.prefix.bookkeeping import miss_seconds


@pytest.mark.long
def test_a_quick_run_has_all_cells_and_a_plot(
    run_quick: Callable[..., dict[str, Any]], smollm2_path: Path, tmp_path: Path
) -> None:
    report = run_quick(command.main, ["--model", str(smollm2_path), "--plot", str(tmp_path / "plot.svg")])
    cells = {cell["name"]: cell for cell in report["cells"]}
    assert list(cells) == [
        "first token, cold over warm",
        "prefill, cold over warm",
        "reused of a warm prompt",
        "identical answers",
        "cost of a miss",
    ]
    assert cells["identical answers"]["ours"] == 1
    assert cells["reused of a warm prompt"]["ours"] > 0.8
    ElementTree.parse(tmp_path / "plot.svg")


def test_beginnings_and_questions_are_unlike_each_other() -> None:
    assert len({beginning(number, 5) for number in range(50)}) == 50
    assert len({question(number)[:14] for number in range(50)}) == 50
    assert beginning(3, 9).startswith(beginning(3, 5))


def test_a_miss_has_a_cost() -> None:
    assert miss_seconds(200, 3) > 0


def test_a_plot_has_a_dot_for_each_value_and_a_tick_for_each_power_of_ten() -> None:
    root = ElementTree.fromstring(dots_svg("a < b", {"one": [1.0, 20.0], "two & three": [900.0]}, unit="ms"))
    names = [element.tag.rpartition("}")[2] for element in root]
    texts = [element.text for element in root if element.text and element.text.strip()]
    assert names.count("circle") == 3
    assert texts[0] == "a < b" and {"1 ms", "10 ms", "100 ms", "1000 ms", "one", "two & three"} <= set(texts)


def test_a_short_axis_begins_and_ends_near_the_values_and_has_more_ticks() -> None:
    root = ElementTree.fromstring(dots_svg("gains", {"one": [0.93, 2.1, 3.6]}, unit="×"))
    ticks = [element.text for element in root if element.text and element.text.endswith(" ×")]
    assert ticks == ["0.5 ×", "1 ×", "2 ×", "5 ×"]
