"""Anthropic's client: messages, streams, tools, counts, failures. The second server has one seat and no waiting room."""

from __future__ import annotations

from typing import Any

import anthropic

from tests.clients.scripts.report import CITY, MESSAGES, report, servers

SERVER, CROWDED = servers()
client: Any = anthropic.Anthropic(base_url=SERVER.url, api_key=SERVER.key, max_retries=0)
GREEDY: Any = {"model": "smollm2", "extra_body": {"temperature": 0}}
"""The client's methods have lost the parameter; the service takes it all the same."""
WEATHER: Any = {"name": "weather", "description": "The weather in a city", "input_schema": CITY}
SLOW: Any = {"model": "slow", "messages": MESSAGES}


def answered() -> Any:
    whole = client.messages.create(messages=MESSAGES, max_tokens=12, system="Be brief.", **GREEDY)
    with client.messages.stream(messages=MESSAGES, max_tokens=12, system="Be brief.", **GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    counted = client.messages.count_tokens(model="smollm2", messages=MESSAGES, system="Be brief.")
    return {
        "text": whole.content[0].text,
        "streamed": text,
        "final": final.content[0].text,
        "reasons": [whole.stop_reason, final.stop_reason],
        "usage": [whole.usage.model_dump(), final.usage.model_dump()],
        "counted": counted.input_tokens,
    }


def called() -> Any:
    """A call that is asked for, streamed and whole, and its result sent back."""
    asked: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]
    forced: Any = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    options: Any = {"tools": [WEATHER], "max_tokens": 60, **GREEDY}
    first = client.messages.create(messages=asked, tool_choice=forced, **options)
    with client.messages.stream(messages=asked, tool_choice=forced, **options) as stream:
        streamed = stream.get_final_message()
    call = first.content[-1]
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "clear"}
    history: Any = [*asked, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = client.messages.create(messages=history, tool_choice={"type": "none"}, **options)
    return {
        "reason": first.stop_reason,
        "call": [call.type, call.name, call.input],
        "streamed": streamed.content[-1].input,
        "answer": [block.type for block in second.content],
    }


def failure(crowded: Any, **options: Any) -> Any:
    try:
        crowded.messages.create(**options)
    except anthropic.APIStatusError as error:
        body: Any = error.body
        same = error.request_id == body["request_id"]
        return {"class": type(error).__name__, "status": error.status_code, "type": body["error"]["type"], "same_id": same}
    return None


def failures() -> Any:
    crowded: Any = anthropic.Anthropic(base_url=CROWDED.url, api_key=CROWDED.key, max_retries=0)
    stranger: Any = anthropic.Anthropic(base_url=CROWDED.url, api_key="tp-nobody-has-this", max_retries=0)
    ignoring: Any = {"extra_body": {"ignore_eos": True}}
    late = failure(crowded, **SLOW, max_tokens=4000, extra_headers={"x-tripower-deadline-ms": "60"}, **ignoring)
    seen = {
        "key": failure(stranger, **SLOW, max_tokens=1),
        "model": failure(crowded, model="nonsense", messages=MESSAGES, max_tokens=1),
        "field": failure(crowded, **SLOW, max_tokens=1, extra_body={"temperature": 9}),
        "late": late,
    }
    with crowded.messages.create(**SLOW, max_tokens=4000, stream=True, **ignoring) as stream:
        next(iter(stream))
        seen["full"] = failure(crowded, **SLOW, max_tokens=1)
    return seen


report([answered, called, failures])
