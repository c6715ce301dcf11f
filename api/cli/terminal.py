"""How things look: what goes to a terminal may be dim and must be harmless, what goes anywhere else is plain."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn, TextIO

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
SHOW_CURSOR = b"\x1b[?25h"
_HARMFUL = {code: "\ufffd" for code in [*range(32), *range(127, 160)] if chr(code) not in "\n\t"}


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at it."""
    try:
        return stream.isatty()
    except ValueError:  # it is closed
        return False


def dim(text: str, stream: TextIO) -> str:
    """The text in a dimmer shade, where the stream can show one."""
    styled = is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return f"{DIM}{text}{PLAIN}" if styled else text


def harmless(text: str) -> str:
    """The same without what could control a terminal, but for line ends and tabs."""
    return text.translate(_HARMFUL)


def note(text: str) -> None:
    """One dim line on standard error. Nobody has to read it: a pipe that is closed or a full disk stops nothing."""
    say(dim(harmless(text), sys.stderr), sys.stderr)


def say(text: str, stream: TextIO) -> None:
    """One line that nobody has to read."""
    try:
        sys.stdout.flush()
        print(text, file=stream, flush=True)
    except OSError:
        discard_output()


def discard_output() -> None:
    """Point a standard stream that takes no more at nothing: what it has buffered would raise again at the next flush, and at the end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def open_missing_streams() -> None:
    """Give a program that was started with closed streams silent ones, before a file or a socket takes their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDONLY if mode == "r" else os.O_WRONLY)
            setattr(sys, name, open(nowhere, mode, closefd=False))  # noqa: SIM115 - for the life of the process


def write(text: str) -> None:
    """Text of a model to standard output, at once. A terminal gets no control characters from it. May block, as writing does."""
    if not text:
        return
    sys.stdout.write(harmless(text) if is_terminal(sys.stdout) else text)
    sys.stdout.flush()


def size(count: float) -> str:
    """Bytes in binary units, one decimal: `93.8 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Columns as wide as their widest cell, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def end_process(code: int) -> NoReturn:
    """End without any clean-up, but with a cursor: a bar may have hidden it."""
    if is_terminal(sys.stderr):
        os.write(sys.stderr.fileno(), SHOW_CURSOR)
    os._exit(code)


def tolerate_any_text() -> None:
    """Let a terminal without Unicode show question marks rather than end the program."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
