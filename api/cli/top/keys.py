"""What was pressed, from the bytes that a terminal sends."""

from __future__ import annotations

import re

SEQUENCE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.)", re.DOTALL)
SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[H": "home",
    b"\x1bOH": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1bOF": "end",
    b"\x1b[4~": "end",
}
CHARACTERS = {
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x04": "q",
    "\x1c": "q",
    "\x0c": "redraw",
    "k": "up",
    "j": "down",
}
"""Ctrl-D and Ctrl-\\ leave, Ctrl-L draws anew."""


def is_cut(data: bytes) -> bool:
    """Whether this may be the beginning of a longer sequence."""
    begin = data.rfind(b"\x1b")
    return (
        begin >= 0
        and SEQUENCE.match(data, begin) is None
        and data[begin:] in (b"\x1b", b"\x1bO")
        or (begin >= 0 and data[begin : begin + 2] == b"\x1b[" and SEQUENCE.match(data, begin) is None)
    )


def keys(data: bytes) -> list[str]:
    """The keys, by name where they have one, else the character. Sequences that nobody knows are left out."""
    pressed = []
    while data:
        sequence = SEQUENCE.match(data)
        if sequence is not None:
            if sequence[0] in SEQUENCES:
                pressed.append(SEQUENCES[sequence[0]])
            data = data[sequence.end() :]
            continue
        rest = data.find(b"\x1b", 1)
        piece, data = (data, b"") if rest < 0 else (data[:rest], data[rest:])
        pressed += [CHARACTERS.get(character, character) for character in piece.decode(errors="replace")]
    return pressed
