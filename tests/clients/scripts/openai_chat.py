"""The official client: conversations."""

from __future__ import annotations

import json
from typing import Any

import openai
from pydantic import BaseModel

from tests.clients.scripts.report import MESSAGES, WEATHER, report, servers

[SERVER] = servers()
client: Any = openai.OpenAI(base_url=SERVER.base_url, api_key=SERVER.key, max_retries=0)
GREEDY: Any = {"model": "smollm2", "temperature": 0}


class City(BaseModel):
    """What an answer is parsed into."""

    city: str


def chat() -> Any:
    answer = client.chat.completions.create(messages=MESSAGES, max_tokens=12, **GREEDY)
    return answer.model_dump()


def stream() -> Any:
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(messages=MESSAGES, max_tokens=12, **GREEDY, **options))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    return {
        "text": "".join(delta.content or "" for delta in deltas),
        "roles": [delta.role for delta in deltas if delta.role],
        "reasons": [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason],
        "ids": len({chunk.id for chunk in chunks}),
        "usage": chunks[-1].usage.model_dump(),
        "choices_of_last": chunks[-1].choices,
    }


def accumulated() -> Any:
    """The client's own helper, which checks that chunks add up."""
    with client.chat.completions.stream(messages=MESSAGES, max_tokens=12, **GREEDY) as events:
        kinds = {event.type for event in events}
        return {"kinds": sorted(kinds), "text": events.get_final_completion().choices[0].message.content}


def parsed() -> Any:
    answer = client.chat.completions.parse(messages=MESSAGES, max_tokens=60, response_format=City, **GREEDY)
    found = answer.choices[0].message.parsed
    return {"type": type(found).__name__, "city": found.city if found else None, "text": answer.choices[0].message.content}


def forced_tool() -> Any:
    """A call that is asked for, its answer sent back, and what the model says to that."""
    options: Any = {"tools": [WEATHER], "parallel_tool_calls": False, **GREEDY}
    asked: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]
    first = client.chat.completions.create(messages=asked, max_tokens=60, tool_choice="required", **options)
    message = first.choices[0].message
    [call] = message.tool_calls
    history = [*asked, message, {"role": "tool", "tool_call_id": call.id, "content": '{"sky": "clear"}'}]
    second = client.chat.completions.create(messages=history, max_tokens=20, tool_choice="none", **options)
    named: Any = {"type": "function", "function": {"name": "weather"}}
    third = client.chat.completions.create(messages=asked, max_tokens=60, tool_choice=named, **options)
    return {
        "reason": first.choices[0].finish_reason,
        "content": message.content,
        "name": call.function.name,
        "arguments": json.loads(call.function.arguments),
        "answer": second.choices[0].message.model_dump(),
        "named": third.choices[0].message.tool_calls[0].function.name,
    }


def automatic_tool() -> Any:
    """Whether the model calls is its own matter; what it says must be one or the other, and go back as it came."""
    asked: Any = [{"role": "user", "content": "Use the function to get the weather in Oslo."}]
    options: Any = {"tools": [WEATHER], "tool_choice": "auto", **GREEDY}
    first = client.chat.completions.create(messages=asked, max_tokens=60, **options)
    message = first.choices[0].message
    calls = message.tool_calls or []
    results = [{"role": "tool", "tool_call_id": call.id, "content": "clear"} for call in calls]
    more: Any = results or [{"role": "user", "content": "Thank you."}]
    second = client.chat.completions.create(messages=[*asked, message, *more], max_tokens=10, **options)
    return {
        "calls": [json.loads(call.function.arguments) for call in calls],
        "content": message.content,
        "reason": first.choices[0].finish_reason,
        "answered": second.choices[0].finish_reason,
    }


def streamed_tool() -> Any:
    asked: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]
    options: Any = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 60, **GREEDY}
    with client.chat.completions.stream(messages=asked, **options) as events:
        kinds = sorted({event.type for event in events})
        [call] = events.get_final_completion().choices[0].message.tool_calls
    return {"kinds": kinds, "arguments": json.loads(call.function.arguments)}


def logprobs() -> Any:
    options: Any = {"logprobs": True, "top_logprobs": 3}
    answer = client.chat.completions.create(messages=MESSAGES, max_tokens=5, **GREEDY, **options)
    choice = answer.choices[0]
    return {"text": choice.message.content, "content": [entry.model_dump() for entry in choice.logprobs.content]}


def two_choices() -> Any:
    answer = client.chat.completions.create(messages=MESSAGES, max_tokens=8, n=2, temperature=1.2, seed=3, model="smollm2")
    return {"indices": [choice.index for choice in answer.choices], "usage": answer.usage.model_dump()}


report([chat, stream, accumulated, parsed, forced_tool, automatic_tool, streamed_tool, logprobs, two_choices])
