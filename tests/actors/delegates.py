"""Delegates for tests: one that answers by script on virtual time, and a plan that serves it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from tripower.actors.dialogue import GenerationRequest
from tripower.actors.models import ModelSource
from tripower.actors.runtime import Runtime, open_actors, toy_plan
from tripower.runtime.engine import (
    DelegateAbilities,
    DelegateEnd,
    DelegateEvent,
    DelegatePiece,
    DelegateRequest,
    EngineInfo,
    LoadedDelegate,
    LoadSpecification,
    Progress,
)
from tripower.runtime.kernel import InlineLane

PIECE_SECONDS = 1.0
ABLE = DelegateAbilities(options=frozenset({"temperature", "seed"}), tokens_min=1, roles=frozenset({"user", "assistant"}))


@attrs.define(eq=False)
class ScriptedDelegate:
    """Each stream gives the items of `script` a second apart; an exception among them is raised. Closing takes `closing_seconds`."""

    script: Sequence[DelegateEvent | BaseException]
    closing_seconds: float = 0.0
    seats: int = 0
    abilities: DelegateAbilities = ABLE
    requests: list[DelegateRequest] = attrs.Factory(list)
    seconds: list[float] = attrs.Factory(list)
    streaming: int = 0
    peak: int = 0
    left_early: int = 0
    closed: bool = False
    info: EngineInfo = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.info = EngineInfo(backend="scripted", architecture="", context_max=0, vocabulary_size=0, sequences_max=self.seats)

    @asynccontextmanager
    async def stream(self, request: DelegateRequest, *, seconds: float) -> AsyncIterator[AsyncIterator[DelegateEvent]]:
        self.requests.append(request)
        self.seconds.append(seconds)
        self.streaming += 1
        self.peak = max(self.peak, self.streaming)
        events = self._events()
        try:
            yield events
        except trio.Cancelled:
            self.left_early += 1
            raise
        finally:
            with trio.CancelScope(shield=True):
                await events.aclose()
                await trio.sleep(self.closing_seconds)
            self.streaming -= 1

    async def _events(self) -> AsyncGenerator[DelegateEvent, None]:
        for item in self.script:
            await trio.sleep(PIECE_SECONDS)
            if isinstance(item, BaseException):
                raise item
            yield item

    async def close(self) -> None:
        assert not self.streaming
        self.closed = True


@attrs.define(eq=False)
class ScriptedBackend:
    """Opens the delegates it was given, one after the other; an exception among them fails the load."""

    delegates: list[ScriptedDelegate | BaseException]
    name: str = "scripted"
    opens: int = 0
    opening_seconds: float = 0.0

    async def open_delegate(self, specification: LoadSpecification, progress: Progress) -> LoadedDelegate:
        self.opens += 1
        progress("opening", 0.5)
        await trio.sleep(self.opening_seconds)
        found = self.delegates.pop(0)
        if isinstance(found, BaseException):
            raise found
        return LoadedDelegate(found)


def text(*pieces: str, reason: str = "stop", usage: tuple[int, int] | None = None) -> list[DelegateEvent | BaseException]:
    """A script of pieces and a regular end."""
    prompt_tokens, completion_tokens = usage or (None, None)
    return [*(DelegatePiece(piece) for piece in pieces), DelegateEnd(reason, prompt_tokens, completion_tokens)]


@asynccontextmanager
async def open_scripted(
    *delegates: ScriptedDelegate | BaseException,
    opening_seconds: float = 0.0,
    members_max: int = 4,
    waiting_max: int = 4,
    **plan: Any,
) -> AsyncIterator[tuple[Runtime, ScriptedBackend]]:
    """A runtime whose model `far` is a scripted delegate. At its end every delegate must be closed and idle."""
    backend = ScriptedBackend(list(delegates), opening_seconds=opening_seconds)
    asked = toy_plan(
        members_max=members_max,
        waiting_max=waiting_max,
        backends={"scripted": backend},
        sources=(ModelSource(name="far", source="far", backend="scripted"),),
        open_port=lambda: InlineLane(lambda job: 0.0),
        **plan,
    )
    async with open_actors(asked) as runtime:
        yield runtime, backend
    assert runtime.statistics() == []
    used = [each for each in delegates if isinstance(each, ScriptedDelegate) and each.requests]
    assert all(each.closed and not each.streaming for each in used)


def ask(prompt: str = "p", **changes: object) -> GenerationRequest:
    """A request for `far`."""
    return GenerationRequest(model="far", **({"prompt": prompt} if "messages" not in changes else {}), **changes)  # type: ignore[arg-type]
