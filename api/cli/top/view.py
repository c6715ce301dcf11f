"""What is on the screen, and what keys do to it. Synchronous, and knows neither terminal nor server."""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import TypeAlias

import attrs
from rich.console import RenderableType
from rich.text import Text

from tripower.actors.request_paths import RequestPath
from tripower.api.overview.figures import Overview
from tripower.api.overview.sheet import SORTS, sheet, spread
from tripower.api.overview.words import duration, harmless

TRACED_MAX = 1000
"""Items of a trace that are kept."""
HELP = (
    "↑ ↓   select one of the slowest requests (also k j)",
    "s     the next order: " + ", ".join(SORTS),
    "c     cancel the selected request, after a question",
    "t     its trace: what happens to it, as it happens; Esc comes back",
    "p     hold the screen still, and let it go on",
    "q     leave",
    "",
    "A request is arriving (read, checked, its model loaded), waiting for a seat,",
    "in its prompt, in its answer, or in the socket, when its client reads too",
    "slowly. WAITED to SOCKET are its times there; TOKENS what it has of what it",
    "may have, (N) how long its prompt is; LEFT the time until its deadline.",
    "",
    "FIRST TOKEN and PER TOKEN: median/95th/99th of this and the last minute.",
    "CACHED: of prompts, what was reused. ACCEPTED: of guesses, what was right.",
    "MEMORY: of all seats' positions, those in use. SHARE: of the last minute's",
    "tokens.",
)


class Mode(Enum):
    """What keys are for."""

    LIST = auto()
    CONFIRM = auto()
    TRACE = auto()
    HELP = auto()


@attrs.frozen
class Quit:
    """Leave."""


@attrs.frozen
class Redraw:
    """Draw everything anew: something else has written to the terminal."""


@attrs.frozen
class Cancel:
    """End a request."""

    request: str


@attrs.frozen
class Follow:
    """Begin to trace a request."""

    request: str


@attrs.frozen
class Unfollow:
    """Trace no more."""


Act: TypeAlias = Quit | Redraw | Cancel | Follow | Unfollow


@attrs.define
class View:
    """The state of the screen."""

    overview: Overview | None = None
    mode: Mode = Mode.LIST
    sort: str = "age"
    selected: str | None = None
    paused: bool = False
    note: str = ""
    """What is said in the last line, until the next key or for a while."""
    silence: float = 0.0
    """Seconds since the server should have answered."""
    subject: str = ""
    """The request that a question or a trace is about."""
    traced: deque[RenderableType] = attrs.Factory(lambda: deque(maxlen=TRACED_MAX))
    traced_all: bool = False
    """Whether the trace has ended."""

    def show(self, overview: Overview) -> None:
        """There are newer figures. Held back while the screen is paused."""
        self.silence = 0.0
        if not self.paused:
            self.overview = overview

    @property
    def requests(self) -> list[RequestPath]:
        """In the order in which they are shown."""
        return sorted(self.overview.requests, key=SORTS[self.sort]) if self.overview else []

    def press(self, key: str) -> Act | None:
        """A key was pressed; what is to be done outside of here."""
        self.note = ""
        if key == "redraw":
            return Redraw()
        match self.mode:
            case Mode.CONFIRM:
                return self._answer(key)
            case Mode.TRACE:
                return self._press_in_trace(key)
            case Mode.HELP:
                self.mode = Mode.LIST
                return None
        return self._press_in_list(key)

    def _press_in_list(self, key: str) -> Act | None:
        match key:
            case "q":
                return Quit()
            case "s":
                orders = list(SORTS)
                self.sort = orders[(orders.index(self.sort) + 1) % len(orders)]
            case "up" | "down" | "home" | "end":
                self._select(key)
            case "escape":
                self.selected = None
            case "p" | " ":
                self.paused = not self.paused
            case "?" | "h":
                self.mode = Mode.HELP
            case "c" if (chosen := self._chosen()) is not None:
                self.mode, self.subject = Mode.CONFIRM, chosen.id
            case "t" | "enter" if (chosen := self._chosen()) is not None:
                self.mode, self.subject, self.traced_all = Mode.TRACE, chosen.id, False
                self.traced.clear()
                return Follow(chosen.id)
        return None

    def _chosen(self) -> RequestPath | None:
        """The selected request, or None and a note. Never another one in its place."""
        chosen = next((path for path in self.requests if path.id == self.selected), None)
        if chosen is None:
            self.note = "select a request first, with ↑ and ↓" if self.requests else "no request runs or waits"
        return chosen

    def _select(self, key: str) -> None:
        ids = [path.id for path in self.requests]
        if not ids:
            self.selected = None
            return
        at = ids.index(self.selected) if self.selected in ids else -1 if key == "down" else len(ids)
        at = {"up": at - 1, "down": at + 1, "home": 0, "end": len(ids) - 1}[key]
        self.selected = ids[max(0, min(at, len(ids) - 1))]

    def _answer(self, key: str) -> Act | None:
        self.mode = Mode.LIST
        if key in ("y", "Y"):
            return Cancel(self.subject)
        self.note = "not cancelled"
        return None

    def _press_in_trace(self, key: str) -> Act | None:
        if key not in ("q", "escape", "t"):
            return None
        self.mode = Mode.LIST
        return Unfollow()

    # The screen.

    def lines(self, width: int, height: int) -> list[Text]:
        """All lines but the last one, where no trace is shown."""
        if self.overview is None:
            return [_line("  waiting for the first figures", width)]
        if self.mode is Mode.HELP:
            return [_line(f"  {text}", width) for text in ("", *HELP)][:height]
        return sheet(self.overview, width, height, sort=self.sort, selected=self.selected)

    def footer(self, width: int) -> Text:
        """The last line: a question, news, or the keys."""
        if self.mode is Mode.CONFIRM:
            return _line(f"  cancel {self.subject}{self._described()}? y/n", width, "bold reverse")
        if self.note:
            return _line(f"  {self.note}", width, "reverse")
        if self.silence > 0:
            return _line(f"  no answer for {duration(self.silence)}", width, "reverse")
        if self.mode is Mode.TRACE:
            state = "has ended" if self.traced_all else "goes on"
            return _line(f"  trace of {self.subject}, which {state}   Esc back", width, "dim")
        if self.mode is Mode.HELP:
            return _line("  any key comes back", width, "dim")
        if self.paused:
            return _line("  PAUSED: p goes on", width, "reverse")
        return spread([(worth, Text(key, style="dim")) for worth, key in self._keys()], width)

    def _keys(self) -> list[tuple[int, str]]:
        """With what each is worth where not all have room."""
        return [
            (8, "q quit"),
            (4, f"s sort: {self.sort}"),
            (3, "↑↓ select"),
            (7, "c cancel"),
            (6, "t trace"),
            (5, "p pause"),
            (9, "? help"),
        ]

    def _described(self) -> str:
        path = next((path for path in self.requests if path.id == self.subject), None)
        return "" if path is None else f" of {path.model}, {path.generated_tokens} tokens after {duration(path.age)}"


def _line(text: str, width: int, style: str = "") -> Text:
    line = Text(harmless(text), style=style, no_wrap=True, end="")
    line.truncate(width, overflow="ellipsis", pad=True)
    return line
