"""An answer that is not streamed: its choices, put together from what each of them said."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from tripower.actors.assistant_message import AssistantMessage, MessageBuilder
from tripower.actors.dialogue import Failed, GenerationFinished, GenerationRequest
from tripower.actors.generation import Generation
from tripower.api.http.answers import (
    CHAT,
    Answer,
    CalledOut,
    ChatChoice,
    CompletionChoice,
    Dialect,
    MessageOut,
    PromptLogprobs,
    ToolCallOut,
    encode,
    merged,
    new_id,
    timings_out,
    usage_out,
)
from tripower.api.http.exchange import Interruptible
from tripower.api.http.text.choices import Choices
from tripower.api.http.text.token_texts import (
    ChatLogprobsOut,
    CompletionLogprobs,
    CompletionLogprobsOut,
    chat_logprobs,
    prompt_logprobs,
    prompt_text,
)
from tripower.api.http.wire import Asked


async def collect(choices: Choices, asked: Asked, running: Interruptible) -> list[AssistantMessage]:
    """Every choice to its end. Blocks; raises the error of the first that fails."""
    builders = [MessageBuilder(generation.new_reader(), keep_stop=asked.keep_stop) for generation in choices.generations]
    left = len(builders)
    while left:
        for index, events in await choices.receive():
            take = builders[index].take
            for event in events:
                if type(event) is Failed:
                    raise event.error()
                take(event)  # type: ignore[arg-type]
            if type(events[-1]) is GenerationFinished:
                left -= 1
            if builders[index].tokens:
                running.first_token_came()
    return [builder.message() for builder in builders]


def whole_answer(
    dialect: Dialect, asked: Asked, generations: Sequence[Generation], messages: Sequence[AssistantMessage]
) -> tuple[bytes, GenerationFinished]:
    """The JSON, and the end of all choices taken together."""
    ends = [GenerationFinished(message.finish_reason, "", message.usage, message.timings) for message in messages]
    finished = merged(ends, asked.n)
    make = _chat_choice if dialect is CHAT else _completion_choice
    parts = zip(asked.requests, generations, messages, strict=True)
    answer = Answer(
        id=new_id(dialect),
        object=dialect.whole,
        created=int(time.time()),
        model=asked.requests[0].model,
        choices=tuple(make(index, asked, *each) for index, each in enumerate(parts)),
        usage=usage_out(finished.usage, sum(message.reasoning_tokens for message in messages)),
        timings=timings_out(finished),
        prompt_logprobs=_prompt_logprobs(asked.requests[0], generations[0], messages[0]) if dialect is CHAT else UNSET,
    )
    return encode(answer), finished


def _chat_choice(
    index: int, asked: Asked, request: GenerationRequest, generation: Generation, message: AssistantMessage
) -> ChatChoice:
    return ChatChoice(
        index=index,
        message=message_out(message),
        logprobs=_chat_logprobs(request, generation, message),
        finish_reason=message.finish_reason,
        stop_reason=UNSET if message.stopped_by is None else message.stopped_by,
    )


def message_out(message: AssistantMessage) -> MessageOut:
    """What is said, thought and called. Nothing is there that was not."""
    if message.reasoning is None and not message.tool_calls:
        return MessageOut(content=message.content)
    calls = tuple(ToolCallOut(id=call.id, function=CalledOut(call.name, call.arguments)) for call in message.tool_calls)
    reasoning = message.reasoning if message.reasoning is not None else UNSET
    return MessageOut(
        content=message.content, reasoning_content=reasoning, reasoning=reasoning, tool_calls=calls if calls else UNSET
    )


def _chat_logprobs(request: GenerationRequest, generation: Generation, message: AssistantMessage) -> ChatLogprobsOut | None:
    if request.logprobs is None or generation.text is None:
        return None
    return chat_logprobs(message.logprobs, generation.text, request.logprobs)


def _completion_choice(
    index: int, asked: Asked, request: GenerationRequest, generation: Generation, message: AssistantMessage
) -> CompletionChoice:
    echoed = echo_of(asked, request, generation)
    return CompletionChoice(
        index=index,
        text=echoed + (message.content or ""),
        logprobs=_completion_logprobs(asked, request, generation, message),
        finish_reason=message.finish_reason,
        stop_reason=UNSET if message.stopped_by is None else message.stopped_by,
        prompt_logprobs=_prompt_logprobs(request, generation, message) if asked.tells_prompt else UNSET,
    )


def echo_of(asked: Asked, request: GenerationRequest, generation: Generation) -> str:
    """The prompt as it is repeated; empty where it is not."""
    return prompt_text(request.prompt or "", generation.text) if asked.echo else ""


def _completion_logprobs(
    asked: Asked, request: GenerationRequest, generation: Generation, message: AssistantMessage
) -> CompletionLogprobsOut | None:
    if request.logprobs is None or generation.text is None:
        return None
    lists = CompletionLogprobs(generation.text, request.logprobs)
    tokens = lists.tokens
    if not asked.echo:
        return tokens(message.logprobs)
    first, then = lists.prompt(generation.prompt, message.prompt_logprobs), tokens(message.logprobs)
    joined: dict[str, Any] = {name: getattr(first, name) + getattr(then, name) for name in first.__struct_fields__}
    return CompletionLogprobsOut(**joined)


def _prompt_logprobs(
    request: GenerationRequest, generation: Generation, message: AssistantMessage
) -> PromptLogprobs | UnsetType:
    if request.prompt_logprobs is None or generation.text is None:
        return UNSET
    return prompt_logprobs(generation.prompt, message.prompt_logprobs, generation.text, request.prompt_logprobs)
