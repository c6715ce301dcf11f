"""What is refused of a request before a seat is asked for, whichever way it came in, and what is made of the rest."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from trio.testing import MockClock

from tests.actors.delegates import ScriptedDelegate
from tests.actors.rigs import open_toy
from tripower.actors.dialogue import GenerationRequest, SamplingChoices
from tripower.actors.preparation import prepare_delegate, prepare_rows
from tripower.actors.queueing import Generate
from tripower.actors.request_checks import check_request
from tripower.actors.template_variables import known_variables
from tripower.backends.toy import ToyEngine, ToyText
from tripower.runtime.engine import (
    ChatMessage,
    ChatOptions,
    LoadedDelegate,
    LoadedModel,
    OutputFormat,
    ToolCall,
    ToolChoice,
    ToolDefinition,
)
from tripower.runtime.engine.constraint import JsonObjectFormat, JsonSchemaFormat, RegexFormat
from tripower.runtime.engine.logprobs import NO_LOGPROBS
from tripower.runtime.kernel import InvalidRequest

USER = (ChatMessage("user", "Hi"),)
FORMAT: OutputFormat = JsonObjectFormat()


def prompted(**fields: Any) -> GenerationRequest:
    return GenerationRequest(model="m", prompt="p", **fields)


def asked(**fields: Any) -> GenerationRequest:
    return GenerationRequest(model="m", **({"messages": USER} | fields))


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (prompted(sampling=SamplingChoices(temperature=-0.1)), "temperature"),
        (prompted(sampling=SamplingChoices(top_p=-0.1)), "top_p"),
        (prompted(sampling=SamplingChoices(top_p=1.1)), "top_p"),
        (prompted(sampling=SamplingChoices(min_p=float("nan"))), "min_p"),
        (prompted(sampling=SamplingChoices(top_k=-1)), "top_k"),
        (prompted(sampling=SamplingChoices(repeat_last_n=-2)), "repeat_last_n"),
        (prompted(priority=101), "priority"),
        (prompted(logprobs=21), "logprobs"),
        (prompted(prompt_logprobs=-1), "prompt_logprobs"),
        (prompted(min_tokens=-1), "min_tokens"),
        (prompted(min_tokens=5, max_tokens=4), "min_tokens"),
        (prompted(stop_token_ids=(1,) * 257), "stop_token_ids"),
        (prompted(chat=ChatOptions(tools=(ToolDefinition("f"),))), "prompt"),
        (prompted(format=RegexFormat("\ud800")), "format"),
        (prompted(format=JsonSchemaFormat({"a": object()})), "format"),
        (asked(chat=ChatOptions(tools=(ToolDefinition("f\ud800"),))), "tools"),
        (asked(chat=ChatOptions(tools=(ToolDefinition("f"), ToolDefinition("f")))), "tools"),
        (asked(tool_choice=ToolChoice(mode="required")), "tool_choice"),
        (asked(tool_choice=ToolChoice(name="g"), chat=ChatOptions(tools=(ToolDefinition("f"),))), "tool_choice"),
        (asked(chat=ChatOptions(continue_final_message=True, add_generation_prompt=False)), "continue_final_message"),
        (asked(messages=(ChatMessage("assistant", tool_calls=(ToolCall("c", "f", "\ud800"),)),)), "messages"),
        (asked(messages=(ChatMessage("assistant", reasoning="\ud800"),)), "messages"),
    ],
)
def test_a_request_that_no_model_could_answer_is_refused_by_its_field(
    request_: GenerationRequest, param: str
) -> None:  # BB-010
    with pytest.raises(InvalidRequest) as caught:
        check_request(request_)
    assert caught.value.param == param


def loaded(**info: Any) -> LoadedModel:
    engine = ToyEngine()
    engine.info = msgspec.structs.replace(engine.info, **info)
    return LoadedModel(engine, ToyText())


async def prepared(request: GenerationRequest, **info: Any) -> Generate:
    message = (await prepare_rows(loaded(**info), request)).message
    assert isinstance(message, Generate)
    return message


async def test_a_plain_request_asks_for_nothing_more() -> None:
    message = await prepared(prompted())
    assert (message.logprobs, message.prompt_logprobs, message.stop_token_ids) == (NO_LOGPROBS, NO_LOGPROBS, ())
    assert (message.sampling.choice, message.sampling.banned, message.sampling.banned_until) == (0, (), 0)


@pytest.mark.parametrize(
    ("fields", "banned", "until"),
    [
        ({"min_tokens": 3}, (256,), 3),
        ({"min_tokens": 3, "stop_token_ids": (7, 5)}, (5, 7, 256), 3),
        ({"min_tokens": 3, "stop_token_ids": (7,), "ignore_eos": True}, (7,), 3),
        ({"min_tokens": 3, "ignore_eos": True}, (), 0),
        ({"stop_token_ids": (7,)}, (), 0),
    ],
)
async def test_a_shortest_answer_bans_what_would_end_it(fields: Any, banned: Any, until: int) -> None:
    sampling = (await prepared(prompted(**fields))).sampling
    assert (sampling.banned, sampling.banned_until) == (banned, until)


async def test_a_shortest_answer_and_a_format_cannot_both_be_kept() -> None:
    with pytest.raises(InvalidRequest) as caught:
        await prepared(prompted(format=FORMAT, min_tokens=1))
    assert caught.value.param == "min_tokens"


@pytest.mark.parametrize(
    ("ability", "request_", "param"),
    [
        ("format", prompted(format=FORMAT), "response_format"),
        ("logprobs", prompted(logprobs=0), "logprobs"),
        ("prompt_logprobs", prompted(prompt_logprobs=0), "prompt_logprobs"),
        ("min_tokens", prompted(min_tokens=1), "min_tokens"),
    ],
)
async def test_what_an_engine_of_rows_cannot_do_is_refused_by_name(ability: str, request_: Any, param: str) -> None:
    await prepared(request_)
    with pytest.raises(InvalidRequest) as caught:
        await prepared(request_, unsupported=frozenset({ability}))
    assert (caught.value.code, caught.value.param) == ("unsupported_by_engine", param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"choice": 1}, "n"),
        ({"logprobs": 0}, "logprobs"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"format": FORMAT}, "response_format"),
        ({"chat": ChatOptions(tools=(ToolDefinition("f"),))}, "tools"),
        ({"chat": ChatOptions(arguments={"a": 1})}, "chat_template_kwargs"),
        ({"stop_token_ids": (1,)}, "stop_token_ids"),
        ({"min_tokens": 1}, "min_tokens"),
        ({"progress": True}, "return_progress"),
        ({"messages": (ChatMessage("assistant", tool_calls=(ToolCall("c", "f", "{}"),)),)}, "messages"),
    ],
)
def test_what_a_delegate_cannot_do_is_refused_by_name(fields: Any, param: str) -> None:
    delegate = LoadedDelegate(ScriptedDelegate([]))
    prepare_delegate(delegate, asked())
    with pytest.raises(InvalidRequest) as caught:
        prepare_delegate(delegate, asked(**fields))
    assert (caught.value.code, caught.value.param) == ("unsupported_by_engine", param)
    assert "scripted" in caught.value.message


@pytest.mark.parametrize(
    ("arguments", "template", "expected"),
    [
        ({"a": 1}, "", {"a": 1}),
        ({"reasoning_effort": "low"}, "{{ reasoning_effort }}", {"reasoning_effort": "low"}),
        ({"reasoning_effort": "low"}, "{% if enable_thinking %}", {"enable_thinking": True}),
        ({"reasoning_effort": "none"}, "{% if enable_thinking %}", {"enable_thinking": False}),
        ({"reasoning_effort": "high", "enable_thinking": False}, "{% if enable_thinking %}", {"enable_thinking": False}),
        ({"reasoning_effort": "none"}, "", {}),
    ],
)
def test_an_effort_is_told_in_the_words_that_the_template_knows(arguments: Any, template: str, expected: Any) -> None:
    assert known_variables(ChatOptions(arguments=arguments), template).arguments == expected


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"tools": []}, "chat_template_kwargs"),
        ({"bos_token": "x"}, "chat_template_kwargs"),
        ({str(name): 1 for name in range(65)}, "chat_template_kwargs"),
    ],
)
def test_a_variable_that_is_not_to_be_given_is_refused(arguments: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        known_variables(ChatOptions(arguments=arguments), "")
    assert caught.value.param == param


async def test_another_choice_shares_all_but_its_draws(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, _):
        request = GenerationRequest(model="toy", prompt="p", max_tokens=4, ignore_eos=True)
        async with runtime.generate(request) as first:
            other = GenerationRequest(model="toy", prompt="p", max_tokens=4, ignore_eos=True, choice=1)
            async with runtime.generate(other, like=first) as second:
                assert second.prompt is first.prompt and second.seed == first.seed
                texts = ["".join([event.text async for event in each]) for each in (first, second)]
    assert texts[0] != texts[1]


async def test_a_message_is_the_whole_answer(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, _):
        request = GenerationRequest(model="toy", messages=USER, max_tokens=4, ignore_eos=True, sampling=SamplingChoices(seed=1))
        text = "".join([event.text async for event in runtime.generate(request)])
        message = await runtime.generate(request).message()
        async with runtime.generate(request) as generation:
            assert (await generation.message()).content == text
    assert (message.content, message.finish_reason, message.tool_calls) == (text, "length", ())
    assert message.usage.completion_tokens == 4 and message.reasoning is None and message.logprobs == ()
