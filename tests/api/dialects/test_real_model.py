"""Both dialects with a real model: its own template, its own format of calls, and the grammar that enforces them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.api import serving
from tests.api.dialects.marked import named_events
from tests.api.test_plan import HOST
from tripower.actors.models import ModelSource
from tripower.api.plan import make_plan
from tripower.runtime.configuration import Configuration

CITY: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
QUESTION = "What is the weather in Oslo?"
MODEL = "toy"
"""The name that `serving_toy` loads."""


@pytest.mark.long
async def test_a_real_model_calls_answers_and_counts_in_both_dialects(
    smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "PATIENCE", 55.0)  # the weights are read and the kernels compiled within it
    plan = make_plan(Configuration(), [ModelSource(name=MODEL, source=str(smollm2_path), backend="picolm")], host=HOST)
    response = {"model": MODEL, "input": QUESTION, "max_output_tokens": 40, "temperature": 0}
    message = {"model": MODEL, "max_tokens": 40, "temperature": 0, "messages": [{"role": "user", "content": QUESTION}]}
    function = {"tools": [{"type": "function", "name": "weather", "parameters": CITY}], "tool_choice": "required"}
    tool = {"tools": [{"name": "weather", "input_schema": CITY}], "tool_choice": {"type": "tool", "name": "weather"}}
    schema = {"text": {"format": {"type": "json_schema", "name": "city", "schema": CITY}}}
    async with serving.serving_toy(plan) as server:
        called = (await server.ask("/v1/responses", response | function)).json
        formatted = (await server.ask("/v1/responses", response | schema)).json
        used = (await server.ask("/v1/messages", message | tool)).json
        streamed = named_events((await server.ask("/v1/messages", message | tool | {"stream": True})).body)
        counted = (
            await server.ask("/v1/messages/count_tokens", {"messages": message["messages"], "tools": tool["tools"]})
        ).json
    (call,) = called["output"]
    assert (call["type"], call["name"], set(json.loads(call["arguments"]))) == ("function_call", "weather", {"city"})
    assert set(json.loads(formatted["output"][0]["content"][0]["text"])) == {"city"}
    assert (used["stop_reason"], used["content"][0]["name"], set(used["content"][0]["input"])) == (
        "tool_use",
        "weather",
        {"city"},
    )
    pieces = [event["delta"].get("partial_json", "") for event in streamed if event["type"] == "content_block_delta"]
    assert json.loads("".join(pieces)) == used["content"][0]["input"]
    usage = used["usage"]  # the forced call before had the same conversation, so most of it was there
    assert counted["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]
