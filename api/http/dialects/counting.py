"""Tokens of a conversation, counted as the answer to it would begin."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tripower.api.http.dialects.thinking import ThinkingWish, template_arguments
from tripower.api.http.tokens.endpoints import Question
from tripower.runtime.engine import ChatMessage, ChatOptions, EngineInfo, TextLayer


def counted(
    messages: tuple[ChatMessage, ...],
    options: ChatOptions,
    wish: ThinkingWish | None,
    answer: Callable[[int], object],
) -> Question:
    """What to ask the text layer; `answer` makes the answer of a number of tokens."""

    def count(info: EngineInfo, text: TextLayer) -> object:
        arguments = template_arguments(text.chat_template, wish) if wish is not None else None
        chosen = msgspec.structs.replace(options, arguments=arguments or {})
        return answer(len(text.render_chat(messages, chosen)))

    return Question(sum(len(message.content) for message in messages), "messages", count)
