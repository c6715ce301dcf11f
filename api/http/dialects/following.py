"""A running generation, read as parts of an answer."""

from __future__ import annotations

import attrs
import msgspec

from tripower.actors.dialogue import Failed, GenerationFinished, TokenChunk
from tripower.actors.generation import Generation
from tripower.api.http.dialects.parts import PartEvent, Parts
from tripower.api.http.exchange import Interruptible
from tripower.runtime.engine.answer import AnswerDelta, AnswerReader, ReasoningDelta
from tripower.runtime.kernel import TripowerError


@attrs.define(eq=False)
class Following:
    """One generation and what has been read of it."""

    generation: Generation
    running: Interruptible
    parts: Parts = attrs.Factory(Parts)
    reader: AnswerReader = attrs.Factory(lambda self: self.generation.new_reader(), takes_self=True)
    tokens: int = 0
    reasoning_tokens: int = 0
    """Tokens whose text was thought, as far as the reader tells at once."""
    finished: GenerationFinished | None = None
    """With the reason `tool_calls` where the answer stopped by itself and calls something."""
    failure: TripowerError | None = None
    """How it ended. One of the two is set when `receive` has returned the last events."""

    @property
    def ended(self) -> bool:
        return self.finished is not None or self.failure is not None

    async def receive(self) -> list[list[PartEvent]]:
        """What has come since, for each token and for the end. Blocks until something has. Can be cancelled without loss."""
        events = await self.generation.receive()
        steps = [self._token(event) for event in events if type(event) is TokenChunk]
        if self.tokens:
            self.running.first_token_came()
        last = events[-1]
        if type(last) is Failed:
            self.failure = last.error()
        elif type(last) is GenerationFinished:
            steps.append([*self._added(self.reader.finish(last.text)), *self.parts.end()])
            calls = last.reason == "stop" and last.stopped_by is None and self.reader.complete_calls
            self.finished = msgspec.structs.replace(last, reason="tool_calls") if calls else last
        return steps

    def _token(self, chunk: TokenChunk) -> list[PartEvent]:
        self.tokens += 1
        deltas = self.reader.push(chunk.text)
        if any(type(delta) is ReasoningDelta for delta in deltas):
            self.reasoning_tokens += 1
        return self._added(deltas)

    def _added(self, deltas: list[AnswerDelta]) -> list[PartEvent]:
        return [event for delta in deltas for event in self.parts.add(delta)]
