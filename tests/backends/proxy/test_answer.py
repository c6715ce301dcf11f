"""What the chunks of a stream mean, and which of them mean nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.backends.proxy.upstream import delta
from tripower.backends.proxy.answer import AnswerReader
from tripower.backends.proxy.errors import UpstreamFailed, UpstreamProtocol, UpstreamTruncated
from tripower.runtime.engine import DelegateEnd, DelegateEvent, DelegatePiece


def read(*chunks: Any) -> list[DelegateEvent]:
    reader = AnswerReader("the upstream host")
    events = [event for chunk in chunks for event in reader.take(chunk if isinstance(chunk, str) else json.dumps(chunk))]
    return [*events, reader.end()]


def usage(prompt: Any, completion: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}


@pytest.mark.parametrize(
    ("chunks", "texts", "end"),
    [
        ((delta("a"), delta("b"), delta(reason="stop"), "[DONE]"), ["a", "b"], DelegateEnd("stop")),
        ((delta("a", reason="length"), usage(3, 1), "[DONE]"), ["a"], DelegateEnd("length", 3, 1)),
        ((usage(3, 0), delta("a"), usage(3, 1), delta(reason="stop")), ["a"], DelegateEnd("stop", 3, 1)),
        ((delta(role="assistant"), delta(""), delta(reason="stop")), [], DelegateEnd("stop")),
        ((delta(refusal="I won't"), delta(reason="stop")), ["I won't"], DelegateEnd("stop")),
        ((delta(reasoning_content="hm"), delta("a"), delta(reason="stop")), ["", "a"], DelegateEnd("stop")),
        ((delta(reasoning="hm"), delta(reason="stop")), [""], DelegateEnd("stop")),
        ((delta("a", reason="stop"), delta(reason="stop")), ["a"], DelegateEnd("stop")),
        ((delta(reason="content_filter"),), [], DelegateEnd("content_filter")),
        ((delta("a", tool_calls=[]), delta(reason="stop"), usage(None, None)), ["a"], DelegateEnd("stop")),
        (
            ({"choices": [{"text": "a", "index": 0}]}, {"choices": [{"text": "", "finish_reason": "stop"}], "id": 7}),
            ["a"],
            DelegateEnd("stop"),
        ),
    ],
)
def test_an_answer_is_its_pieces_and_one_end(chunks: tuple[Any, ...], texts: list[str], end: DelegateEnd) -> None:
    assert read(*chunks) == [*(DelegatePiece(text) for text in texts), end]


@pytest.mark.parametrize("chunks", [(), (delta("a"),), (delta("a"), "[DONE]"), (usage(1, 1), "[DONE]")])
def test_an_end_without_a_reason_is_never_a_stop(chunks: tuple[Any, ...]) -> None:
    with pytest.raises(UpstreamTruncated, match="broke off"):
        read(*chunks)


@pytest.mark.parametrize(
    ("chunks", "says"),
    [
        (("{",), "no chunk"),
        (("[]",), "no chunk"),
        (("[" * 100_000,), "no chunk"),
        ((delta(7),), "no chunk"),  # type: ignore[arg-type]
        (({"choices": [{"delta": {"content": {}}}]},), "no chunk"),
        (({"choices": []},), "without an answer"),
        (({},), "without an answer"),
        (({"choices": [{"text": "a"}, {"text": "b", "index": 1}]},), "several answers"),
        (({"choices": [{"text": "a", "index": 1}]},), "several answers"),
        ((delta("a", reason=" "),), "without one reason"),
        ((delta(reason="stop"), delta(reason="length")), "without one reason"),
        ((delta(reason="stop"), delta("a")), "after the end"),
        ((delta(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f"}}]),), "tool call"),
        ((delta(function_call={"name": "f"}),), "tool call"),
        ((delta(reason="tool_calls"),), "tool call"),
    ],
)
def test_what_no_such_server_says_is_an_error(chunks: tuple[Any, ...], says: str) -> None:
    with pytest.raises(UpstreamProtocol, match=says) as caught:
        read(*chunks)
    assert caught.value.code == "upstream_protocol" and "the upstream host" in caught.value.message


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ({"message": "out of memory"}, "out of memory"),
        ("it broke", "it broke"),
        ({}, "does not say why"),
        (7, "does not say why"),
    ],
)
def test_an_error_in_the_stream_is_the_end(error: Any, says: str) -> None:
    with pytest.raises(UpstreamFailed, match=says):
        read(delta("a"), {"error": error})


def test_a_lone_half_of_a_character_is_no_text() -> None:
    with pytest.raises(UpstreamProtocol):
        read(r'{"choices":[{"delta":{"content":"\ud800"}}]}')
