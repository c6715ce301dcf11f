"""`tripower bench fuzz-http`: a few hundred requests in the suite, against a real server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tripower.bench.fuzz_http import command
from tripower.bench.fuzz_http.cases import Case, Ending
from tripower.bench.fuzz_http.command import Tally, cells_of
from tripower.bench.fuzz_http.judge import Reply

Run = Callable[..., dict[str, Any]]


def test_a_hundred_wrong_requests_are_refused_in_order(run_quick: Run) -> None:
    report = run_quick(command.main, ["--seed", "20", "--requests", "100"])
    cells = {cell["name"]: cell for cell in report["cells"]}
    assert cells["requests"]["ours"] == 100
    for name in ("answers of 500", "answers that are not as they should be", "tracebacks in the log"):
        assert cells[name]["ours"] == 0, cells


@pytest.mark.long
def test_thousands_of_wrong_requests_leave_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--requests", "6000", "--seed", "21", "--check", "--json"]) == 0, capsys.readouterr().out


def test_a_fault_and_growth_are_missed_targets() -> None:
    tally = Tally(memory=[50.0] * 5 + [90.0] * 5)
    tally.add(Case(7, "GET", "/", b"", Ending.WAITS), Reply(500, {}, b"no"))
    cells = {cell.name: cell for cell in cells_of(1, tally, b"ERROR \n ERROR x")}
    assert not any(
        cells[name].ok
        for name in (
            "answers of 500",
            "answers that are not as they should be",
            "tracebacks in the log",
            "growth of own memory",
        )
    )
    assert "--case 7: 500" in (cells["answers that are not as they should be"].note or "")
