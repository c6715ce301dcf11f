"""Text for the toy: a token is a byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tripower.backends.toy.engine import END
from tripower.runtime.engine import (
    AnswerPlan,
    ChatMessage,
    ChatOptions,
    OutputFormat,
    PlainReader,
    SamplingParameters,
    ToolChoice,
)
from tripower.runtime.engine.contract import ANY_TOOL, PLAIN_CHAT
from tripower.runtime.kernel import InvalidRequest

END_TEXT = "<end>"


class ToyText:
    """UTF-8 bytes as tokens, `role: content` lines as the chat template."""

    end_tokens = frozenset({END})
    recommended = SamplingParameters()
    has_chat_template = True
    piece_characters_max = 1
    chat_template = ""  # a few lines of Python instead
    special_texts: Mapping[str, str] = MappingProxyType({"eos_token": END_TEXT})

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        return list(text.encode())

    def render_chat(self, messages: Sequence[ChatMessage], options: ChatOptions = PLAIN_CHAT) -> list[int]:
        return self.tokenize(self.render_text(messages))

    def render_text(self, messages: Sequence[ChatMessage], options: ChatOptions = PLAIN_CHAT) -> str:
        return "".join(f"{message.role}: {message.content}\n" for message in messages) + "assistant: "

    def plan_answer(
        self, options: ChatOptions = PLAIN_CHAT, choice: ToolChoice = ANY_TOOL, asked: OutputFormat | None = None
    ) -> AnswerPlan:
        if choice.mode == "required" or (choice.name is not None and choice.mode != "none"):
            raise InvalidRequest(
                "a toy calls no tools: leave tool_choice out", code="unsupported_by_model", param="tool_choice"
            )
        return AnswerPlan(new_reader=PlainReader, format=asked)

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    def spelling(self, token: int) -> bytes:
        return END_TEXT.encode() if token == END else self.piece(token)
