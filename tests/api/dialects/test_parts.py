"""Deltas become parts with boundaries, whatever the deltas are."""

from __future__ import annotations

from itertools import groupby

from hypothesis import given, settings

from tests.api.dialects.marked import delta_sequences
from tripower.api.http.dialects.parts import Part, PartBegan, PartEnded, PartEvent, PartGrew, Parts
from tripower.runtime.engine.answer import AnswerDelta, ContentDelta, ReasoningDelta, ToolCallDelta


def parts_of(deltas: list[AnswerDelta]) -> tuple[list[Part], list[PartEvent]]:
    parts = Parts()
    events = [event for delta in deltas for event in parts.add(delta)]
    return parts.all, events + list(parts.end())


def test_a_thought_a_text_and_two_calls_are_four_parts() -> None:
    parts, _ = parts_of(
        [
            ReasoningDelta("hm"),
            ContentDelta("I "),
            ContentDelta("look"),
            ToolCallDelta(0, "a", "look", '{"x"'),
            ToolCallDelta(0, arguments=":1}"),
            ToolCallDelta(1, "b", "look"),
        ]
    )
    assert [(part.kind, part.text, part.call_id) for part in parts] == [
        ("reasoning", "hm", ""),
        ("text", "I look", ""),
        ("call", '{"x":1}', "a"),
        ("call", "", "b"),
    ]


@settings(deadline=None, max_examples=40)
@given(delta_sequences())
def test_parts_begin_and_end_in_pairs_and_hold_everything(deltas: list[AnswerDelta]) -> None:
    parts, events = parts_of(deltas)
    assert [part.index for part in parts] == list(range(len(parts)))
    for part in parts:
        own = [event for event in events if event.part is part]
        assert isinstance(own[0], PartBegan) and isinstance(own[-1], PartEnded)
        assert "".join(event.text for event in own[1:-1] if isinstance(event, PartGrew)) == part.text
    assert [index for index, _ in groupby(event.part.index for event in events)] == list(range(len(parts)))
    for kind, delta_type in (("text", ContentDelta), ("reasoning", ReasoningDelta)):
        told = "".join(delta.text for delta in deltas if isinstance(delta, delta_type))
        assert "".join(part.text for part in parts if part.kind == kind) == told
    arguments = "".join(delta.arguments for delta in deltas if isinstance(delta, ToolCallDelta))
    assert "".join(part.text for part in parts if part.kind == "call") == arguments
