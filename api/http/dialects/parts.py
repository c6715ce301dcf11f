"""An answer as parts that come one after another, each with a beginning and an end.

Readers of answers tell what each piece of text adds (`AnswerDelta`). Both dialects want to hear of whole parts: here a thought ends and
the text begins, here a call begins. `Parts` puts the boundaries in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

import attrs

from tripower.runtime.engine.answer import AnswerDelta, ContentDelta, ReasoningDelta, ToolCallDelta

Kind: TypeAlias = Literal["text", "reasoning", "call"]


@attrs.define(eq=False)
class Part:
    """A part and what it holds so far. Of a call, `text` is its arguments' JSON."""

    index: int
    kind: Kind
    call_id: str = ""
    name: str = ""
    pieces: list[str] = attrs.Factory(list)
    call: int = -1
    """The reader's number of the call."""

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@attrs.frozen
class PartBegan:
    """A part begins, empty."""

    part: Part


@attrs.frozen
class PartGrew:
    """More of the part that began last."""

    part: Part
    text: str


@attrs.frozen
class PartEnded:
    """The part that began last is complete."""

    part: Part


PartEvent: TypeAlias = PartBegan | PartGrew | PartEnded


class Parts:
    """Synchronous. At most the last of `all` is open."""

    def __init__(self) -> None:
        self.all: list[Part] = []
        self._open = False

    def add(self, delta: AnswerDelta) -> Iterator[PartEvent]:
        """What a delta means. A call's deltas must come together, as `ToolCallDelta` says; an empty text adds nothing."""
        match delta:
            case ContentDelta(text):
                yield from self._grow("text", text)
            case ReasoningDelta(text):
                yield from self._grow("reasoning", text)
            case ToolCallDelta():
                yield from self._call(delta)

    def end(self) -> Iterator[PartEvent]:
        """Nothing more comes."""
        if self._open:
            self._open = False
            yield PartEnded(self.all[-1])

    def _grow(self, kind: Kind, text: str) -> Iterator[PartEvent]:
        if not text:
            return
        if not (self._open and self.all[-1].kind == kind):
            yield from self._begin(Part(len(self.all), kind))
        yield self._append(text)

    def _call(self, delta: ToolCallDelta) -> Iterator[PartEvent]:
        if delta.name is not None:
            yield from self._begin(Part(len(self.all), "call", delta.id or "", delta.name, call=delta.index))
        assert self._open and self.all[-1].call == delta.index, "a call's deltas come together"
        if delta.arguments:
            yield self._append(delta.arguments)

    def _begin(self, part: Part) -> Iterator[PartEvent]:
        yield from self.end()
        self.all.append(part)
        self._open = True
        yield PartBegan(part)

    def _append(self, text: str) -> PartEvent:
        self.all[-1].pieces.append(text)
        return PartGrew(self.all[-1], text)
