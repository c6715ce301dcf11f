"""Answers as OpenAI clients parse them, whole and in pieces.

A streamed chunk differs from the one before in one string only, so everything else of its JSON is encoded once a request.
"""

from __future__ import annotations

import secrets
import time
from importlib.metadata import version
from typing import Any

import attrs
import msgspec

from tripower.actors.dialogue import GenerationFinished, Usage

FINGERPRINT = f"tripower-{version('tripower')}"
_encode = msgspec.json.Encoder().encode


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int = 0


class CompletionDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0


class UsageOut(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails = PromptDetails()
    completion_tokens_details: CompletionDetails = CompletionDetails()


class TimingsOut(msgspec.Struct, frozen=True):
    """llama-server's names: `prompt` is the prefill, `predicted` what came after the first token."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class MessageOut(msgspec.Struct, frozen=True, kw_only=True):
    role: str = "assistant"
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    message: MessageOut
    logprobs: None = None
    finish_reason: str


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    text: str
    logprobs: None = None
    finish_reason: str


class Answer(msgspec.Struct, frozen=True):
    """Both endpoints' whole answers; they differ in `object` and in the choice."""

    id: str
    object: str
    created: int
    model: str
    choices: tuple[ChatChoice | CompletionChoice, ...]  # encoded only, so the union needs no tag
    usage: UsageOut
    timings: TimingsOut
    system_fingerprint: str = FINGERPRINT


@attrs.frozen
class Dialect:
    """What differs between the endpoints. Bytes are JSON around a text."""

    id_prefix: str
    whole: str
    chunk: str
    opening: bytes
    """The first choice of a stream; empty when there is none."""
    before_text: bytes
    after_text: bytes
    finish: bytes
    """The last choice, up to its reason."""

    def choice(self, text: str, reason: str) -> ChatChoice | CompletionChoice:
        if self is CHAT:
            return ChatChoice(message=MessageOut(content=text), finish_reason=reason)
        return CompletionChoice(text=text, finish_reason=reason)


_OPEN_END = b',"logprobs":null,"finish_reason":null}'

CHAT = Dialect(
    id_prefix="chatcmpl-",
    whole="chat.completion",
    chunk="chat.completion.chunk",
    opening=b'{"index":0,"delta":{"role":"assistant","content":""}' + _OPEN_END,
    before_text=b'{"index":0,"delta":{"content":',
    after_text=b"}" + _OPEN_END,
    finish=b'{"index":0,"delta":{},"logprobs":null,"finish_reason":',
)
COMPLETION = Dialect(
    id_prefix="cmpl-",
    whole="text_completion",
    chunk="text_completion",
    opening=b"",
    before_text=b'{"index":0,"text":',
    after_text=_OPEN_END,
    finish=b'{"index":0,"text":"","logprobs":null,"finish_reason":',
)


def usage_out(usage: Usage) -> UsageOut:
    return UsageOut(usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens + usage.completion_tokens)


def timings_out(finished: GenerationFinished) -> TimingsOut:
    """Rates are 0 where nothing was measured, never infinite."""
    usage, timings = finished.usage, finished.timings
    predicted = usage.completion_tokens
    return TimingsOut(
        0,
        usage.prompt_tokens,
        *_rates(usage.prompt_tokens, timings.prefill_seconds),
        predicted,
        *_rates(predicted, timings.decode_seconds),
    )


def _rates(tokens: int, seconds: float) -> tuple[float, float, float]:
    """Milliseconds in all, milliseconds a token, tokens a second."""
    return (
        round(1000 * seconds, 3),
        round(1000 * seconds / tokens, 3) if tokens else 0.0,
        round(tokens / seconds, 3) if seconds > 0 else 0.0,
    )


def whole_answer(dialect: Dialect, model: str, text: str, finished: GenerationFinished) -> bytes:
    """The JSON of an answer that is not streamed."""
    return _encode(
        Answer(
            id=new_id(dialect),
            object=dialect.whole,
            created=int(time.time()),
            model=model,
            choices=(dialect.choice(text, finished.reason),),
            usage=usage_out(finished.usage),
            timings=timings_out(finished),
        )
    )


def new_id(dialect: Dialect) -> str:
    return dialect.id_prefix + secrets.token_hex(12)


class Chunks:
    """The events of one stream. `id`, `created` and `model` are the same in all of them."""

    def __init__(self, dialect: Dialect, model: str, *, include_usage: bool, continuous_usage: bool) -> None:
        head = {
            "id": new_id(dialect),
            "object": dialect.chunk,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": FINGERPRINT,
        }
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._dialect = dialect
        self._include_usage = include_usage
        self._continuous_usage = continuous_usage
        self._usage = Usage(0, 0)
        self._before_text = self._head + dialect.before_text
        self._after_text = dialect.after_text + self._tail

    def count_prompt(self, tokens: int) -> None:
        self._usage = Usage(tokens, 0)

    def opening(self) -> bytes:
        """What comes before the first token."""
        opening = self._dialect.opening
        return self._head + opening + self._current_tail() if opening else b""

    def token(self, text: str) -> bytes:
        """One token."""
        if self._continuous_usage:
            self._usage = Usage(self._usage.prompt_tokens, self._usage.completion_tokens + 1)
            return self._before_text + _encode(text) + self._dialect.after_text + self._current_tail()
        return self._before_text + _encode(text) + self._after_text

    def end(self, finished: GenerationFinished) -> bytes:
        """What was held back, the reason, the figures if they were asked for, and the end mark.

        `timings` ride on the last chunk, since clients merge them with the usage that is there.
        """
        self._usage = finished.usage
        pieces = (
            [self._before_text + _encode(finished.text) + self._dialect.after_text + self._current_tail()]
            if finished.text
            else []
        )
        timings = b',"timings":' + _encode(timings_out(finished))
        usage = b',"usage":' + _encode(usage_out(finished.usage))
        finish = self._head + self._dialect.finish + _encode(finished.reason) + b"}"
        if self._include_usage:
            pieces += [finish + self._current_tail(), self._head + b"]" + usage + timings + b"}\n\n"]
        else:
            pieces.append(finish + b"]" + (usage if self._continuous_usage else b"") + timings + b"}\n\n")
        return b"".join(pieces) + DONE

    def _current_tail(self) -> bytes:
        if not self._continuous_usage:
            return self._tail
        return b'],"usage":' + _encode(usage_out(self._usage)) + b"}\n\n"


DONE = b"data: [DONE]\n\n"


def encode(value: Any) -> bytes:
    """JSON of anything plain."""
    return _encode(value)
