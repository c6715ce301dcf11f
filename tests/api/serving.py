"""A real listener in the test's own Trio run, and clients that speak bytes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import attrs
import msgspec
import trio

from tests.api.fake_runtime import FakeRuntime, Script
from tripower.actors.runtime import Runtime, RuntimePlan, open_actors, toy_plan
from tripower.api.http import ApiStatistics, bind, start_api
from tripower.api.http.observe.keepers import Keepers
from tripower.runtime.configuration import AuthSettings, Configuration, SchedulerSettings, ServerSettings
from tripower.runtime.kernel import Ref, open_actor_system

PATIENCE = 20.0
"""Seconds after which a client of a test gives up: never reached by a test that passes."""
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
ASK = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}


@attrs.define
class Answer:
    """A whole HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        """The events of a stream; `[DONE]` as it is, comments left out."""
        lines = [block for block in self.body.decode().split("\n\n") if block and not block.startswith(":")]
        assert all(line.startswith("data: ") for line in lines)
        return [line if line == "data: [DONE]" else json.loads(line.removeprefix("data: ")) for line in lines]

    @property
    def text(self) -> str:
        """The text of a chat stream."""
        deltas = [event["choices"][0]["delta"] for event in self.events if isinstance(event, dict) and event.get("choices")]
        return "".join(delta.get("content", "") for delta in deltas)


class Client:
    """One connection. Reads answers by their framing; `raw` bytes may be sent in between."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._received = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def read_until(self, end: bytes) -> bytes:
        """Bytes up to and including `end`."""
        while end not in self._received:
            piece = await self.stream.receive_some()
            assert piece, f"the server closed after {self._received!r}"
            self._received += piece
        found, _, self._received = self._received.partition(end)
        return found + end

    async def read_exactly(self, count: int) -> bytes:
        while len(self._received) < count:
            piece = await self.stream.receive_some()
            assert piece, f"the server closed after {self._received!r}"
            self._received += piece
        found, self._received = self._received[:count], self._received[count:]
        return found

    async def read_to_end(self) -> bytes:
        """Everything until the server closes, whether it does so cleanly or not."""
        try:
            while piece := await self.stream.receive_some():
                self._received += piece
        except trio.BrokenResourceError:
            pass
        found, self._received = self._received, b""
        return found

    async def read_head(self) -> Answer:
        head = (await self.read_until(b"\r\n\r\n")).decode("latin-1")
        status_line, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return Answer(int(status_line.split()[1]), headers, b"")

    async def read_chunk(self) -> bytes:
        """One chunk of a chunked answer; empty at its end."""
        size = int((await self.read_until(b"\r\n")).strip(), 16)
        return (await self.read_exactly(size + 2))[:-2]

    async def read_answer(self, *, method: str = "POST") -> Answer:
        answer = await self.read_head()
        if method == "HEAD" or answer.status < 200:
            return answer
        if answer.headers.get("transfer-encoding") == "chunked":
            while piece := await self.read_chunk():
                answer.body += piece
        else:
            answer.body = await self.read_exactly(int(answer.headers["content-length"]))
        return answer

    async def ask(
        self,
        path: str,
        body: Any = None,
        *,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        await self.send_request(path, body, method=method, headers=headers)
        return await self.read_answer(method=method or "POST")

    async def send_request(
        self, path: str, body: Any = None, *, method: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        await self.send(request_bytes(path, body, method=method, headers=headers))


def request_bytes(path: str, body: Any = None, *, method: str | None = None, headers: Mapping[str, str] | None = None) -> bytes:
    """A request as it goes over the wire: JSON unless `body` is bytes; GET without a body."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"host": "localhost"}
    if body is not None:
        fields |= {"content-type": "application/json", "content-length": str(len(data))}
    fields |= headers or {}
    lines = [f"{method or ('GET' if body is None else 'POST')} {path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


async def fill_without_reading(server: Server, client: Client, **headers: str) -> None:
    """Ask for more than any buffer holds, and come back when the answer has begun."""
    client.stream.socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
    await client.send_request(CHAT, ASK | {"stream": True}, headers=headers)
    await until(lambda: bool(server.runtime.running))


async def until(condition: Callable[[], bool]) -> None:
    """Let everybody else run until something is so."""
    while not condition():
        await trio.lowlevel.checkpoint()


@attrs.define
class Server:
    """A listener under test."""

    url: str
    port: int
    runtime: FakeRuntime
    api: Ref[Any]
    configuration: Configuration
    actors: Runtime
    """The same runtime by its real type."""

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            yield Client(stream)

    async def open_client(self) -> Client:
        """A client that the test closes itself."""
        return Client(await trio.open_tcp_stream("127.0.0.1", self.port))

    async def ask(self, path: str, body: Any = None, **options: Any) -> Answer:
        """One request on a connection of its own."""
        async with self.client() as client:
            return await client.ask(path, body, **options)

    def statistics(self) -> ApiStatistics:
        for actor in self.actors.statistics():
            if isinstance(actor.details, ApiStatistics):
                return actor.details
        raise AssertionError("the API actor has gone")

    async def wait_closed(self) -> None:
        """Wait until no connection is open."""
        await until(lambda: not self.statistics().open_connections)


@asynccontextmanager
async def serving(
    *scripts: Script,
    models: tuple[str, ...] = ("fake",),
    patience: float = PATIENCE,
    keepers: Keepers | None = None,
    auth: AuthSettings | None = None,
    **settings: Any,
) -> AsyncIterator[Server]:
    """A server that answers by script, on a free port. `settings` are those of `ServerSettings`."""
    configuration = msgspec.structs.replace(configured(**settings), auth=auth or AuthSettings())
    with trio.fail_after(patience), bind(configuration.server) as bound:
        async with open_actor_system() as system:
            runtime = FakeRuntime(system, *scripts, models=models)
            actors = cast(Runtime, runtime)
            api = start_api(actors, configuration, bound, keepers=keepers)
            yield Server(bound.url, bound.port, runtime, api, configuration, actors)


@asynccontextmanager
async def serving_toy(
    plan: RuntimePlan | None = None, *, auth: AuthSettings | None = None, **settings: Any
) -> AsyncIterator[Server]:
    """A server on the real actors, with the toy as its engine."""
    configuration = msgspec.structs.replace(configured(**settings), auth=auth or AuthSettings())
    with trio.fail_after(PATIENCE), bind(configuration.server) as bound:
        async with open_actors(plan or toy_plan()) as runtime:
            await runtime.load("toy")
            api = start_api(runtime, configuration, bound)
            yield Server(bound.url, bound.port, cast(FakeRuntime, None), api, configuration, runtime)
            await api.stop()


def configured(*, deadline_max_s: float = 3600.0, **settings: Any) -> Configuration:
    """A configuration with these settings of `ServerSettings`, on a free port of the loopback address."""
    server = msgspec.structs.replace(ServerSettings(port=0), **settings)
    return Configuration(server=server, scheduler=SchedulerSettings(deadline_max_s=deadline_max_s))
