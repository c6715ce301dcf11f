"""What the five situations share: a server on the real actors, and a console that is attached to it through its socket."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import msgspec
import trio

from tests.api.serving import PATIENCE, Client, configured
from tripower.actors.runtime import Runtime, RuntimePlan, open_actors
from tripower.api.console.actor import start_console
from tripower.api.console.client import ConsoleClient, open_console
from tripower.api.console.listening import library_console
from tripower.api.console.verbs import find_verb
from tripower.api.http import bind, start_api
from tripower.api.http.exchange import Exchange
from tripower.runtime.configuration import AuthSettings

COMPLETIONS = "/v1/completions"
SEND_BUFFER = 16 * 1024


@attrs.frozen
class Tour:
    """The server, and the console on it."""

    port: int
    runtime: Runtime
    console: ConsoleClient

    async def see(self, verb: str, *arguments: str) -> Any:
        """What a verb answers, as its type."""
        return await self.console.call(verb, arguments, answer=find_verb(verb).answer)

    async def see_until(self, condition: Callable[[Any], bool], verb: str, *arguments: str) -> Any:
        """Look again and again until what a verb answers is so."""
        while not condition(answer := await self.see(verb, *arguments)):
            pass
        return answer

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            yield Client(stream)

    async def ask(self, answers: dict[str, Any], name: str, body: Any, **headers: str) -> None:
        """One request called `name`, whose answer goes into `answers`."""
        async with self.client() as client:
            answers[name] = await client.ask(COMPLETIONS, body, headers=headers | {"x-request-id": name})


@asynccontextmanager
async def on_tour(
    plan: RuntimePlan, folder: Path, *, auth: AuthSettings | None = None, load: bool = True
) -> AsyncIterator[Tour]:
    """Serve a plan whose model is `toy`, and attach."""
    configuration = msgspec.structs.replace(configured(), auth=auth or AuthSettings())
    active = set[Exchange]()
    with (
        trio.fail_after(PATIENCE),
        library_console(folder / "console.sock") as opened,
        bind(configuration.server) as bound,
    ):
        assert opened is not None
        for listening in bound.sockets:  # and what is accepted from them: a client that does not read is noticed soon
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        async with open_actors(plan) as runtime:
            if load:
                await runtime.load("toy")
            api = start_api(runtime, configuration, bound, active=active)
            start_console(runtime, opened, active=active)
            async with open_console(str(opened.path)) as console:
                yield Tour(bound.port, runtime, console)
            await api.stop()


def path_of(paths: Any, name: str) -> Any:
    """The request of this id among what `requests` answers; None when it has ended."""
    return next((path for path in paths if path.id == name), None)


def toy(prompt: str = "p", tokens: int = 5000, **fields: Any) -> dict[str, Any]:
    """A body that asks the toy for exactly so many tokens."""
    return {"model": "toy", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, **fields}
