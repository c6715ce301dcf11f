"""What actors say to each other: frozen structs of plain data.

A command is an imperative (`RunSteps`), its answer is what then holds (`StepsDone`). Payloads can be encoded, logged and replayed;
live things (streams, scopes, tables) ride in the envelope beside them.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

Answer = TypeVar("Answer")


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of every message. The tag is the class's name."""


class Ask(Message, Generic[Answer], frozen=True):
    """A message that is answered, by the type named in brackets: `class RunSteps(Ask[StepsDone], frozen=True)`."""


class Stop(Message, frozen=True):
    """End: answer what is queued with `ActorGone`, clean up, leave. Understood by the kernel itself, for every actor."""


def encode(message: Message) -> bytes:
    """JSON of a message, for logs and replay. Does not block."""
    return msgspec.json.encode(message)


def decode(data: bytes, kind: Any) -> Any:
    """A message of `kind` (a class or a union of classes) from its JSON; raises `msgspec.ValidationError`."""
    return msgspec.json.decode(data, type=kind)
