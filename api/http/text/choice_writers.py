"""One choice of a stream: the JSON of what is in `choices`, event by event.

Every token is an event, also when its text is held back. In a conversation the reader says which part of the answer a text belongs to;
a call begins with its id and name, and then comes nothing but pieces of its arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from tripower.actors.assistant_message import ReasoningTokens, finish_reason, last_text
from tripower.actors.dialogue import GenerationFinished, GenerationRequest, PromptScored, TokenChunk
from tripower.actors.generation import Generation
from tripower.api.http.answers import encode
from tripower.api.http.text.token_texts import CompletionLogprobs, chat_logprobs
from tripower.api.http.text.whole import echo_of
from tripower.api.http.wire import Asked
from tripower.runtime.engine import AnswerDelta, ContentDelta, PlainReader, ReasoningDelta, ToolCallDelta

_OPEN_END = b',"logprobs":null,"finish_reason":null}'


class ChatWriter:
    """A choice of a conversation."""

    after_text: ClassVar[bytes] = b"}" + _OPEN_END

    def __init__(self, index: int, asked: Asked, request: GenerationRequest, generation: Generation) -> None:
        self._index = index
        self._keep_stop = asked.keep_stop
        self._top = request.logprobs
        self._text = generation.text
        reader = generation.new_reader()
        self._reader = None if type(reader) is PlainReader else reader
        self.thought = ReasoningTokens()
        self.is_plain = self._reader is None and self._top is None
        self.before_text = b'{"index":%d,"delta":{"content":' % index

    def opening(self) -> list[bytes]:
        """The role."""
        return [self._choice({"role": "assistant", "content": ""})]

    def scored(self, event: PromptScored) -> list[bytes]:
        """Told in whole answers only."""
        return []

    def token(self, event: TokenChunk) -> list[bytes]:
        """One token: usually one event, more where it ends one part and begins another."""
        logprobs = None
        if event.logprobs is not None and self._top is not None and self._text is not None:
            logprobs = chat_logprobs([event.logprobs], self._text, self._top)
        if self._reader is None:
            return [self._choice({"content": event.text}, logprobs)]
        found = self._reader.push(event.text)
        self.thought.count(found)
        deltas = list(delta_fields(found)) or [{}]
        return [self._choice(delta, None if place else logprobs) for place, delta in enumerate(deltas)]

    def finish(self, finished: GenerationFinished) -> list[bytes]:
        """What was held back, and the reason, which comes in an event of its own."""
        rest = last_text(finished, keep_stop=self._keep_stop)
        if self._reader is None:
            deltas: Sequence[AnswerDelta] = [ContentDelta(rest)] if rest else []
        else:
            deltas = self._reader.finish(rest)
        choices = [self._choice(delta) for delta in delta_fields(deltas)]
        last = {"index": self._index, "delta": {}, "logprobs": None, "finish_reason": finish_reason(finished, self._reader)}
        return [*choices, encode(last | _stop_reason(finished))]

    def _choice(self, delta: dict[str, Any], logprobs: Any = None) -> bytes:
        return encode({"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": None})


class CompletionWriter:
    """A choice of a plain prompt."""

    after_text: ClassVar[bytes] = _OPEN_END

    def __init__(self, index: int, asked: Asked, request: GenerationRequest, generation: Generation) -> None:
        self._index = index
        self._keep_stop = asked.keep_stop
        self._prompt = generation.prompt
        self._echo = echo_of(asked, request, generation)
        self._lists: CompletionLogprobs | None = None
        if request.logprobs is not None and generation.text is not None:
            self._lists = CompletionLogprobs(generation.text, request.logprobs)
        self._repeats_scored = asked.echo and self._lists is not None
        self.thought = ReasoningTokens()
        self.is_plain = self._lists is None
        self.before_text = b'{"index":%d,"text":' % index

    def opening(self) -> list[bytes]:
        """The prompt, if it is repeated and nothing more has to be known of it."""
        return [self._choice(self._echo)] if self._echo and not self._repeats_scored else []

    def scored(self, event: PromptScored) -> list[bytes]:
        """The prompt, and how likely its tokens are."""
        if not self._repeats_scored or self._lists is None:
            return []
        self._repeats_scored = False
        return [self._choice(self._echo, self._lists.prompt(self._prompt, event.tokens))]

    def token(self, event: TokenChunk) -> list[bytes]:
        """One token."""
        before = self.scored(PromptScored(()))  # nothing is known of a prompt of one token
        logprobs = None if self._lists is None or event.logprobs is None else self._lists.tokens([event.logprobs])
        return [*before, self._choice(event.text, logprobs)]

    def finish(self, finished: GenerationFinished) -> list[bytes]:
        """What was held back, and the reason, which comes in an event of its own."""
        before = self.scored(PromptScored(()))
        rest = last_text(finished, keep_stop=self._keep_stop)
        last = {"index": self._index, "text": "", "logprobs": None, "finish_reason": finished.reason}
        return [*before, *([self._choice(rest)] if rest else []), encode(last | _stop_reason(finished))]

    def _choice(self, text: str, logprobs: Any = None) -> bytes:
        return encode({"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": None})


def delta_fields(deltas: Sequence[AnswerDelta]) -> Iterator[dict[str, Any]]:
    """What goes into `delta`, one event for each item."""
    for delta in deltas:
        match delta:
            case ContentDelta():
                yield {"content": delta.text}
            case ReasoningDelta():
                yield {"reasoning_content": delta.text, "reasoning": delta.text}
            case ToolCallDelta():
                yield from ({"tool_calls": [call]} for call in _call_fields(delta))


def _call_fields(delta: ToolCallDelta) -> Iterator[dict[str, Any]]:
    if delta.id is not None or delta.name is not None:
        function = {"name": delta.name, "arguments": ""}
        yield {"index": delta.index, "id": delta.id, "type": "function", "function": function}
    if delta.arguments:
        yield {"index": delta.index, "function": {"arguments": delta.arguments}}


def _stop_reason(finished: GenerationFinished) -> dict[str, Any]:
    return {} if finished.stopped_by is None else {"stop_reason": finished.stopped_by}
