"""From what was asked to the message of a delegate's queue: the request as it is, if the engine can honour all of it."""

from __future__ import annotations

import msgspec

from tripower.actors.delegate_queue import GenerateText
from tripower.actors.dialogue import GenerationRequest
from tripower.runtime.engine import ChatMessage, DelegateRequest, LoadedDelegate
from tripower.runtime.kernel import InvalidRequest

PLAIN_PROMPT_TOKENS = 16
"""What OpenAI's completions generate when nothing is said."""


def delegate_question(loaded: LoadedDelegate, request: GenerationRequest) -> GenerateText:
    """The request for a delegate, if it can honour all of it."""
    info = loaded.engine.info
    if not request.messages and not request.prompt:
        raise InvalidRequest("the prompt is empty", param="prompt" if request.messages is None else "messages")
    refuse_rows_only(request, info.backend)
    max_tokens = request.max_tokens
    if max_tokens is None and request.messages is None:
        max_tokens = PLAIN_PROMPT_TOKENS
    asking = DelegateRequest(
        messages=_without_developers(request.messages),
        prompt=request.prompt,
        max_tokens=max_tokens,
        stop=request.stop,
        ignore_eos=request.ignore_eos,
        sampling=request.sampling,
        traceparent=request.traceparent,
    )
    loaded.engine.abilities.check(asking, info.backend)
    return GenerateText(asking, request.caller, request.priority, request.request_id)


def refuse_rows_only(request: GenerationRequest, backend: str) -> None:
    """Raise `InvalidRequest` (`unsupported_by_engine`) for the first thing that only an engine of rows gives."""
    chat, choice = request.chat, request.tool_choice
    asked = {
        "n": request.choice > 0,
        "logprobs": request.logprobs is not None,
        "prompt_logprobs": request.prompt_logprobs is not None,
        "response_format": request.format is not None,
        "tools": bool(chat.tools) or choice.mode == "required",
        "chat_template_kwargs": bool(chat.arguments),
        "continue_final_message": chat.continue_final_message,
        "add_generation_prompt": not chat.add_generation_prompt,
        "stop_token_ids": bool(request.stop_token_ids),
        "min_tokens": request.min_tokens > 0,
        "return_progress": request.progress,
        "messages": any(message.tool_calls or message.reasoning for message in request.messages or ()),
    }
    if request.prompt_cache_key is not None:
        raise unsupported_key(backend)
    for param, wanted in asked.items():
        if wanted:
            what = "tool calls and reasoning in messages" if param == "messages" else param
            raise InvalidRequest(
                f"the engine {backend} does not honour {what}: leave it out, or ask a model on picolm or llamacpp",
                code="unsupported_by_engine",
                param=param,
            )


def unsupported_key(backend: str) -> InvalidRequest:
    """The refusal of a key where prompts are not kept apart by keys."""
    return InvalidRequest(
        f"the engine {backend} keeps no prompts by prompt_cache_key: leave it out, or ask a model on picolm",
        code="prompt_cache_unsupported",
        param="prompt_cache_key",
    )


def _without_developers(messages: tuple[ChatMessage, ...] | None) -> tuple[ChatMessage, ...] | None:
    """What a developer says is said by the system: nobody knows what another engine's template makes of the newer word."""
    if messages is None:
        return None
    return tuple(
        msgspec.structs.replace(message, role="system") if message.role == "developer" else message for message in messages
    )
