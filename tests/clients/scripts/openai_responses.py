"""The official client: the Responses dialect."""

from __future__ import annotations

import json
from typing import Any

import openai
from pydantic import BaseModel

from tests.clients.scripts.report import CITY, QUESTION, report, servers

[SERVER] = servers()
client: Any = openai.OpenAI(base_url=SERVER.base_url, api_key=SERVER.key, max_retries=0)
GREEDY: Any = {"model": "smollm2", "temperature": 0}
WEATHER: Any = {"type": "function", "name": "weather", "parameters": CITY, "strict": True}


class City(BaseModel):
    """What an answer is parsed into."""

    city: str


def answered() -> Any:
    whole = client.responses.create(input=QUESTION, max_output_tokens=12, **GREEDY)
    with client.responses.stream(input=QUESTION, max_output_tokens=12, **GREEDY) as stream:
        events = list(stream)
        final = stream.get_final_response()
    counted = client.responses.input_tokens.count(model="smollm2", input=QUESTION)
    return {
        "text": whole.output_text,
        "deltas": "".join(event.delta for event in events if event.type == "response.output_text.delta"),
        "final": final.output_text,
        "kinds": [events[0].type, events[-1].type],
        "numbers": [event.sequence_number for event in events],
        "usage": whole.usage.model_dump(),
        "counted": counted.input_tokens,
    }


def called() -> Any:
    """A call that is asked for, and its result sent back."""
    options: Any = {"tools": [WEATHER], "parallel_tool_calls": False, "max_output_tokens": 60, **GREEDY}
    asked: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]
    first = client.responses.create(input=asked, tool_choice="required", **options)
    [call] = [item for item in first.output if item.type == "function_call"]
    history = [*asked, *first.output, {"type": "function_call_output", "call_id": call.call_id, "output": "clear"}]
    second = client.responses.create(input=history, tool_choice="none", **options)
    return {"name": call.name, "arguments": json.loads(call.arguments), "text": second.output_text}


def parsed() -> Any:
    answer = client.responses.parse(input=QUESTION, text_format=City, max_output_tokens=60, **GREEDY)
    return {"type": type(answer.output_parsed).__name__, "text": json.loads(answer.output_text)}


def refused() -> Any:
    try:
        client.responses.create(input=QUESTION, previous_response_id="resp_1", **GREEDY)
    except openai.APIStatusError as error:
        return {"class": type(error).__name__, "param": error.param}
    return None


report([answered, called, parsed, refused])
