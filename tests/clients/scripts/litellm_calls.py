"""LiteLLM as a library: the way by which gateways and agents ask."""

from __future__ import annotations

import json
from typing import Any

import litellm

from tests.clients.scripts.report import MESSAGES, WEATHER, report, servers

SERVER, CROWDED = servers()
OPTIONS: Any = {"api_base": SERVER.base_url, "api_key": SERVER.key, "max_retries": 0}
GREEDY: Any = {"model": "openai/smollm2", "temperature": 0, **OPTIONS}


def completed() -> Any:
    whole = litellm.completion(messages=MESSAGES, max_tokens=12, **GREEDY)
    return {
        "text": whole.choices[0].message.content,
        "usage": whole.usage.total_tokens,
        "reason": whole.choices[0].finish_reason,
    }


def streamed() -> Any:
    usage: Any = {"stream_options": {"include_usage": True}}
    chunks = list(litellm.completion(messages=MESSAGES, max_tokens=12, stream=True, **usage, **GREEDY))
    rebuilt = litellm.stream_chunk_builder(chunks)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    return {"text": text, "rebuilt": rebuilt.choices[0].message.content, "usage": rebuilt.usage.total_tokens}


def called() -> Any:
    asked: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]
    options: Any = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 60}
    message = litellm.completion(messages=asked, **options, **GREEDY).choices[0].message
    [call] = message.tool_calls
    return {"name": call.function.name, "arguments": json.loads(call.function.arguments)}


def plain() -> Any:
    answer = litellm.text_completion(
        prompt="The capital of France is", max_tokens=6, **{**GREEDY, "model": "text-completion-openai/smollm2"}
    )
    return answer.choices[0].text


def embedded() -> Any:
    answer = litellm.embedding(model="openai/minilm", input=["A cat.", "A kitten."], encoding_format="float", **OPTIONS)
    return [len(row["embedding"]) for row in answer.data]


def refused() -> Any:
    """Names of LiteLLM's classes."""
    seen = {}
    crowded: Any = {"api_base": CROWDED.base_url, "messages": MESSAGES, "max_retries": 0, "num_retries": 0}
    cases: dict[str, Any] = {
        "key": {"model": "openai/slow", "api_key": "tp-nobody-has-this"},
        "model": {"model": "openai/nonsense", "api_key": CROWDED.key},
        "long": {"model": "openai/slow", "api_key": CROWDED.key, "max_tokens": 100_000},
    }
    for name, options in cases.items():
        try:
            litellm.completion(**crowded, **options)
        except Exception as error:  # noqa: BLE001 - which class it is, is the question
            seen[name] = type(error).__name__
    return seen


report([completed, streamed, called, plain, embedded, refused])
