"""What is wrong with a request whatever the model is: looked at before one is loaded, whichever way the request came in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tripower.actors.dialogue import GenerationRequest, SamplingChoices
from tripower.runtime.engine import ChatMessage, ChatOptions, ToolChoice
from tripower.runtime.engine.logprobs import TOP_LOGPROBS_MAX
from tripower.runtime.kernel import InvalidRequest
from tripower.runtime.prefix_cache import check_key

INT_MAX = 2**31 - 1
RANGES: Mapping[str, tuple[float, float]] = {
    "max_tokens": (0, INT_MAX),
    "min_tokens": (0, INT_MAX),
    "temperature": (0, 2),
    "top_k": (0, INT_MAX),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "repeat_penalty": (0.01, 10),
    "repeat_last_n": (-1, INT_MAX),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "logit_bias": (-100, 100),
    "logprobs": (0, TOP_LOGPROBS_MAX),
    "prompt_logprobs": (0, TOP_LOGPROBS_MAX),
    "priority": (-100, 100),
}
"""Whichever way a request comes in: OpenAI's where OpenAI has the option, else what the sampler can compute with.

HTTP says the same in the types of its requests, which is where its errors and its OpenAPI document come from; a test compares them.
"""
SAMPLING = tuple(name for name in RANGES if name in SamplingChoices.__struct_fields__ and name != "logit_bias")
LOGIT_BIAS_ENTRIES_MAX = 1024
STOP_TOKENS_MAX = 256
_NO_SAMPLING = SamplingChoices()
_NO_OPTIONS = ChatOptions()
_ANY_TOOL = ToolChoice()


def check_request(request: GenerationRequest) -> None:
    """Raise `InvalidRequest`, naming the field. Synchronous; cheap for a plain request."""
    if (request.messages is None) == (request.prompt is None):
        raise InvalidRequest("give either messages or a prompt", param="messages")
    if request.prompt_cache_key is not None:
        check_key(request.prompt_cache_key)
    _check_lengths(request)
    _check_range("priority", request.priority)
    if request.logprobs is not None:
        _check_range("logprobs", request.logprobs)
    if request.prompt_logprobs is not None:
        _check_range("prompt_logprobs", request.prompt_logprobs)
    if request.sampling != _NO_SAMPLING:
        _check_sampling(request.sampling)
    for param, text in texts_of(request):
        _check_unicode(param, text)
    _check_conversation(request)


def texts_of(request: GenerationRequest) -> Iterator[tuple[str, str]]:
    """Every text of a request that a tokenizer sees, and the field that it came in."""
    for message in request.messages or ():
        yield "messages", message.content
        yield "messages", message.name or ""
        if message.tool_calls:
            for call in message.tool_calls:
                yield "messages", call.name
                yield "messages", call.arguments
        if message.reasoning:
            yield "messages", message.reasoning
    if isinstance(request.prompt, str):
        yield "prompt", request.prompt
    for stop in request.stop:
        yield "stop", stop


def _check_lengths(request: GenerationRequest) -> None:
    if request.max_tokens is not None:
        _check_range("max_tokens", request.max_tokens)
    _check_range("min_tokens", request.min_tokens)
    if request.max_tokens is not None and request.min_tokens > request.max_tokens:
        raise InvalidRequest(
            f"min_tokens {request.min_tokens} is above max_tokens {request.max_tokens}: lower it", param="min_tokens"
        )
    if "" in request.stop:
        raise InvalidRequest("a stop string is empty", param="stop")
    if len(request.stop_token_ids) > STOP_TOKENS_MAX:
        raise InvalidRequest(f"stop_token_ids has at most {STOP_TOKENS_MAX} entries", param="stop_token_ids")


def _check_range(name: str, value: float) -> None:
    least, most = RANGES[name]
    if not least <= value <= most:  # also what is no number
        raise InvalidRequest(f"{name} is from {least} to {most}, not {value}", param=name)


def _check_sampling(sampling: SamplingChoices) -> None:
    """What needs no model. Whether a token that `logit_bias` names exists is found with the model."""
    for name in SAMPLING:
        if (value := getattr(sampling, name)) is not None:
            _check_range(name, value)
    if len(sampling.logit_bias) > LOGIT_BIAS_ENTRIES_MAX:
        raise InvalidRequest(f"logit_bias has at most {LOGIT_BIAS_ENTRIES_MAX} entries", param="logit_bias")
    for _, bias in sampling.logit_bias:
        _check_range("logit_bias", bias)


def _check_unicode(param: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{param}: half a character is no text", code="invalid_unicode", param=param) from None


def _check_conversation(request: GenerationRequest) -> None:
    """Tools, the choice among them, what the template is told, and the format."""
    options, choice = request.chat, request.tool_choice
    if options is _NO_OPTIONS and choice is _ANY_TOOL and request.format is None:
        return
    _check_json("format", request.format)
    if request.messages is None:
        if options != _NO_OPTIONS or choice != _ANY_TOOL:
            raise InvalidRequest("tools and template variables belong to a conversation: give messages", param="prompt")
        return
    check_options(request.messages, options)
    _check_choice(options, choice)


def check_options(messages: Sequence[ChatMessage], options: ChatOptions) -> None:
    """Raise `InvalidRequest` for options that make no sense with these messages, whatever the template."""
    _check_json("tools", options)
    names = [tool.name for tool in options.tools]
    for name in set(names):
        if names.count(name) > 1:
            raise InvalidRequest(f"tools: {name[:64]} is there twice; name each tool once", param="tools")
    if options.continue_final_message:
        _check_continued(messages, options)


def _check_json(param: str, value: Any) -> None:
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        raise InvalidRequest(f"{param}: half a character is no text", code="invalid_unicode", param=param) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{param}: is no JSON", param=param) from error


def _check_choice(options: ChatOptions, choice: ToolChoice) -> None:
    if choice.mode == "required" and not options.tools:
        raise InvalidRequest("tool_choice asks for a call, but there are no tools: add tools", param="tool_choice")
    if choice.name is not None and choice.name not in {tool.name for tool in options.tools}:
        raise InvalidRequest(f"tool_choice names {choice.name[:64]}, which is not in tools", param="tool_choice")


def _check_continued(messages: Sequence[ChatMessage], options: ChatOptions) -> None:
    if options.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message goes without a new turn: set add_generation_prompt to false", param="continue_final_message"
        )
    if not messages or messages[-1].role != "assistant":
        raise InvalidRequest("continue_final_message needs a last message of the assistant", param="continue_final_message")
