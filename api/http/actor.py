"""The API actor owns the listener. It starts on sockets that were bound before any model was loaded, and ends by draining.

Each request is a task of its connection, which asks the other actors for itself; no request passes through this actor's inbox.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, assert_never

import attrs
import trio

from tripower.actors.runtime import Runtime
from tripower.api.http.application import Application
from tripower.api.http.auth.keyring import Keyring
from tripower.api.http.binding import BoundSockets
from tripower.api.http.exchange import Exchange
from tripower.api.http.figures import ApiStatistics
from tripower.api.http.listener import Listener
from tripower.api.http.observe.keepers import Keepers
from tripower.api.http.service import Service
from tripower.runtime.configuration import Configuration
from tripower.runtime.kernel import LATER, Actor, Ask, Envelope, Message, Overloaded, Ref

if TYPE_CHECKING:
    from tripower.api.overview.collector import Collector

log = logging.getLogger("tripower.http")

LAST_WORDS_SECONDS = 1.0
"""Time for interrupted requests to tell their clients, before their connections are cut."""


class Drain(Ask["Drained"], frozen=True):
    """Stop accepting, refuse new work, let running requests finish, interrupt the rest. Answered when no connection is left.

    A second one may only shorten the time that the first allowed.
    """

    timeout_seconds: float | None = None
    """Time for running requests; None takes `server.drain_timeout_s`, 0 interrupts at once."""


class Drained(Message, frozen=True):
    """No connection is open. So many requests had to be interrupted."""

    interrupted: int


class ReloadKeys(Ask["KeysReloaded"], frozen=True):
    """Read the API keys again. Refused with `InvalidConfiguration` when they cannot be used; the old ones stay in force then."""


class KeysReloaded(Message, frozen=True):
    """So many keys are in force."""

    keys: int


Command = Drain | ReloadKeys


class ApiActor(Actor[Command]):
    """See the module. The sockets stay with whoever bound them until a drain closes them, so that a restart finds them open."""

    def __init__(
        self,
        runtime: Runtime,
        configuration: Configuration,
        bound: BoundSockets,
        keepers: Keepers,
        keyring: Keyring,
        active: set[Exchange],
        overview: Collector | None = None,
    ) -> None:
        self._runtime = runtime
        self._drain_seconds = configuration.server.drain_timeout_s
        self._keepers = keepers
        self._url = bound.url
        self._keyring = keyring
        service = Service(runtime, configuration.server, configuration.scheduler, keepers, keyring, active)
        if overview is not None:
            service = attrs.evolve(service, overview=overview)
        self._application = Application(service)
        self._listener = Listener(self._application, bound.sockets, configuration.server, bound.certificates)
        self._listening = trio.CancelScope()
        self._patience = trio.CancelScope()
        self._waiting: list[Envelope] = []
        self._interrupted = 0
        self._drained: Drained | None = None

    async def on_start(self) -> None:
        self.start_soon(self._listen, name="listener")

    async def on_message(self, message: Command) -> Any:
        match message:
            case Drain():
                return self._drain(message)
            case ReloadKeys():
                keys = await trio.to_thread.run_sync(self._keyring.read)  # a disk may take its time
                return KeysReloaded(self._keyring.take(keys))
        assert_never(message)

    async def _listen(self) -> None:
        with self._listening:
            await self._listener.run()

    def _drain(self, message: Drain) -> Any:
        seconds = self._drain_seconds if message.timeout_seconds is None else message.timeout_seconds
        self._patience.deadline = min(self._patience.deadline, trio.current_time() + seconds)
        if self._drained is not None:
            return self._drained
        if not self._waiting:
            self._runtime.begin_drain()
            self._listener.drain()
            self.start_soon(self._run_drain, name="drain")
        self._waiting.append(self.envelope)
        return LATER

    async def _run_drain(self) -> None:
        with self._patience:
            await self._listener.wait_quiet()
        if self._patience.cancelled_caught:
            stopping = Overloaded("the server is shutting down", code="draining", retry_after=5.0)
            for exchange in list(self._application.active):
                self._interrupted += 1
                exchange.interrupt(stopping)
            with trio.move_on_after(LAST_WORDS_SECONDS):
                await self._listener.wait_quiet()
            self._listening.cancel(reason="the drain is over")
            await self._listener.wait_quiet()
        self._drained = Drained(self._interrupted)
        for envelope in self._waiting:
            envelope.answer(self._drained)

    def statistics(self) -> ApiStatistics:
        audit = self._keepers.audit
        return self._keepers.figures.statistics(
            url=self._url,
            draining=self._listener.draining,
            open_connections=self._listener.open_connections,
            active_requests=len(self._application.active),
            accepted_connections=self._listener.accepted,
            audit_failures=0 if audit is None else audit.lost,
        )


def start_api(
    runtime: Runtime,
    configuration: Configuration,
    bound: BoundSockets,
    *,
    name: str = "api",
    keepers: Keepers | None = None,
    active: set[Exchange] | None = None,
    overview: Collector | None = None,
) -> Ref[Command]:
    """Serve a runtime on bound sockets from now on. Synchronous; requests are answered as soon as the loop turns.

    `active` will hold the requests whose answer is not complete, for others to look at, and `overview` is what others look with. End it
    with `await ref.ask(Drain())`, then leave the runtime. Raises `InvalidConfiguration` for keys that cannot be used.
    """
    keyring = Keyring(configuration.auth)
    told = Keepers() if keepers is None else keepers
    exchanges = set[Exchange]() if active is None else active
    return runtime.system.spawn(lambda: ApiActor(runtime, configuration, bound, told, keyring, exchanges, overview), name=name)
