"""How many tokens a Messages request would begin with, by the model's own template."""

from __future__ import annotations

from tripower.api.http.dialects.counting import counted
from tripower.api.http.messages.answer import TokenCountOut
from tripower.api.http.messages.requests import CountTokensIn
from tripower.api.http.tokens.endpoints import Question


def count_tokens(asked: CountTokensIn) -> Question:
    """What to ask the text layer. Raises `InvalidRequest`."""
    messages = asked.conversation()
    return counted(messages, asked.chat_options(messages), asked.thinking_wish(), TokenCountOut)
