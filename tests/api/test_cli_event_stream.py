"""Server-sent events, however their bytes arrive."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tripower.api.cli.event_stream import EVENT_CHARACTERS_MAX, EventReader, EventTooLong

STREAM = (
    ": a comment\n\n"
    'data: {"text": "héllo 🌍"}\n\n'
    "data: first line\ndata: second line\n\n"
    "event: named\r\nid: 7\r\ndata:no space\r\n\r\n"
    "data: \n\n"
    "data: [DONE]\n\n"
    "data: not ended"
)
EVENTS = ['{"text": "héllo 🌍"}', "first line\nsecond line", "no space", "", "[DONE]"]


@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, len(STREAM.encode())), max_size=40))
def test_any_split_of_the_bytes_gives_the_same_events(cuts: list[int]) -> None:
    data, reader = STREAM.encode(), EventReader()
    borders = [0, *sorted(cuts), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(borders)]
    assert [event for piece in pieces for event in reader.feed(piece)] == EVENTS


def test_one_byte_at_a_time_prints_characters_whole() -> None:
    reader = EventReader()
    assert [event for byte in STREAM.encode() for event in reader.feed(bytes([byte]))] == EVENTS


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 4096, b"data: " + b"x" * 4090 + b"\n"])
def test_an_event_that_never_ends_is_refused(piece: bytes) -> None:
    reader = EventReader()
    with pytest.raises(EventTooLong):
        for _ in range(EVENT_CHARACTERS_MAX // 4000):
            reader.feed(piece)


def test_bytes_that_are_no_text_do_not_end_the_stream() -> None:
    assert EventReader().feed(b"data: \xff\xfe!\n\n") == ["\ufffd\ufffd!"]
