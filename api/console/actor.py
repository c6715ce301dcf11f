"""The console's actor: accepts whoever may look inside, and gives each a connection of its own.

It lives beside what it looks at: nothing is served through it, a crash of it is no failure of the runtime, and its supervisor starts
it again on the same socket. It is there from before the first load until after the last unload.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress

import msgspec
import trio

from tripower.actors.runtime import Runtime
from tripower.api.console import peers
from tripower.api.console.connection import SEND_SECONDS, ConsoleConnection
from tripower.api.console.protocol import Hello, Refusal
from tripower.api.console.statistics import ConsoleFigures, ConsoleStatistics
from tripower.api.console.verb import Subject, Verb
from tripower.api.console.verbs import all_verbs
from tripower.api.http.exchange import Exchange
from tripower.api.http.listening.unix_socket import UnixSocket
from tripower.api.http.transport import Transport
from tripower.api.overview.collector import Collector
from tripower.api.version import VERSION
from tripower.runtime.kernel import Actor, Ref, Stop, Supervision

log = logging.getLogger("tripower.console")

CONNECTIONS_MAX = 32
PAUSE_SECONDS = 0.5
"""Pause after an accept that failed for want of descriptors or memory."""
SUPERVISION = Supervision(restarts_max=1_000_000, backoff_first=0.1, vital=False)
"""Started again as often as it takes: it never ends the runtime."""


class ConsoleActor(Actor[Stop]):
    """See the module. The socket stays with whoever opened it, so that a restart finds it listening."""

    def __init__(
        self, subject: Subject, opened: UnixSocket, verbs: Mapping[str, Verb], hello: Hello, figures: ConsoleFigures
    ) -> None:
        self._subject = subject
        self._socket = opened.socket
        self._path = opened.path
        self._hello = hello
        self._figures = figures
        self._verbs = verbs
        self._connections: set[ConsoleConnection] = set()

    async def on_start(self) -> None:
        self.start_soon(self._accept, name="accept")

    async def _accept(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                accepted, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                continue
            except OSError as error:
                log.error("the console cannot accept a connection: %s", error.strerror)
                await trio.sleep(PAUSE_SECONDS)
                continue
            try:
                self._welcome(accepted)
            except BaseException:
                accepted.close()
                raise

    def _welcome(self, accepted: socket.socket) -> None:
        peer = peers.peer_of(accepted)
        if not peers.may_attach(peer):
            log.warning("the console turned away process %d of user %d", peer.pid if peer else 0, peer.user if peer else 0)
            self._reject(accepted, "not_yours", "this console is for the process's own user")
        elif len(self._connections) >= CONNECTIONS_MAX:
            self._reject(accepted, "too_many_consoles", f"{CONNECTIONS_MAX} consoles are attached already: end one")
        else:
            self._figures.attached += 1
            log.info("a console attached%s", f" from process {peer.pid}" if peer else "")
            transport = Transport(accepted, send_seconds=SEND_SECONDS)
            connection = ConsoleConnection(transport, self._subject, self._verbs, self._hello, self._figures)
            self._connections.add(connection)
            self.start_soon(self._serve, connection, name="connection")

    def _reject(self, accepted: socket.socket, code: str, why: str) -> None:
        self._figures.rejected += 1
        with closing(accepted), suppress(OSError):
            accepted.setblocking(False)
            accepted.send(msgspec.json.encode(Refusal(0, code, why)) + b"\n")

    async def _serve(self, connection: ConsoleConnection) -> None:
        try:
            await connection.run()
        except Exception:
            log.exception("a console's connection failed")
        finally:
            self._connections.discard(connection)

    def statistics(self) -> ConsoleStatistics:
        return ConsoleStatistics(
            socket=str(self._path),
            connections=len(self._connections),
            open_calls=sum(connection.open_calls for connection in self._connections),
            attached=self._figures.attached,
            answered=self._figures.answered,
            refused=self._figures.refused,
            cut_off=self._figures.cut_off,
            rejected=self._figures.rejected,
        )


def start_console(
    runtime: Runtime,
    opened: UnixSocket,
    *,
    active: set[Exchange] | None = None,
    drain: Callable[[], None] | None = None,
    python: bool = True,
    url: str = "",
    models: Sequence[str] = (),
    overview: Collector | None = None,
    verbs: Mapping[str, Verb] | None = None,
) -> Ref[Stop]:
    """Answer consoles at an open socket from now on, until the runtime's actors end. Synchronous. See `Subject` for the options.

    `url` and `models` are what the process is known by; `verbs` are all there are, unless a test has its own.
    """
    subject = Subject(runtime=runtime, active=set() if active is None else active, drain=drain, python=python)
    if overview is not None:
        subject.overview = overview
    known = all_verbs() if verbs is None else verbs
    hello = Hello(
        version=VERSION,
        pid=os.getpid(),
        url=url,
        models=tuple(models),
        verbs=tuple(known),
        streams=tuple(name for name, verb in known.items() if verb.stream is not None),
        raw=tuple(name for name, verb in known.items() if verb.raw),
    )
    figures = ConsoleFigures()
    return runtime.system.spawn(
        lambda: ConsoleActor(subject, opened, known, hello, figures), name="console", supervision=SUPERVISION
    )
