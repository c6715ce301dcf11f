"""The events of a response's stream, in OpenAI's order and with its numbers. There is no end mark: the last event is the end."""

from __future__ import annotations

from typing import Any

import msgspec

from tripower.actors.dialogue import GenerationRequest
from tripower.api.http.dialects.following import Following
from tripower.api.http.dialects.parts import Part, PartBegan, PartEnded, PartEvent, PartGrew
from tripower.api.http.dialects.stream import event_bytes
from tripower.api.http.exchange import Exchange, Header
from tripower.api.http.responses.answer import ResponseBuilder, TextOut, ThoughtOut, incomplete_reason
from tripower.api.http.responses.requests import ResponseIn
from tripower.api.http.sse import COMMENT
from tripower.runtime.kernel import TripowerError

TEXT_EVENTS = {"text": "response.output_text", "reasoning": "response.reasoning_text"}
ARGUMENTS = "response.function_call_arguments"


class ResponseWriter:
    """One response. The end of a part is told when the next event shows whether it was cut off, since its item says so."""

    keep_alive = COMMENT
    headers: tuple[Header, ...] = ()

    def __init__(self, asked: ResponseIn, request: GenerationRequest, exchange: Exchange) -> None:
        self._builder = ResponseBuilder(asked, request)
        self._number = 0
        self._ended: Part | None = None
        """A part that is complete and has not been called so yet."""

    def whole(self, following: Following) -> bytes:
        return msgspec.json.encode(self._builder.complete(following))

    def opening(self, following: Following) -> bytes:
        response = self._builder.blank
        return self._event("response.created", response=response) + self._event("response.in_progress", response=response)

    def event(self, event: PartEvent) -> bytes:
        match event:
            case PartBegan(part):
                return self._close("completed") + self._begin(part)
            case PartGrew(part, text):
                return self._grow(part, text)
            case PartEnded(part):
                self._ended = part
                return b""

    def end(self, following: Following) -> bytes:
        assert following.finished is not None
        status = "incomplete" if incomplete_reason(following.finished) else "completed"
        closing = self._close(status)
        return closing + self._event(f"response.{status}", response=self._builder.complete(following))

    def fail(self, error: TripowerError, following: Following) -> bytes:
        for event in following.parts.end():
            self.event(event)
        return self._close("incomplete") + self._event("response.failed", response=self._builder.failed(error, following))

    def _begin(self, part: Part) -> bytes:
        item = self._builder.item(part, "in_progress")
        added = self._event("response.output_item.added", output_index=part.index, item=item)
        return added if part.kind == "call" else added + self._content_part("added", part, "")

    def _grow(self, part: Part, text: str) -> bytes:
        if part.kind == "call":
            return self._at(f"{ARGUMENTS}.delta", part, delta=text)
        extra = {"logprobs": ()} if part.kind == "text" else {}
        return self._at(f"{TEXT_EVENTS[part.kind]}.delta", part, content_index=0, delta=text, **extra)

    def _close(self, status: str) -> bytes:
        part, self._ended = self._ended, None
        if part is None:
            return b""
        if part.kind == "call":
            told = self._at(f"{ARGUMENTS}.done", part, name=part.name, arguments=part.text)
        else:
            extra = {"logprobs": ()} if part.kind == "text" else {}
            told = self._at(f"{TEXT_EVENTS[part.kind]}.done", part, content_index=0, text=part.text, **extra)
            told += self._content_part("done", part, part.text)
        return told + self._event("response.output_item.done", output_index=part.index, item=self._builder.item(part, status))

    def _content_part(self, change: str, part: Part, text: str) -> bytes:
        content = TextOut(text) if part.kind == "text" else ThoughtOut(text)
        return self._at(f"response.content_part.{change}", part, content_index=0, part=content)

    def _at(self, type: str, part: Part, /, **fields: Any) -> bytes:
        return self._event(type, item_id=self._builder.item_id(part), output_index=part.index, **fields)

    def _event(self, type: str, /, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return event_bytes(type, {"type": type, "sequence_number": number, **fields})
