"""Half characters and deep nesting, wherever they can stand in the dialects."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.fake_runtime import HELLO
from tests.api.serving import serving

HALF = "\ud83d"
CALL = {"type": "function_call", "call_id": "c", "name": "f"}
BODIES: list[tuple[str, Any]] = [
    ("/v1/responses", {"input": HALF}),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": HALF}]}]}),
    ("/v1/responses", {"input": [CALL | {"arguments": HALF}]}),
    ("/v1/responses", {"input": [CALL | {"arguments": json.dumps({"a": HALF})}]}),
    ("/v1/messages", {"max_tokens": 1, "system": HALF, "messages": [{"role": "user", "content": "x"}]}),
    ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "text", "text": HALF}]}]}),
    (
        "/v1/messages",
        {
            "max_tokens": 1,
            "messages": [
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": HALF}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]},
            ],
        },
    ),
]


@pytest.mark.parametrize(("path", "body"), BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_half_a_character_is_refused_by_its_place(path: str, body: Any, stream: bool) -> None:  # BB-010
    async with serving(HELLO) as server:
        answer = await server.ask(path, {"model": "fake", "stream": stream} | body)
    assert answer.status == 400
    assert answer.error["param"]
    assert server.runtime.requests == []


def nested(depth: int, around: str, core: str) -> str:
    before, after = around.split("|")
    return before * depth + core + after * depth


def deep_bodies(depth: int) -> list[tuple[str, str]]:
    """Everything of the client's own that can hold itself."""
    plain = nested(depth, '{"a":|}', "1")
    tool = f'"tools":[{{"type":"function","name":"f","parameters":{plain}}}]'
    schema = f'"text":{{"format":{{"type":"json_schema","schema":{plain}}}}}'
    result = nested(depth, '[{"type":"tool_result","tool_use_id":"t","content":|}]', '"x"')
    turn = '"max_tokens":1,"messages":[{"role":"user","content":"x"}]'
    return [
        ("/v1/responses", f'{{"input":"x",{tool}}}'),
        ("/v1/responses", f'{{"input":"x",{schema}}}'),
        ("/v1/responses", f'{{"input":"x","metadata":{plain}}}'),
        ("/v1/responses", f'{{"input":"x","client_metadata":{plain},"tool_choice":{plain}}}'),
        ("/v1/messages", f'{{"max_tokens":1,"messages":[{{"role":"user","content":{result}}}]}}'),
        ("/v1/messages", f'{{{turn},"tools":[{{"name":"f","input_schema":{plain}}}]}}'),
        ("/v1/messages", f'{{{turn},"output_format":{{"type":"json_schema","schema":{plain}}}}}'),
    ]


@pytest.mark.parametrize("depth", [100, 450, 100_000])
async def test_deep_nesting_is_refused(depth: int) -> None:
    async with serving(HELLO) as server, server.client() as client:
        for path, body in deep_bodies(depth):
            answer = await client.ask(path, body.encode(), headers={"x-tripower-strict": "1"})
            assert answer.status == 400, (path, body[:80], answer.body)
    assert server.runtime.requests == []


@pytest.mark.parametrize("field", ["unknown", "audio"])
@pytest.mark.parametrize("number", ["1e999", "-1e999"])
async def test_a_number_out_of_range_is_refused_by_its_place_in_a_field_that_nobody_reads_too(field: str, number: str) -> None:
    bodies = {
        "/v1/responses": f'{{"input":"x","{field}":{{"deep":[1,{number}]}}}}',
        "/v1/messages": f'{{"max_tokens":1,"messages":[{{"role":"user","content":"x"}}],"{field}":{{"deep":[1,{number}]}}}}',
        "/v1/chat/completions": f'{{"messages":[{{"role":"user","content":"x"}}],"{field}":{{"deep":[1,{number}]}}}}',
    }
    async with serving(HELLO) as server, server.client() as client:
        for path, body in bodies.items():
            answer = await client.ask(path, body.encode())
            assert answer.status == 400, (path, answer.body)
            assert answer.error["param"] == f"{field}.deep[1]"
    assert server.runtime.requests == []
