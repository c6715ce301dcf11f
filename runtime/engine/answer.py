"""An assistant's answer in its parts: what it says, what it thinks, what it wants called.

A model writes one text. How a family marks its reasoning and its tool calls there is known to the text layer, which answers a
conversation's options with an `AnswerPlan`: who reads the text, and what keeps the text readable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

import msgspec

from tripower.runtime.engine.constraint import OutputFormat


class ContentDelta(msgspec.Struct, frozen=True):
    """More of what is said."""

    text: str


class ReasoningDelta(msgspec.Struct, frozen=True):
    """More of what is thought."""

    text: str


class ToolCallDelta(msgspec.Struct, frozen=True):
    """A call begins (`id` and `name`, once), or more of its arguments' JSON text comes. Calls are numbered from 0.

    A call's deltas come together: whatever else comes after its beginning, another call included, comes after its end.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


AnswerDelta: TypeAlias = ContentDelta | ReasoningDelta | ToolCallDelta


class AnswerReader(Protocol):
    """Reads one answer's text as it comes. Synchronous."""

    complete_calls: int
    """Calls that have been read to their end. An answer that stops by itself and has any finishes with `tool_calls`."""

    def push(self, text: str) -> list[AnswerDelta]:
        """More text; what it adds to the parts."""

    def finish(self, text: str = "") -> list[AnswerDelta]:
        """The last text, and everything that was held back. Call once."""


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Whether tools may, must not or must be called; `name` says which one must."""

    mode: Literal["auto", "none", "required"] = "auto"
    name: str | None = None
    parallel: bool = True
    """Whether one answer may hold several calls."""


class AnswerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How one answer will be read, and what its text is held to."""

    new_reader: Callable[[], AnswerReader]
    format: OutputFormat | None = None
    """What enforces the choice of tools, or the caller's own format in its place in the answer."""
    visible: frozenset[int] = frozenset()
    """Control tokens that the reader wants to see as their text."""


class PlainReader:
    """An answer that is nothing but content."""

    complete_calls = 0

    def push(self, text: str) -> list[AnswerDelta]:
        return [ContentDelta(text)] if text else []

    def finish(self, text: str = "") -> list[AnswerDelta]:
        return self.push(text)
