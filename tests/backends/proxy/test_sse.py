"""Server-sent events out of bytes in any portions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tripower.backends.proxy.errors import UpstreamProtocol
from tripower.backends.proxy.sse import EventParser


def parse(portions: Sequence[bytes], *, event_bytes_max: int = 100) -> list[str]:
    parser = EventParser(event_bytes_max=event_bytes_max)
    return [event for portion in portions for event in parser.feed(portion)]


@pytest.mark.parametrize(
    ("data", "events"),
    [
        (b"data: a\n\n", ["a"]),
        (b"data:a\r\n\r\n", ["a"]),
        (b"data: a\n\ndata: b\n\n", ["a", "b"]),
        (b"data: a\ndata: b\n\n", ["a\nb"]),
        (b": keep-alive\n\n\n\ndata: a\n\n", ["a"]),
        (b"event: x\nid: 7\nretry: 1\ndata: a\nother\n\n", ["a"]),
        (b"data\n\n", [""]),
        (b"data:  two spaces\n\n", [" two spaces"]),
        (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
        ("data: aé😀\n\n".encode(), ["aé😀"]),
        (b"data: cut off", []),
        (b"data: no end\n", []),
        (b"", []),
    ],
)
def test_only_data_counts(data: bytes, events: list[str]) -> None:
    assert parse([data]) == events
    assert parse([bytes([byte]) for byte in data]) == events


@settings(deadline=None)
@given(
    st.lists(st.text(st.characters(exclude_characters="\n\r", codec="utf-8"), max_size=8), max_size=5),
    st.sampled_from([b"\n", b"\r\n"]),
    st.data(),
)
def test_the_portions_make_no_difference(texts: list[str], end: bytes, data: st.DataObject) -> None:
    whole = b"".join(b"data: " + text.encode() + end + end for text in texts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    portions = [whole[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert parse(portions) == texts


@pytest.mark.parametrize(
    "portions",
    [
        [b"data: " + b"a" * 100 + b"\n\n"],
        [b"data: " + b"a" * 50, b"a" * 50],
        [b"data: " + b"a" * 40 + b"\n"] * 3,
        [b"a"] * 101,
    ],
)
def test_an_event_that_never_ends_is_an_error(portions: list[bytes]) -> None:
    with pytest.raises(UpstreamProtocol, match="more than 100 bytes"):
        parse(portions)


def test_comments_without_end_are_no_event() -> None:
    assert parse([b": keep-alive\n"] * 1000) == []


def test_text_that_is_not_utf8_is_an_error() -> None:
    with pytest.raises(UpstreamProtocol, match="UTF-8"):
        parse([b"data: \xff\n\n"])


def test_what_was_cut_off_is_known() -> None:
    parser = EventParser()
    assert not list(parser.feed(b"data: a\n")) and parser.pending
    assert list(parser.feed(b"\n")) == ["a"] and not parser.pending
