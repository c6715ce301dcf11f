"""Files of flight recordings: what is refused, and why."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tripower.runtime.introspection.recording import (
    FORMAT,
    ActorPlace,
    Beginning,
    Ending,
    Line,
    Noted,
    Passed,
    RecordingRefused,
    read_recording,
    write_lines,
)

BEGINNING = Beginning(version="1.2.3", pid=7, at="2026-01-01T00:00:00.000+00:00", clock=10.5, now=12.0, models=("toy",))
RECORDS: list[Line] = [
    Passed(number=4, sent=10.6, sender="caller", receiver="queue:toy", kind="ask", message="Generate", started=10.7, ended=10.8, outcome="answered", size=90),
    Noted(5, 0.1 + 0.2, "queue:toy", {"type": "something", "deadline": 1e17 / 3}),
]  # fmt: skip
ENDING = Ending(records=2, now=12.5, actors=(ActorPlace("queue:toy", "ModelQueueActor", "registry", "idle"),))


def written(folder: Path, lines: list[Line]) -> Path:
    path = folder / "flight"
    path.write_bytes(b"".join(write_lines(lines)))
    return path


def test_what_was_written_is_read_to_the_last_bit(tmp_path: Path) -> None:
    recording = read_recording(written(tmp_path, [BEGINNING, *RECORDS, ENDING]))
    assert (recording.beginning, list(recording.records), recording.ending) == (BEGINNING, RECORDS, ENDING)
    assert recording.first == 4
    assert len(recording.messages) == len(recording.notes) == 1


@pytest.mark.parametrize("cut", [2, 30, 200, 400])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path, [BEGINNING, *RECORDS, ENDING])
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(RecordingRefused, match=r"cut off|truncated|damaged"):
        read_recording(path)


def test_a_file_without_its_end_says_how_far_it_goes(tmp_path: Path) -> None:
    with pytest.raises(RecordingRefused, match="its end is missing behind 2 records; record anew"):
        read_recording(written(tmp_path, [BEGINNING, *RECORDS]))


@pytest.mark.parametrize("data", [b"", b"hello\n", b"[1]\n", b'{"a": 1}\n', b"\x00\xff\n", b"[" * 5000])
def test_what_is_no_recording_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "flight"
    path.write_bytes(data)
    with pytest.raises(RecordingRefused, match="no flight recording"):
        read_recording(path)


def test_a_recording_of_another_format_names_who_made_it(tmp_path: Path) -> None:
    path = tmp_path / "flight"
    path.write_bytes(
        msgspec.json.encode({"type": "beginning", "magic": "tripower recording", "format": FORMAT + 1, "version": "9.0"})
    )
    with pytest.raises(RecordingRefused, match=rf"format {FORMAT + 1} and was made by tripower 9\.0"):
        read_recording(path)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([BEGINNING, RECORDS[0], ENDING], "1 records are there of 2"),
        ([BEGINNING, *reversed(RECORDS), ENDING], "out of order"),
        ([BEGINNING, BEGINNING, *RECORDS, ENDING], "begins twice"),
    ],
)
def test_records_that_are_missing_or_in_disorder_are_noticed(tmp_path: Path, lines: list[Line], why: str) -> None:
    with pytest.raises(RecordingRefused, match=why):
        read_recording(written(tmp_path, lines))


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, [BEGINNING, *RECORDS, ENDING])
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"number":5', b'"number":"five"')
    path.write_bytes(b"".join(lines))
    with pytest.raises(RecordingRefused, match="line 3 of the recording is damaged"):
        read_recording(path)
