"""Whoever reads the log slowly, or not at all, does not hold up the service."""

from __future__ import annotations

import logging
import os

import pytest

from tripower.api.cli import log_writer
from tripower.api.cli.log_writer import LogWriter


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("tripower", logging.INFO, "", 0, text, None, None)


def test_lines_are_written_in_their_order() -> None:
    reading, writing = os.pipe()
    writer = LogWriter(writing)
    for number in range(100):
        writer.emit(record(f"line {number}"))
    writer.close()
    os.close(writing)
    with os.fdopen(reading) as lines:
        assert lines.read().splitlines() == [f"line {number}" for number in range(100)]


def test_what_was_logged_is_written_before_flush_returns() -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    writer = LogWriter(writing)
    for number in range(3):
        writer.emit(record(f"line {number}"))
        writer.flush()
        assert os.read(reading, 100) == f"line {number}\n".encode()
    writer.close()
    writer.flush()  # nothing is left that could be waited for
    os.close(reading)
    os.close(writing)


def test_a_reader_that_does_not_read_costs_lines_and_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "LINES_MAX", 50)
    monkeypatch.setattr(log_writer, "CLOSE_SECONDS", 0.0)
    reading, writing = os.pipe()
    writer = LogWriter(writing)
    for _ in range(2000):  # far more than the pipe holds; a handler that waits would never come back
        writer.emit(record("x" * 1000))
    assert len(writer._lines) <= 50
    writer.close()
    os.close(reading)


def test_a_reader_that_has_gone_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    writer = LogWriter(writing)
    writer.emit(record("to nobody"))
    writer.close()
    os.close(writing)
