"""The pieces of an answer out of the chunks of a stream, for both endpoints.

One choice is asked for, so exactly one may answer. The reason for the end may be followed by the figures, so reading goes on to the end
mark. What is not what an OpenAI-compatible server says is an error, whatever came before it: a guess would look like an answer.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tripower.backends.proxy.errors import UpstreamFailed, UpstreamProtocol, UpstreamTruncated, told_of
from tripower.runtime.engine import DelegateEnd, DelegateEvent, DelegatePiece

DONE = "[DONE]"
TOOL_REASONS = frozenset({"tool_calls", "function_call"})


class DeltaIn(msgspec.Struct):
    """What a chat chunk adds."""

    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None
    function_call: Any = None


class ChoiceIn(msgspec.Struct):
    """The one answer: `delta` in a chat, `text` in a completion."""

    index: int = 0
    delta: DeltaIn | None = None
    text: str | None = None
    finish_reason: str | None = None


class UsageIn(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class ChunkIn(msgspec.Struct):
    choices: list[ChoiceIn] | None = None
    usage: UsageIn | None = None
    error: Any = None


_decode = msgspec.json.Decoder(ChunkIn).decode


class AnswerReader:
    """Give it the data of each event, then `end` once."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._reason = ""
        self._usage = UsageIn()
        self.done = False
        """Whether the end mark has come."""

    @property
    def complete(self) -> bool:
        """Whether the reason for the end is known: what breaks off now loses figures at most."""
        return bool(self._reason)

    def take(self, data: str) -> list[DelegateEvent]:
        """The pieces of one event. Raises `UpstreamProtocol` or `UpstreamFailed`."""
        if data == DONE:
            self.done = True
            return []
        try:
            chunk = _decode(data)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise UpstreamProtocol(f"{self._where} sent an event that is no chunk of an answer: {error}") from error
        if chunk.error is not None:
            raise UpstreamFailed(
                f"{self._where} failed in the middle of the answer: {told_of(chunk.error)[0] or 'it does not say why'}"
            )
        if chunk.usage is not None:
            self._usage = chunk.usage
        return self._take_choices(chunk)

    def _take_choices(self, chunk: ChunkIn) -> list[DelegateEvent]:
        choices = chunk.choices or []
        if not choices:
            if chunk.usage is None:
                raise self._wrong("an event without an answer and without figures")
            return []
        if len(choices) > 1 or choices[0].index != 0:
            raise self._wrong("several answers to one request")
        return self._take_choice(choices[0])

    def _take_choice(self, choice: ChoiceIn) -> list[DelegateEvent]:
        delta = choice.delta or DeltaIn()
        if delta.tool_calls or delta.function_call is not None or choice.finish_reason in TOOL_REASONS:
            raise self._wrong("a tool call, and no tools were offered")
        text = (delta.content or "") + (delta.refusal or "") + (choice.text or "")
        if text and self._reason:
            raise self._wrong("more text after the end")
        thought = delta.reasoning_content or delta.reasoning
        reason = choice.finish_reason
        if reason is not None:
            if not reason.strip() or self._reason not in ("", reason):
                raise self._wrong("an end without one reason")
            self._reason = reason
        # Thoughts have no place in an answer here; an empty piece still shows that the upstream works.
        return [DelegatePiece(text)] if text or thought else []

    def end(self) -> DelegateEnd:
        """The end of a complete answer. Raises `UpstreamTruncated` when the upstream never said that it was one."""
        if not self._reason:
            raise UpstreamTruncated(f"the answer of {self._where} broke off")
        return DelegateEnd(self._reason, self._usage.prompt_tokens, self._usage.completion_tokens)

    def _wrong(self, what: str) -> UpstreamProtocol:
        return UpstreamProtocol(f"{self._where} sent {what}")
