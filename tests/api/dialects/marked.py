"""Answers in parts: a reader of a markup that only these tests have, and the events of a named stream."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from tests.api.serving import Answer
from tripower.runtime.engine.answer import AnswerDelta, ContentDelta, ReasoningDelta, ToolCallDelta


class MarkedReader:
    """Reads `?…` as a thought, `!name` as the beginning of a call and `=…` as its arguments; anything else is said."""

    def __init__(self) -> None:
        self.complete_calls = 0

    def push(self, text: str) -> list[AnswerDelta]:
        match text[:1]:
            case "":
                return []
            case "?":
                return [ReasoningDelta(text[1:])]
            case "!":
                self.complete_calls += 1
                number = self.complete_calls - 1
                return [ToolCallDelta(number, f"call_{number}", text[1:])]
            case "=":
                return [ToolCallDelta(self.complete_calls - 1, arguments=text[1:])]
        return [ContentDelta(text)]

    def finish(self, text: str = "") -> list[AnswerDelta]:
        return self.push(text)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@st.composite
def delta_sequences(draw: st.DrawFn) -> list[AnswerDelta]:
    """Whatever a reader may tell: calls are numbered, and each one's deltas come together."""
    deltas: list[AnswerDelta] = []
    calls = 0
    for kind in draw(st.lists(st.sampled_from(["content", "reasoning", "call"]), max_size=12)):
        if kind == "content":
            deltas.append(ContentDelta(draw(texts)))
        elif kind == "reasoning":
            deltas.append(ReasoningDelta(draw(texts)))
        else:
            first, *more = draw(st.lists(texts, min_size=1, max_size=3))
            deltas.append(ToolCallDelta(calls, f"call_{calls}", "f", first))
            deltas += [ToolCallDelta(calls, arguments=text) for text in more]
            calls += 1
    return deltas


def named_events(stream: bytes) -> list[dict[str, Any]]:
    """The events of a stream. Each has the name that its data has as type; comments are left out."""
    events = []
    for block in stream.decode().split("\n\n"):
        if not block or block.startswith(":"):
            continue
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def types(answer: Answer) -> list[str]:
    return [event["type"] for event in named_events(answer.body)]
