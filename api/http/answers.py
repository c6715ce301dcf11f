"""Answers as OpenAI clients parse them: what both endpoints and the pieces of a stream have in common."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import attrs
import msgspec

from tripower.actors.dialogue import GenerationFinished, Timings, Usage
from tripower.api.http.text.token_texts import ChatLogprobsOut, CompletionLogprobsOut, PromptLogprobOut

FINGERPRINT = f"tripower-{version('tripower')}"
PromptLogprobs = tuple[Mapping[str, PromptLogprobOut] | None, ...]
_encode = msgspec.json.Encoder().encode


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int = 0


class CompletionDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0


_NOT_CACHED = PromptDetails()
_NOT_THOUGHT = CompletionDetails()


class UsageOut(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails = PromptDetails()
    completion_tokens_details: CompletionDetails = CompletionDetails()


class TimingsOut(msgspec.Struct, frozen=True):
    """llama-server's names: `cache_n` was there, `prompt` is the prefill of the rest, `predicted` what came after the first token."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int | msgspec.UnsetType = msgspec.UNSET
    draft_n_accepted: int | msgspec.UnsetType = msgspec.UNSET
    """Guessed tokens, and the right ones of them, where any were evaluated."""
    draft_passes: int | msgspec.UnsetType = msgspec.UNSET
    draft_replays: int | msgspec.UnsetType = msgspec.UNSET
    """Ours: steps that drew a token, and those of them in which a guess was wrong."""


class CalledOut(msgspec.Struct, frozen=True):
    """A function and the text of a JSON object."""

    name: str
    arguments: str


class ToolCallOut(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: str = "function"
    function: CalledOut


class MessageOut(msgspec.Struct, frozen=True, kw_only=True):
    """`content` is null where there are only calls. There are two names of the reasoning, since clients read either."""

    role: str = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: tuple[ToolCallOut, ...] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    message: MessageOut
    logprobs: ChatLogprobsOut | None = None
    finish_reason: str
    stop_reason: str | int | msgspec.UnsetType = msgspec.UNSET
    """The stop string or token of the request that ended it."""


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    text: str
    logprobs: CompletionLogprobsOut | None = None
    finish_reason: str
    stop_reason: str | int | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


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
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET
    """vLLM's, of a conversation."""


@attrs.frozen
class Dialect:
    """What differs between the endpoints in name only."""

    id_prefix: str
    whole: str
    chunk: str


CHAT = Dialect(id_prefix="chatcmpl-", whole="chat.completion", chunk="chat.completion.chunk")
COMPLETION = Dialect(id_prefix="cmpl-", whole="text_completion", chunk="text_completion")


def usage_out(usage: Usage, reasoning_tokens: int = 0) -> UsageOut:
    return UsageOut(
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.prompt_tokens + usage.completion_tokens,
        PromptDetails(usage.cached_tokens) if usage.cached_tokens else _NOT_CACHED,
        completion_tokens_details=CompletionDetails(reasoning_tokens) if reasoning_tokens else _NOT_THOUGHT,
    )


def merged(ends: Sequence[GenerationFinished], n: int) -> GenerationFinished:
    """One end for the ends of all choices: a prompt counts once for its `n` answers, and the longest took the time of all.

    Of a prompt, only what every answer found evaluated was there before the request.
    """
    if len(ends) == 1:
        return ends[0]
    usage = Usage(
        sum(end.usage.prompt_tokens for end in ends[::n]),
        sum(end.usage.completion_tokens for end in ends),
        sum(min(end.usage.cached_tokens for end in ends[first : first + n]) for first in range(0, len(ends), n)),
    )
    timings = Timings(
        max(end.timings.wait_seconds for end in ends),
        max(end.timings.prefill_seconds for end in ends),
        max(end.timings.decode_seconds for end in ends),
        sum(end.timings.drafted for end in ends),
        sum(end.timings.accepted for end in ends),
        sum(end.timings.passes for end in ends),
        sum(end.timings.replays for end in ends),
    )
    return GenerationFinished(ends[0].reason, "", usage, timings)


def timings_out(finished: GenerationFinished) -> TimingsOut:
    """Rates are 0 where nothing was measured, never infinite."""
    usage, timings = finished.usage, finished.timings
    predicted = usage.completion_tokens
    evaluated = usage.prompt_tokens - usage.cached_tokens
    return TimingsOut(
        usage.cached_tokens,
        evaluated,
        *_rates(evaluated, timings.prefill_seconds),
        predicted,
        *_rates(predicted, timings.decode_seconds),
        *((timings.drafted, timings.accepted, timings.passes, timings.replays) if timings.drafted else ()),
    )


def _rates(tokens: int, seconds: float) -> tuple[float, float, float]:
    """Milliseconds in all, milliseconds a token, tokens a second."""
    return (
        round(1000 * seconds, 3),
        round(1000 * seconds / tokens, 3) if tokens else 0.0,
        round(tokens / seconds, 3) if seconds > 0 else 0.0,
    )


def new_id(dialect: Dialect) -> str:
    return dialect.id_prefix + secrets.token_hex(12)


DONE = b"data: [DONE]\n\n"


def encode(value: Any) -> bytes:
    """JSON of anything plain."""
    return _encode(value)
