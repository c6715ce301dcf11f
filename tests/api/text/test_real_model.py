"""Formats, tools and log probabilities with a real model, over a real socket."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.api import serving
from tests.api.serving import CHAT, COMPLETIONS
from tests.api.test_plan import HOST
from tripower.actors.models import ModelSource
from tripower.api.plan import make_plan
from tripower.runtime.configuration import Configuration

SCHEMA: Any = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": SCHEMA}}]
MESSAGES = [{"role": "user", "content": "What is the weather in Paris?"}]
TALK = {"model": "toy", "messages": MESSAGES, "temperature": 0, "max_tokens": 60}
"""`toy` is the name that `serving_toy` loads."""
TEXT = "The capital of France is Paris, and 😀 is a smile."


@pytest.mark.long
async def test_a_real_model_keeps_to_formats_calls_tools_and_scores_text(
    smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "PATIENCE", 55.0)  # the weights are read and the kernels compiled within it
    plan = make_plan(Configuration(), [ModelSource(name="toy", source=str(smollm2_path), backend="picolm")], host=HOST)
    formatted = {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}
    tools = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    score = {"model": "toy", "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    async with serving.serving_toy(plan) as server:
        answers = (await server.ask(CHAT, TALK | formatted | {"n": 2, "temperature": 1, "seed": 1})).json["choices"]
        (called,) = (await server.ask(CHAT, TALK | tools)).json["choices"]
        events = (await server.ask(CHAT, TALK | tools | {"stream": True})).events
        ids = (await server.ask("/tokenize", {"prompt": TEXT, "add_special_tokens": False})).json["tokens"]
        scored = (await server.ask(COMPLETIONS, score | {"prompt": [ids]})).json["choices"][0]
        counted = (await server.ask("/v1/chat/completions/input_tokens", TALK | tools)).json["input_tokens"]
        usage = (await server.ask(CHAT, TALK | tools | {"max_tokens": 1})).json["usage"]
    assert all(set(json.loads(choice["message"]["content"])) == {"city"} for choice in answers)
    _check_call(called, events)
    _check_scores(scored, ids)
    assert counted == usage["prompt_tokens"]


def _check_call(called: Any, events: list[Any]) -> None:
    (call,) = called["message"]["tool_calls"]
    assert (called["finish_reason"], called["message"]["content"], call["function"]["name"]) == ("tool_calls", None, "weather")
    assert set(json.loads(call["function"]["arguments"])) == {"city"}
    choices = [choice for event in events[:-1] for choice in event["choices"]]
    pieces = [piece for choice in choices for piece in choice["delta"].get("tool_calls", [])]
    assert pieces[0]["function"] == {"name": "weather", "arguments": ""}
    assert "".join(piece["function"]["arguments"] for piece in pieces) == call["function"]["arguments"]
    assert choices[-1]["finish_reason"] == "tool_calls"


def _check_scores(scored: Any, ids: list[int]) -> None:
    """One entry for each token of the prompt and one for the answer, as lm-eval slices them."""
    lists = scored["logprobs"]
    assert {len(lists[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")} == {len(ids) + 1}
    assert scored["text"].startswith(TEXT)
    assert lists["token_logprobs"][0] is None and all(logprob <= 0 for logprob in lists["token_logprobs"][1:])
    assert all(token in table for token, table in zip(lists["tokens"][1:], lists["top_logprobs"][1:], strict=True))
    whole = [place for place, token in enumerate(lists["tokens"]) if not token.startswith("bytes:")]
    assert all(scored["text"].startswith(lists["tokens"][place], lists["text_offset"][place]) for place in whole)
