"""Bars for people, lines for logs, nothing for `--quiet`."""

from __future__ import annotations

import io

import pytest

from tripower.api.cli.progress import Bars, Lines, Nothing, progress_display
from tripower.api.pull import PullProgress

MIB = 1 << 20


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_a_log_gets_a_line_at_each_stage_and_every_few_seconds(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    show = Lines().pulling("m")
    for second in range(12):
        clock[0] = 100.0 + second
        show(PullProgress("downloading", second * MIB, 20 * MIB))
    show(PullProgress("waiting", detail="waiting for process 7, pulling m"))
    show(PullProgress("verifying", MIB, 20 * MIB))
    show(PullProgress("stored", 20 * MIB, 20 * MIB))
    assert capsys.readouterr().err.splitlines() == [
        "m: downloading, 0 B of 20.0 MiB",
        "m: downloading, 5.0 MiB of 20.0 MiB",
        "m: downloading, 10.0 MiB of 20.0 MiB",
        "m: waiting for process 7, pulling m",
        "m: verifying, 1.0 MiB of 20.0 MiB",
    ]


def test_a_load_that_is_over_at_once_is_not_worth_a_line(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    display = Lines()
    display.loading("toy")("weights", 1.0)
    load = display.loading("m")
    load("engine", 0.0)
    for hundredth in range(100):
        load("weights", hundredth / 100)
    load("weights", 1.0)
    load("self-test", 1.0)
    display.close()
    assert capsys.readouterr().err.splitlines() == ["m: starting the engine", "m: loading, 0%"]


def test_every_stage_of_a_load_has_words_that_say_what_it_is(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    load = Lines().loading("m")
    for stage in ("certificate", "costs"):
        load(stage, 0.0)
        clock[0] += 1.0
        load(stage, 0.0)
    assert capsys.readouterr().err.splitlines() == [
        "m: checking that answers do not depend on other requests, once for this model on this machine",
        "m: measuring how long steps take, once for this model on this machine",
    ]


def test_a_terminal_gets_bars_that_disappear(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress_display(quiet=False) as display:
        assert isinstance(display, Bars)
        pull, first, second = display.pulling("m"), display.loading("m"), display.loading("n")
        pull(PullProgress("downloading", 5 * MIB, 20 * MIB))
        pull(PullProgress("waiting", detail="waiting for process 7"))
        pull(PullProgress("downloading", 20 * MIB, 20 * MIB))
        first("engine", 0.0)
        first("weights", 0.5)
        second("weights", 1.0)
    shown = terminal.getvalue()
    for text in ("downloading m", "20.0/20.0 MiB", "starting the engine for m", "loading n", "100%"):
        assert text in shown
    length = len(shown)
    first("weights", 1.0)
    assert len(terminal.getvalue()) == length, "nothing is drawn after the end"
    assert shown.rstrip().endswith("\x1b[2K"), "the last thing is that a line is wiped"


def test_quiet_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with progress_display(quiet=True) as display:
        assert isinstance(display, Nothing)
        display.pulling("m")(PullProgress("downloading", 5 * MIB, 20 * MIB))
        display.loading("m")("weights", 0.5)
    assert terminal.getvalue() == ""
