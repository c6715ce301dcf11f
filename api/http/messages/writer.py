"""The events of a message's stream, in Anthropic's order. There is no end mark: `message_stop` or `error` is the end."""

from __future__ import annotations

import msgspec

from tripower.actors.dialogue import GenerationRequest
from tripower.api.http.dialects.following import Following
from tripower.api.http.dialects.parts import Part, PartBegan, PartEnded, PartEvent, PartGrew
from tripower.api.http.dialects.stream import event_bytes
from tripower.api.http.exchange import Exchange, Header
from tripower.api.http.messages.answer import begun, complete, stop_reason, usage_of
from tripower.api.http.messages.errors import REQUEST_ID, messages_error
from tripower.api.http.messages.requests import MessagesIn
from tripower.runtime.kernel import TripowerError

DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}
PING = event_bytes("ping", {"type": "ping"})


class MessageWriter:
    """One message."""

    keep_alive = PING

    def __init__(self, asked: MessagesIn, request: GenerationRequest, exchange: Exchange) -> None:
        self._request = request
        self._request_id = exchange.request_id
        self.headers: tuple[Header, ...] = ((REQUEST_ID, exchange.request_id),)

    def whole(self, following: Following) -> bytes:
        return msgspec.json.encode(complete(self._request, following))

    def opening(self, following: Following) -> bytes:
        message = begun(self._request, following)
        return event_bytes("message_start", {"type": "message_start", "message": message})

    def event(self, event: PartEvent) -> bytes:
        match event:
            case PartBegan(part):
                return _block_event("content_block_start", part, content_block=_empty(part))
            case PartGrew(part, text):
                kind, field = DELTAS[part.kind]
                return _block_event("content_block_delta", part, delta={"type": kind, field: text})
            case PartEnded(part):
                return _block_event("content_block_stop", part)

    def end(self, following: Following) -> bytes:
        finished = following.finished
        assert finished is not None
        reason, sequence = stop_reason(self._request, finished)
        usage = usage_of(finished.usage)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        told = event_bytes("message_delta", {"type": "message_delta", "delta": delta, "usage": usage})
        return told + event_bytes("message_stop", {"type": "message_stop"})

    def fail(self, error: TripowerError, following: Following) -> bytes:
        return event_bytes("error", messages_error(error, self._request_id))


def _empty(part: Part) -> dict[str, object]:
    if part.kind == "text":
        return {"type": "text", "text": ""}
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "tool_use", "id": part.call_id, "name": part.name, "input": {}}


def _block_event(name: str, part: Part, **fields: object) -> bytes:
    return event_bytes(name, {"type": name, "index": part.index, **fields})
