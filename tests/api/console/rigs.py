"""What the tests of verbs share: a server or a runtime to look at, and verbs as a client gets to see their answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from io import StringIO
from typing import Any

import msgspec
import trio
from rich.console import Console
from trio.testing import wait_all_tasks_blocked

from tests.actors.rigs import RecordingBackend, steps_only
from tests.api.serving import COMPLETIONS, Answer, Server, serving_toy
from tripower.actors.runtime import toy_plan
from tripower.api.console.verb import Subject
from tripower.api.console.verbs import find_verb
from tripower.runtime.kernel import InlineLane, LaneJob

LONG = "p" * 600
"""A prompt of three steps of the toy, a second each."""


def subject_of(server: Server) -> Subject:
    """What the console of this server looks at."""
    active = server.api.look(lambda api: api._application.active)
    assert active is not None
    return Subject(runtime=server.actors, active=active)


@asynccontextmanager
async def looking_at_toy(
    *, pace: Callable[[LaneJob], float] = steps_only, members_max: int = 1, **settings: Any
) -> AsyncIterator[tuple[Server, Subject]]:
    """A server on virtual time whose toy takes a second a step."""
    plan = toy_plan(members_max=members_max, backends={"toy": RecordingBackend()}, open_port=lambda: InlineLane(pace))
    async with serving_toy(plan, **settings) as server:
        await wait_all_tasks_blocked()  # it has started
        yield server, subject_of(server)


async def run(subject: Subject, verb: str, *words: str) -> Any:
    """The answer, after its way over the wire; and whoever looks at it can."""
    found = find_verb(verb)
    assert found.run is not None
    answer = _received(await found.run(subject, words), found.answer)
    assert shown(verb, answer)
    return answer


async def stream(subject: Subject, verb: str, *words: str) -> AsyncIterator[Any]:
    """The items of a stream, after their way over the wire."""
    found = find_verb(verb)
    assert found.stream is not None
    async for item in found.stream(subject, words):
        received = _received(item, found.answer)
        assert shown(verb, received)
        yield received


def _received(answer: Any, kind: Any) -> Any:
    received = msgspec.json.decode(msgspec.json.encode(answer), type=kind)
    assert received == answer
    return received


def shown(verb: str, answer: Any) -> str:
    """What people see on a screen of 140 columns."""
    console = Console(width=140, file=StringIO(), color_system=None)
    console.print(find_verb(verb).show(answer))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


class Asked:
    """Somebody who asks over HTTP, and what became of it."""

    def __init__(self) -> None:
        self.answer: Answer | None = None

    async def run(self, server: Server, path: str, body: Any, headers: dict[str, str]) -> None:
        self.answer = await server.ask(path, body, headers=headers)

    @property
    def code(self) -> str:
        """Of the error that it was answered with, whole or within a stream."""
        assert self.answer is not None
        error = self.answer.error if self.answer.status != 200 else self.answer.events[-2]["error"]
        return str(error["code"])


async def ask(
    nursery: trio.Nursery, server: Server, request_id: str, prompt: str = "p", max_tokens: int = 9, **more: Any
) -> Asked:
    """Begin to ask the toy, and come back when the server is busy with it."""
    asked = Asked()
    body = {"model": "toy", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0} | more
    nursery.start_soon(asked.run, server, COMPLETIONS, body, {"x-request-id": request_id})
    active = subject_of(server).active
    with trio.fail_after(5):
        while not any(exchange.request_id == request_id.encode() for exchange in active):
            await trio.lowlevel.checkpoint()
    await wait_all_tasks_blocked()
    return asked
