"""The official clients of both dialects on Trio: against scripts whose answers have parts, and against the toy."""

from __future__ import annotations

import math
from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel

from tests.api.dialects.marked import MarkedReader
from tests.api.fake_runtime import HELLO, Script, failed, finished, tokens
from tests.api.serving import Server, serving, serving_toy
from tripower.runtime.kernel import Overloaded

# The clients stop reading at the last event and leave their own generators to the collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Async generator:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
AGENT = Script([tokens("?hm", "It ", "is", "!look", '={"city"', '=:"Oslo"}') + finished(generated=6)], reader=MarkedReader)
LOOK: Any = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": True}


class City(BaseModel):
    """What an answer is parsed into."""

    name: str


def openai_client(server: Server) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def anthropic_client(server: Server) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0)


def told(error: anthropic.APIStatusError) -> Any:
    return error.body


async def test_the_openai_client_reads_a_response_and_its_stream_alike() -> None:
    async with serving(AGENT) as server, openai_client(server) as client:
        whole = await client.responses.create(model="fake", input="Hi", tools=[LOOK])
        async with client.responses.stream(model="fake", input="Hi", tools=[LOOK]) as stream:
            deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            final = await stream.get_final_response()
    assert whole.output_text == "".join(deltas) == final.output_text == "It is"
    assert (
        [item.type for item in final.output]
        == [item.type for item in whole.output]
        == ["reasoning", "message", "function_call"]
    )
    call = whole.output[2]
    assert call.type == "function_call" and (call.name, call.arguments) == ("look", '{"city":"Oslo"}')
    assert whole.usage is not None and whole.usage.output_tokens == 6


async def test_the_openai_client_sends_a_response_back_as_input() -> None:
    async with serving(AGENT) as server, openai_client(server) as client:
        first = await client.responses.create(model="fake", input="Hi", tools=[LOOK])
        result: Any = {"type": "function_call_output", "call_id": "call_0", "output": "sun"}
        history: Any = [{"role": "user", "content": "Hi"}, *first.output, result]
        await client.responses.create(model="fake", input=history, tools=[LOOK])
    messages = server.runtime.requests[1].messages
    assert messages is not None
    assert [message.role for message in messages] == ["user", "assistant", "tool"]
    assert (messages[1].content, messages[1].reasoning, messages[1].tool_calls[0].name) == ("It is", "hm", "look")


async def test_the_openai_client_parses_a_structured_response() -> None:
    async with (
        serving(Script([tokens('{"name":', '"Oslo"}') + finished(generated=2)])) as server,
        openai_client(server) as client,
    ):
        parsed = await client.responses.parse(model="fake", input="Hi", text_format=City)
    assert parsed.output_parsed == City(name="Oslo")


async def test_the_openai_client_hears_of_failures() -> None:
    scripts = (Script(refusal=Overloaded("full", retry_after=1.0)), Script([tokens("a"), failed()]))
    async with serving(*scripts) as server, openai_client(server) as client:
        with pytest.raises(openai.InternalServerError) as refused:
            await client.responses.create(model="fake", input="Hi")
        stream = await client.responses.create(model="fake", input="Hi", stream=True)
        events = [event async for event in stream]
    assert refused.value.code == "queue_full"
    assert events[-1].type == "response.failed"


async def test_the_openai_client_talks_to_the_actors() -> None:
    async with serving_toy() as server, openai_client(server) as client:
        options: Any = {"model": "toy", "input": "Hi", "max_output_tokens": 20, "extra_body": {"seed": 3, "ignore_eos": True}}
        whole = await client.responses.create(**options)
        stream = await client.responses.create(**options, stream=True)
        texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        counted = await client.responses.input_tokens.count(model="toy", input="Hi")
    assert whole.usage is not None and counted.input_tokens == whole.usage.input_tokens
    assert whole.status == "incomplete" and whole.incomplete_details is not None
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert "".join(texts) == whole.output_text
    assert len(whole.output_text) == 20


@pytest.mark.long
async def test_the_anthropic_client_reads_a_message_and_its_stream_alike() -> None:
    turn: Any = [{"role": "user", "content": "Hi"}]
    options: Any = {"model": "fake", "max_tokens": 100}
    tools: Any = [{"name": "look", "input_schema": {"type": "object"}}]
    async with serving(AGENT) as server, anthropic_client(server) as client:
        whole = await client.messages.create(messages=turn, tools=tools, **options)
        async with client.messages.stream(messages=turn, tools=tools, **options) as stream:
            texts = [text async for text in stream.text_stream]
            final = await stream.get_final_message()
        result: Any = {"type": "tool_result", "tool_use_id": whole.content[2].id, "content": "sun"}
        await client.messages.create(
            messages=[*turn, {"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}], **options
        )
    assert "".join(texts) == whole.content[1].text == "It is"
    assert [block.model_dump(exclude_none=True) for block in final.content] == [
        block.model_dump(exclude_none=True) for block in whole.content
    ]
    assert whole.content[2].input == {"city": "Oslo"}
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, 6) == ("tool_use", 6)
    messages = server.runtime.requests[2].messages
    assert messages is not None
    assert [message.role for message in messages] == ["user", "assistant", "tool"]


@pytest.mark.long
async def test_the_anthropic_client_counts_and_hears_of_failures() -> None:
    turn: Any = {"messages": [{"role": "user", "content": "Hi"}], "model": "fake"}
    broken, slow = Script([tokens("a"), failed()]), Script([math.inf])
    full = Script(refusal=Overloaded("full", retry_after=1.0))
    async with serving(full, broken, slow, HELLO) as server, anthropic_client(server) as client:
        with pytest.raises(anthropic.APIStatusError) as refused:
            await client.messages.create(max_tokens=5, **turn)
        with pytest.raises(anthropic.APIStatusError) as cut:
            async with client.messages.stream(max_tokens=5, **turn) as stream:
                await stream.get_final_message()
        with pytest.raises(anthropic.APIStatusError) as late:
            headers = {"x-tripower-deadline-ms": "60"}
            await client.messages.create(max_tokens=5, extra_headers=headers, **turn)
        counted = await client.messages.count_tokens(**turn)
    full_body, cut_body, late_body = (told(error.value) for error in (refused, cut, late))
    assert (refused.value.status_code, full_body["error"]["type"]) == (503, "overloaded_error")
    assert refused.value.request_id == full_body["request_id"]
    assert cut_body["error"]["message"] == "the device failed"
    assert late_body["error"]["type"] == "timeout_error"
    assert counted.input_tokens > 0
