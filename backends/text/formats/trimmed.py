"""Text of one part of an answer, without the white space that stands around markers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from tripower.runtime.engine.answer import AnswerDelta, ContentDelta, ReasoningDelta, ToolCallDelta


class TrimmedText:
    """White space is held back until something follows it: before a marker it is dropped, and so it is behind one."""

    def __init__(self, delta: Callable[[str], AnswerDelta], out: list[AnswerDelta]) -> None:
        self._delta = delta
        self._out = out
        self._space: list[str] = []
        self._after_marker = False

    def add(self, text: str) -> None:
        """More of it."""
        if self._after_marker:
            text = text.lstrip()
            self._after_marker = not text
        body = text.rstrip()
        if body:
            self._out.append(self._delta("".join([*self._space, body])))
            self._space.clear()
        if len(body) < len(text):
            self._space.append(text[len(body) :])

    def marker(self) -> None:
        """A marker stands here."""
        self._space.clear()
        self._after_marker = True

    def resume(self) -> None:
        """Text goes on here that no marker stands before."""
        self._after_marker = False

    def finish(self) -> None:
        """Nothing follows: what was held is text."""
        if self._space:
            self._out.append(self._delta("".join(self._space)))
            self._space.clear()


def joined(deltas: Sequence[AnswerDelta]) -> list[AnswerDelta]:
    """The same with neighbours of one part as one. The beginning of a call stays by itself."""
    if len(deltas) < 2:
        return list(deltas)
    return [_one(list(group)) for _, group in groupby(deltas, _part)]


def _part(delta: AnswerDelta) -> tuple[type, int, str | None]:
    return (type(delta), delta.index, delta.id) if isinstance(delta, ToolCallDelta) else (type(delta), 0, None)


def _one(deltas: list[AnswerDelta]) -> AnswerDelta:
    match deltas[0]:
        case ToolCallDelta(index, None):
            return ToolCallDelta(index, arguments="".join(each.arguments for each in deltas if isinstance(each, ToolCallDelta)))
        case ContentDelta() | ReasoningDelta() as first:
            return type(first)("".join(each.text for each in deltas if not isinstance(each, ToolCallDelta)))
        case begun:
            return begun
