"""What is wrong with a request whatever the model is: looked at before one is loaded, whichever way the request came in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tripower.actors.dialogue import GenerationRequest, SamplingChoices
from tripower.runtime.engine import ChatMessage, ChatOptions, ToolChoice
from tripower.runtime.engine.logprobs import TOP_LOGPROBS_MAX
from tripower.runtime.kernel import InvalidRequest
from tripower.runtime.prefix_cache import check_key

PRIORITY_MAX = 100
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
    _check_range("priority", request.priority, -PRIORITY_MAX, PRIORITY_MAX)
    if request.logprobs is not None:
        _check_range("logprobs", request.logprobs, 0, TOP_LOGPROBS_MAX)
    if request.prompt_logprobs is not None:
        _check_range("prompt_logprobs", request.prompt_logprobs, 0, TOP_LOGPROBS_MAX)
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
    if request.max_tokens is not None and request.max_tokens < 0:
        raise InvalidRequest("max_tokens must not be negative", param="max_tokens")
    if request.min_tokens < 0:
        raise InvalidRequest("min_tokens must not be negative", param="min_tokens")
    if request.max_tokens is not None and request.min_tokens > request.max_tokens:
        raise InvalidRequest(
            f"min_tokens {request.min_tokens} is above max_tokens {request.max_tokens}: lower it", param="min_tokens"
        )
    if "" in request.stop:
        raise InvalidRequest("a stop string is empty", param="stop")
    if len(request.stop_token_ids) > STOP_TOKENS_MAX:
        raise InvalidRequest(f"stop_token_ids has at most {STOP_TOKENS_MAX} entries", param="stop_token_ids")


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidRequest(f"{name} is from {least} to {most}, not {value}", param=name)


def _check_sampling(sampling: SamplingChoices) -> None:
    """Ranges outside of which a setting has no meaning. What is not finite, or too large to compute with, is found with the model."""
    for name in ("temperature", "top_k"):
        value = getattr(sampling, name)
        if value is not None and value < 0:
            raise InvalidRequest(f"{name} must not be negative", param=name)
    for name in ("top_p", "min_p"):
        value = getattr(sampling, name)
        if value is not None and not 0 <= value <= 1:
            raise InvalidRequest(f"{name} is from 0 to 1", param=name)
    if sampling.repeat_last_n is not None and sampling.repeat_last_n < -1:
        raise InvalidRequest("repeat_last_n is -1 for the whole context, or not negative", param="repeat_last_n")


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
