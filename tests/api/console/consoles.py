"""A console in the test's own Trio run, on a real socket, with verbs of the test's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import attrs
import trio

from tests.api.fake_runtime import FakeRuntime
from tripower.actors.runtime import Runtime
from tripower.api.console.actor import start_console
from tripower.api.console.lines import Lines
from tripower.api.console.listening import library_console
from tripower.api.console.statistics import ConsoleStatistics
from tripower.api.console.verb import Subject, Verb
from tripower.runtime.kernel import ActorSystem, open_actor_system


async def echo(subject: Subject, words: Sequence[str]) -> list[str]:
    return list(words)


ECHO = Verb(name="echo", summary="say the words again", run=echo, answer=list[str])


@attrs.define
class Console:
    """A console under test."""

    path: Path
    system: ActorSystem

    def statistics(self) -> ConsoleStatistics:
        for actor in self.system.statistics():
            if isinstance(actor.details, ConsoleStatistics):
                return actor.details
        raise AssertionError("the console's actor has gone")


@asynccontextmanager
async def serving(folder: Path, *verbs: Verb, **options: Any) -> AsyncIterator[Console]:
    """A console at a socket in `folder` that answers these verbs and `echo`. `options` are those of `start_console`."""
    with library_console(folder / "s") as opened:
        async with open_actor_system() as system:
            runtime = cast(Runtime, FakeRuntime(system))
            start_console(runtime, opened, verbs={verb.name: verb for verb in (ECHO, *verbs)}, **options)
            yield Console(opened.path, system)


@attrs.define
class RawClient:
    """A client that speaks bytes."""

    stream: trio.SocketStream
    lines: Lines

    async def send(self, *lines: bytes) -> None:
        await self.stream.send_all(b"".join(line + b"\n" for line in lines))

    async def frame(self) -> Any:
        """The next frame; None at the end."""
        line = await self.lines.receive()
        return None if line is None else json.loads(line)

    async def rest(self) -> list[Any]:
        """All frames up to the end."""
        frames = []
        while (frame := await self.frame()) is not None:
            frames.append(frame)
        return frames


@asynccontextmanager
async def raw_client(path: Path) -> AsyncIterator[RawClient]:
    """A connection that has been greeted."""
    async with await trio.open_unix_socket(path) as stream:
        client = RawClient(stream, Lines(stream))
        assert (await client.frame())["type"] == "hello"
        yield client


def call(number: int, verb: str, *words: str) -> bytes:
    """A call as it goes over the wire."""
    return json.dumps({"type": "call", "id": number, "verb": verb, "arguments": words}).encode()
