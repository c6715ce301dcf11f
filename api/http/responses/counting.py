"""How many tokens a Responses request would begin with, by the model's own template."""

from __future__ import annotations

from tripower.api.http.dialects.counting import counted
from tripower.api.http.responses.requests import ResponseIn
from tripower.api.http.tokens.answers import InputTokensOut
from tripower.api.http.tokens.endpoints import Question


def count_input_tokens(asked: ResponseIn) -> Question:
    """What to ask the text layer. Raises `InvalidRequest`."""
    request = asked.generation("")
    return counted(request.messages or (), request.chat, asked.thinking_wish(), InputTokensOut)
