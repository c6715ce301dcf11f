"""The line for people who wait goes to standard error, and seldom into a log."""

from __future__ import annotations

import io
import sys

import pytest

from tripower.bench.progress import progress_line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_line() as show:
        for number in range(100):
            show(f"block {number}")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "block 0\n"


def test_a_terminal_gets_one_line_that_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_line() as show:
        show("first")
        show("second")
    assert "\n" not in terminal.getvalue()
    assert terminal.getvalue().endswith("second\r\x1b[K")
