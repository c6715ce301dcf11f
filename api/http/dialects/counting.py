"""How many tokens a request of a dialect would begin with, by the model's own template."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tripower.actors.preparation import size_of
from tripower.api.http.dialects.thinking import ThinkingWish, template_arguments
from tripower.api.http.messages.answer import TokenCountOut
from tripower.api.http.messages.requests import CountTokensIn
from tripower.api.http.responses.requests import ResponseIn
from tripower.api.http.tokens.answers import InputTokensOut
from tripower.api.http.tokens.endpoints import Question
from tripower.runtime.engine import ChatMessage, ChatOptions, EngineInfo, TextLayer


def counted(
    messages: tuple[ChatMessage, ...],
    options: ChatOptions,
    wish: ThinkingWish | None,
    answer: Callable[[int], object],
    *,
    param: str,
) -> Question:
    """What to ask the text layer; `answer` makes the answer of a number of tokens. `param` is the field that holds the conversation."""

    def count(info: EngineInfo, text: TextLayer) -> tuple[object, int]:
        arguments = template_arguments(text.chat_template, wish) if wish is not None else None
        chosen = msgspec.structs.replace(options, arguments=arguments or {})
        tokens = len(text.render_chat(messages, chosen))
        return answer(tokens), tokens

    return Question(size_of(messages), param, count)


def count_input_tokens(asked: ResponseIn) -> Question:
    """Of a Responses request. Raises `InvalidRequest`."""
    request = asked.generation("")
    return counted(request.messages or (), request.chat, asked.thinking_wish(), InputTokensOut, param="input")


def count_tokens(asked: CountTokensIn) -> Question:
    """Of a Messages request. Raises `InvalidRequest`."""
    messages = asked.conversation()
    return counted(messages, asked.chat_options(messages), asked.thinking_wish(), TokenCountOut, param="messages")
