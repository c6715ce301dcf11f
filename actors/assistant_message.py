"""A whole answer in its parts, put together from the events of a generation and what its reader makes of the text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tripower.actors.dialogue import AnswerEvent, GenerationFinished, PromptScored, Timings, TokenChunk, Usage
from tripower.runtime.engine import (
    AnswerDelta,
    AnswerReader,
    ContentDelta,
    PlainReader,
    ReasoningDelta,
    TokenLogprobs,
    ToolCall,
    ToolCallDelta,
)


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    """An answer from its beginning to its end."""

    content: str | None
    """What is said; None where there are only calls."""
    reasoning: str | None
    """What was thought before, where the model marks it."""
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    """`stop`, `length`, `tool_calls`, or what a remote engine calls it."""
    usage: Usage
    reasoning_tokens: int
    """Generated tokens that were thought rather than said."""
    timings: Timings
    stopped_by: str | int | None = None
    """The stop string, or the stop token that the caller named."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of each generated token, where they were asked for."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """Of each token of the prompt from the second on, where they were asked for."""


class MessageBuilder:
    """Collects one answer. `take` each event once, in their order; then ask for the `message`.

    `keep_stop` leaves the stop string that ended the text at its end.
    """

    def __init__(self, reader: AnswerReader, *, keep_stop: bool = False) -> None:
        self._reader: AnswerReader | None = None if type(reader) is PlainReader else reader
        self._keep_stop = keep_stop
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _Call] = {}
        self._thought = ReasoningTokens()
        self.tokens = 0
        """Generated so far."""
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: tuple[TokenLogprobs, ...] = ()
        self.finished: GenerationFinished | None = None

    def take(self, event: AnswerEvent) -> None:
        """Another event."""
        if type(event) is TokenChunk:
            self.tokens += 1
            if event.logprobs is not None:
                self.logprobs.append(event.logprobs)
            if self._reader is None:
                self._content.append(event.text)
            else:
                deltas = self._reader.push(event.text)
                self._thought.count(deltas)
                self._add(deltas)
        elif type(event) is GenerationFinished:
            self.finished = event
            rest = last_text(event, keep_stop=self._keep_stop)
            if self._reader is None:
                self._content.append(rest)
            else:
                self._add(self._reader.finish(rest))
        elif type(event) is PromptScored:
            self.prompt_logprobs = event.tokens

    def message(self) -> AssistantMessage:
        """Everything, after the end."""
        finished = self.finished
        assert finished is not None, "the answer has not ended"
        content = "".join(self._content)
        reasoning = "".join(self._reasoning)
        calls = tuple(ToolCall(call.id, call.name, "".join(call.arguments)) for _, call in sorted(self._calls.items()))
        return AssistantMessage(
            content=None if calls and not content else content,
            reasoning=reasoning or None,
            tool_calls=calls,
            finish_reason=finish_reason(finished, self._reader),
            usage=finished.usage,
            reasoning_tokens=self._thought.tokens,
            timings=finished.timings,
            stopped_by=finished.stopped_by,
            logprobs=tuple(self.logprobs),
            prompt_logprobs=self.prompt_logprobs,
        )

    def _add(self, deltas: Iterable[AnswerDelta]) -> None:
        for delta in deltas:
            if isinstance(delta, ContentDelta):
                self._content.append(delta.text)
            elif isinstance(delta, ReasoningDelta):
                self._reasoning.append(delta.text)
            else:
                self._add_call(delta)

    def _add_call(self, delta: ToolCallDelta) -> None:
        call = self._calls.setdefault(delta.index, _Call())
        call.id = delta.id or call.id
        call.name = delta.name or call.name
        call.arguments.append(delta.arguments)


class ReasoningTokens:
    """How many tokens an answer's reasoning took: all up to the first that says or calls something, if anything was thought."""

    def __init__(self) -> None:
        self._seen = 0
        self._thinking = self._over = False
        self._before = 0

    @property
    def tokens(self) -> int:
        if not self._thinking:
            return 0
        return self._before if self._over else self._seen

    def count(self, deltas: Sequence[AnswerDelta]) -> None:
        """One token, and what it added."""
        self._seen += 1
        if self._over:
            return
        self._thinking = self._thinking or any(isinstance(delta, ReasoningDelta) for delta in deltas)
        if any(
            isinstance(delta, ToolCallDelta) or (isinstance(delta, ContentDelta) and delta.text.strip()) for delta in deltas
        ):
            self._over, self._before = True, self._seen - 1


class _Call:
    """A call as far as it has been read."""

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []


def last_text(finished: GenerationFinished, *, keep_stop: bool) -> str:
    """What comes after the last token: what was held back, and the stop string for whoever wants it."""
    stop = finished.stopped_by
    return finished.text + stop if keep_stop and isinstance(stop, str) else finished.text


def finish_reason(finished: GenerationFinished, reader: AnswerReader | None) -> str:
    """`tool_calls` for an answer that ended by itself and has complete calls; else what the queue says."""
    called = reader is not None and reader.complete_calls > 0
    return "tool_calls" if called and finished.reason == "stop" else finished.reason
