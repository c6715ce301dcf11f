"""Requests about tokens, in the words of llama-server and of vLLM.

Both have `/tokenize` and `/detokenize`, with other fields, so the field that holds the text decides which dialect is spoken: `content` is
llama-server's, `prompt` and `messages` are vLLM's. Choices where they differ, or say nothing:

* `content` gets no begin token unless `add_special` asks for it, `prompt` gets one unless `add_special_tokens` says no.
* Texts of control tokens are recognised, as both servers do; `parse_special: false` takes them as plain text, as completions do here.
* A conversation is tokenised as `/v1/chat/completions` does it: its begin token comes exactly once, whatever a flag says.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from tripower.api.http.bodies import LISTED_MAX
from tripower.api.http.decoding import RequestDecoder
from tripower.api.http.text.chat_options import ChatOptionFields, options_of
from tripower.api.http.text.tools import ExactFunctions, ExactTools
from tripower.api.http.wire import ExactMessage, MessageIn, conversation
from tripower.runtime.engine import ChatMessage
from tripower.runtime.kernel import InvalidRequest

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Messages = Annotated[tuple[MessageIn, ...], Meta(min_length=1, max_length=LISTED_MAX)]
ExactMessages = Annotated[tuple[ExactMessage, ...], Meta(min_length=1, max_length=LISTED_MAX)]


class TokenizeIn(ChatOptionFields, frozen=True, kw_only=True):
    """`POST /tokenize`: exactly one of `content`, `prompt` and `messages`."""

    model: str | None = None
    content: str | None = None
    add_special: bool | None = None
    with_pieces: bool | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    parse_special: bool | None = None

    def check(self) -> None:
        """What types cannot say. Raises `InvalidRequest`."""
        given = self._given()
        if not given:
            raise InvalidRequest("prompt is missing: give content, prompt or messages", param="prompt")
        if len(given) > 1:
            raise InvalidRequest(f"{given[1]}: give only one of {' and '.join(given)}", param=given[1])
        own, other = (LLAMA_FLAGS, VLLM_FLAGS) if self.content is not None else (VLLM_FLAGS, LLAMA_FLAGS)
        for mine, foreign in zip(own, other, strict=True):
            if getattr(self, foreign) is not None:
                raise InvalidRequest(f"{foreign} does not go with {given[0]}: use {mine}", param=foreign)
        if self.messages is None and options_of(self) is not None:
            raise InvalidRequest(f"tools and template variables do not go with {given[0]}: use messages", param=given[0])

    def _given(self) -> list[str]:
        return [name for name in ("content", "prompt", "messages") if getattr(self, name) is not None]

    def subject(self) -> str:
        """The field that holds the text."""
        return self._given()[0]

    def text(self) -> str:
        """The plain text; empty for a conversation."""
        return self.content if self.content is not None else self.prompt or ""

    def adds_special(self) -> bool:
        if self.content is not None:
            return bool(self.add_special)
        return self.add_special_tokens is not False

    def parses_special(self) -> bool:
        return self.parse_special is not False

    def conversation(self) -> tuple[ChatMessage, ...] | None:
        """Raises `InvalidRequest`."""
        return None if self.messages is None else conversation(self.messages)


LLAMA_FLAGS = ("add_special", "with_pieces")
VLLM_FLAGS = ("add_special_tokens", "return_token_strs")
"""The same wishes, in the same order."""


class DetokenizeIn(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /detokenize`."""

    tokens: tuple[TokenId, ...]
    model: str | None = None

    def check(self) -> None:
        """Types say everything."""


class ApplyTemplateIn(ChatOptionFields, frozen=True, kw_only=True):
    """`POST /apply-template`."""

    messages: Messages
    model: str | None = None

    def check(self) -> None:
        """Types say everything that can be said before the messages are translated."""

    def conversation(self) -> tuple[ChatMessage, ...]:
        """Raises `InvalidRequest`."""
        return conversation(self.messages)


class ExactTokenize(TokenizeIn, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same, and nothing else."""

    messages: ExactMessages | None = None
    tools: ExactTools | None = None
    functions: ExactFunctions | None = None


class ExactDetokenize(DetokenizeIn, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same, and nothing else."""


class ExactApplyTemplate(ApplyTemplateIn, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same, and nothing else."""

    messages: ExactMessages
    tools: ExactTools | None = None
    functions: ExactFunctions | None = None


TOKENIZE = RequestDecoder[TokenizeIn](TokenizeIn, ExactTokenize)
DETOKENIZE = RequestDecoder[DetokenizeIn](DetokenizeIn, ExactDetokenize)
APPLY_TEMPLATE = RequestDecoder[ApplyTemplateIn](ApplyTemplateIn, ExactApplyTemplate)
