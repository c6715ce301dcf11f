"""Keys from the bytes that terminals send."""

from __future__ import annotations

import pytest

from tripower.api.cli.top.keys import is_cut, keys


@pytest.mark.parametrize(
    ("data", "pressed"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1bOB", ["up", "down"]),
        (b"\x1b[1~\x1b[F", ["home", "end"]),
        (b"sj\x1b[Bk", ["s", "down", "down", "up"]),
        (b"\x1b", ["escape"]),
        (b"\x1b\x1b[A", ["escape", "up"]),
        (b"\r\n", ["enter", "enter"]),
        (b"\x04", ["q"]),
        (b"\x1c", ["q"]),
        (b"\x0c", ["redraw"]),
        (b"\x1b[<0;10;20M\x1b[1;5C?", ["?"]),
        ("é漢".encode(), ["é", "漢"]),
        (b"\xff", ["\ufffd"]),
        (b"", []),
    ],
)
def test_what_was_pressed(data: bytes, pressed: list[str]) -> None:
    assert keys(data) == pressed


@pytest.mark.parametrize("data", [b"\x1b", b"\x1b[", b"\x1bO", b"a\x1b[1;5", b"\x1b\x1b"])
def test_a_sequence_may_go_on(data: bytes) -> None:
    assert is_cut(data)


@pytest.mark.parametrize("data", [b"", b"a", b"\x1b[A", b"\x1bOA", b"\x1b[Aa", b"\x1ba"])
def test_nothing_more_is_waited_for(data: bytes) -> None:
    assert not is_cut(data)
