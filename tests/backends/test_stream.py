"""Streaming text: characters never split, stop strings never leak."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tripower.backends.text.stream import StopMatcher, TextStream


class Pieces:
    """Tokens that are the given byte strings; negative ones are control tokens."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def piece(self, token: int) -> bytes:
        return b"" if token < 0 else self._pieces[token]

    def spelling(self, token: int) -> bytes:
        return f"<{-token}>".encode() if token < 0 else self._pieces[token]


def stream(pieces: Sequence[bytes], stop: tuple[str, ...] = ()) -> tuple[list[str], TextStream]:
    """What each push released, then what `finish` did."""
    text = TextStream(Pieces(pieces), stop)
    return [text.push(token) for token in range(len(pieces))] + [text.finish()], text


def cut(text: str, stop: tuple[str, ...]) -> str:
    """The specification: the text in front of the stop string that is complete first; of two ending there, the longer."""
    for end in range(len(text) + 1):
        found = [item for item in stop if text[:end].endswith(item)]
        if found:
            return text[: end - max(map(len, found))]
    return text


RELEASED: dict[str, tuple[list[bytes], tuple[str, ...], list[str]]] = {
    "no stop strings": ([b"a", b"bc"], (), ["a", "bc", ""]),
    "emoji in three parts": ([b"\xf0\x9f", b"\x98", b"\x80 ok"], (), ["", "", "😀 ok", ""]),  # BB-007
    "CJK letter in three parts": ([b"\xe4", b"\xb8", b"\xad"], (), ["", "", "中", ""]),  # BB-007
    "end in the middle of a character": ([b"a", b"\xf0\x9f\x98"], (), ["a", "", "\ufffd"]),  # BB-008
    "bytes that are no text": ([b"a\xff", b"\xc3(", b"b"], (), ["a\ufffd", "\ufffd(", "b", ""]),
    "stop over three tokens": ([b"AB", b"CD", b"EF", b"GH"], ("CDEFGH",), ["AB", "", "", "", ""]),  # BB-013
    "held text that was no stop": ([b"AB", b"CD", b"xx"], ("CDEFGH",), ["AB", "", "CDxx", ""]),  # BB-013
    "held text at the end": ([b"AB", b"CD"], ("CDEFGH",), ["AB", "", "CD"]),
    "stop inside a token": ([b"one ", b"twothree"], ("two",), ["one ", "", ""]),  # BB-014
    "stop at once": ([b"two"], ("two",), ["", ""]),
    "stop of a multibyte character": ([b"a\xe4\xb8", b"\xad\xe5", b"\xad\x97"], ("中字",), ["a", "", "", ""]),
    "stop that begins again inside itself": ([b"aa", b"ab"], ("aab",), ["", "a", ""]),
    "restart over a border": ([b"aba", b"bac"], ("abac",), ["", "ab", ""]),
    "what follows a stop": ([b"x<end>y", b"z"], ("<end>",), ["x", "", ""]),
    "the stop that is complete first": ([b"abcd"], ("abcd", "bc"), ["a", ""]),
    "the longer of two that end together": ([b"abc"], ("bc", "abc"), ["", ""]),
    "a replaced character as stop": ([b"a\xe4"], ("\ufffd",), ["a", ""]),
}


@pytest.mark.parametrize("case", RELEASED)
def test_text_is_released_as_soon_as_it_may_be(case: str) -> None:
    pieces, stop, expected = RELEASED[case]
    released, _ = stream(pieces, stop)
    assert released == expected


def test_the_stream_says_by_which_string_it_stopped() -> None:
    _, stopped = stream([b"ab", b"cd"], ("zz", "bc"))
    assert (stopped.stopped, stopped.matched) == (True, "bc")
    _, running = stream([b"ab"], ("bc",))
    assert (running.stopped, running.matched) == (False, None)


def test_control_tokens_add_nothing() -> None:
    text = TextStream(Pieces([b"a"]), ("ab",))
    assert [text.push(-1), text.push(0), text.push(-1), text.finish()] == ["", "", "", "a"]


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        TextStream(Pieces([]), ("a", ""))


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({place % (len(data) + 1) for place in cuts} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(places)]


letters = st.text(st.sampled_from("ab é😀中"), max_size=40)
stops = st.lists(st.text(st.sampled_from("ab é😀中"), min_size=1, max_size=5), max_size=4).map(tuple)


@settings(deadline=None)
@given(text=letters, stop=stops, cuts=st.lists(st.integers(0, 200), max_size=30))
def test_any_split_gives_the_whole_text_cut_at_the_first_stop(text: str, stop: tuple[str, ...], cuts: list[int]) -> None:
    released, result = stream(split(text.encode(), cuts), stop)
    assert "".join(released) == cut(text, stop)
    assert result.stopped == (cut(text, stop) != text or any(text.endswith(item) for item in stop))


@settings(deadline=None)
@given(data=st.binary(max_size=60), cuts=st.lists(st.integers(0, 100), max_size=30), stop=stops)
def test_any_split_of_any_bytes_gives_one_text(data: bytes, cuts: list[int], stop: tuple[str, ...]) -> None:
    released, _ = stream(split(data, cuts), stop)
    assert "".join(released) == cut(data.decode(errors="replace"), stop)


@settings(deadline=None)
@given(text=letters, stop=stops.filter(bool))
def test_no_more_is_held_than_may_become_a_stop(text: str, stop: tuple[str, ...]) -> None:
    matcher = StopMatcher(stop)
    released = ""
    for end, character in enumerate(text, 1):
        released += matcher.feed(character)
        if matcher.matched:
            return
        held = text[len(released) : end]
        assert len(held) < max(map(len, stop))
        assert not held or any(item.startswith(held) for item in stop)


def test_control_tokens_have_a_text_only_where_somebody_wants_to_see_them() -> None:
    text = TextStream(Pieces([b"a", b"b"]), ("2>b",), visible=frozenset({-2, 0}))
    assert [text.push(token) for token in (0, -1, -2, 1)] == ["a", "", "<", ""]
    assert text.matched == "2>b" and text.finish() == ""
