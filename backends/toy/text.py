"""Text for the toy: a token is a byte."""

from __future__ import annotations

from collections.abc import Sequence

from tripower.backends.toy.engine import END
from tripower.runtime.engine import ChatMessage, SamplingParameters


class ToyText:
    """UTF-8 bytes as tokens, `role: content` lines as the chat template."""

    end_tokens = frozenset({END})
    recommended = SamplingParameters()
    has_chat_template = True
    piece_characters_max = 1

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        return list(text.encode())

    def render_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        lines = [f"{message.role}: {message.content}\n" for message in messages]
        return self.tokenize("".join(lines) + "assistant: ")

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""
