"""Text of one answer as its tokens arrive: whole characters only, and nothing of a stop string or behind it.

Bytes go through one incremental UTF-8 decoder. Characters go through one automaton for all stop strings (Aho and Corasick,
"Efficient string matching", 1975): its state is the longest end of the text that some stop string begins with, which is exactly
what has to be held back. So the cost of a token depends on its own length only, and what is held on the longest stop string.
"""

from __future__ import annotations

import codecs
from collections import deque
from typing import Protocol

_new_decoder = codecs.getincrementaldecoder("utf-8")


class HasPieces(Protocol):
    """What a stream needs of a text layer."""

    def spelling(self, token: int) -> bytes:
        """`piece`, and for a control token the text by which it is known."""

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for; empty for control tokens."""


class TextStream:
    """One per request. The text ends where a stop string is complete first; of two ending there, the longer counts.

    `stopped` says that this has happened, `matched` by which stop string. Control tokens have no text, but for the `visible` ones.
    Raises `ValueError` for an empty stop string.
    """

    def __init__(self, layer: HasPieces, stop: tuple[str, ...] = (), *, visible: frozenset[int] = frozenset()) -> None:
        self._layer, self._visible = layer, visible
        self._decoder = _new_decoder("replace")
        self._matcher = StopMatcher(stop) if stop else None
        self.stopped = False
        self.matched: str | None = None

    def push(self, token: int) -> str:
        """Take the next token; answers the text that may be published now, which may be empty."""
        if self.stopped:
            return ""
        spell = self._layer.spelling if token in self._visible else self._layer.piece
        return self._release(self._decoder.decode(spell(token)))

    def finish(self) -> str:
        """The text that was still held; bytes that never became a character are one U+FFFD. Call once, at the end."""
        if self.stopped:
            return ""
        text = self._release(self._decoder.decode(b"", True))
        if self._matcher is None or self.stopped:
            return text
        return text + self._matcher.flush()

    def _release(self, text: str) -> str:
        if self._matcher is None:
            return text
        released = self._matcher.feed(text)
        self.matched = self._matcher.matched
        self.stopped = self.matched is not None
        return released


class StopMatcher:
    """Finds the first of several strings in text that arrives in parts."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        if "" in stops:
            raise ValueError("an empty stop string")
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._hit: list[str | None] = [None]
        for stop in stops:
            self._add(stop)
        self._fallback = self._link()
        self._state = 0
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """The part of the text so far that no stop string can begin in any more, without what was answered before."""
        state = self._state
        follow, fallback = self._next, self._fallback
        for index, character in enumerate(text):
            while state and character not in follow[state]:
                state = fallback[state]
            state = follow[state].get(character, 0)
            if (hit := self._hit[state]) is not None:
                self.matched = hit
                seen = self._held + text[: index + 1]
                return seen[: len(seen) - len(hit)]
        self._state = state
        seen = self._held + text
        kept = len(seen) - self._depth[state]
        self._held = seen[kept:]
        return seen[:kept]

    def flush(self) -> str:
        """What is held, since nothing follows."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._hit.append(None)
            state = self._next[state][character]
        self._hit[state] = stop

    def _link(self) -> list[int]:
        """For each state the state of its longest proper end, breadth first; hits are inherited along the way."""
        fallback = [0] * len(self._next)
        waiting = deque(self._next[0].values())
        while waiting:
            state = waiting.popleft()
            for character, child in self._next[state].items():
                link = fallback[state]
                while link and character not in self._next[link]:
                    link = fallback[link]
                fallback[child] = self._next[link].get(character, 0)
                if self._hit[child] is None:
                    self._hit[child] = self._hit[fallback[child]]
                waiting.append(child)
        return fallback
