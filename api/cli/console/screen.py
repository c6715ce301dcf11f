"""How answers of the console are shown: a JSON value a line for programs, rich text for people."""

from __future__ import annotations

import os
import re
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from tripower.api.cli.terminal import is_terminal
from tripower.api.console.client import UnknownAnswer, decoded
from tripower.api.console.protocol import Hello
from tripower.runtime.kernel.errors import InvalidRequest, TripowerError

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 160
"""Of what is no terminal, unless `COLUMNS` says otherwise."""
WIDTH_MAX = 10_000
_HARMFUL = re.compile(rb"\\u00[01]|\\u007f|\\[bfr]|\x7f|\xc2[\x80-\x9f]")
_UNESCAPED = re.compile(rb"\x7f|\xc2[\x80-\x9f]")
"""What JSON lets through as it is, and some terminals obey."""
_REPLACED = {code: "\ufffd" for code in [*range(32), *range(127, 160)] if chr(code) not in "\n\t"}


class Screen:
    """Standard output. Every value is out before the next one is asked for."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def show(self, verb: str, value: msgspec.Raw, hello: Hello) -> None:
        """One answer, or one item of a stream. Raises `UnknownAnswer` where the server's version differs too much from ours."""
        if self._as_json:
            print(escaped(bytes(value)), flush=True)
            return
        if bytes(value) == b"null":
            return
        from tripower.api.console.verbs import find_verb

        value = harmless(value)
        try:
            known = find_verb(verb)
        except InvalidRequest:  # a server of another version
            shown: Any = msgspec.json.format(bytes(value)).decode()
        else:
            shown = known.show(decoded(value, known.answer, hello))
        self._console.print(shown)
        sys.stdout.flush()

    def refuse(self, error: TripowerError) -> None:
        """What was refused, and why: on standard error, and for programs in the place of the answer as well."""
        if self._as_json:
            print_error(error)
        sys.stdout.flush()
        print(f"tripower: {error.message.translate(_REPLACED)}", file=sys.stderr, flush=True)

    @cached_property
    def _console(self) -> Console:
        from rich.console import Console

        width = None if is_terminal(sys.stdout) else width_of(os.environ.get("COLUMNS", ""))
        return Console(width=width, markup=False, highlight=False, emoji=False)


def print_error(error: TripowerError) -> None:
    """For programs, in the place of an answer."""
    print(escaped(msgspec.json.encode({"error": {"code": error.code, "message": error.message}})), flush=True)


def tells_of_failure(verb: str, value: msgspec.Raw, hello: Hello) -> bool:
    """Whether a verb's answer says that something went wrong, as far as we know this verb."""
    from tripower.api.console.verbs import find_verb

    try:
        known = find_verb(verb)
        return known.failed(decoded(value, known.answer, hello))
    except (InvalidRequest, UnknownAnswer):  # a server of another version
        return False


def width_of(columns: str) -> int:
    """What `COLUMNS` says, or `WIDTH` where that is no width."""
    return int(columns) if columns.isascii() and columns.isdigit() and 0 < int(columns[:9]) <= WIDTH_MAX else WIDTH


def escaped(value: bytes) -> str:
    """The same JSON, in which nothing controls a terminal."""
    return _UNESCAPED.sub(lambda found: b"\\u00%02x" % found[0][-1], value).decode()


def harmless(value: msgspec.Raw) -> msgspec.Raw:
    """The same JSON without what could control a terminal: it may hold text of models and of clients."""
    data = bytes(value)
    if _HARMFUL.search(data) is None:
        return value
    return msgspec.Raw(msgspec.json.encode(_cleaned(msgspec.json.decode(data))))


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return value.translate(_REPLACED)
    if isinstance(value, list):
        return [_cleaned(each) for each in value]
    if isinstance(value, dict):
        return {_cleaned(name): _cleaned(each) for name, each in value.items()}
    return value
