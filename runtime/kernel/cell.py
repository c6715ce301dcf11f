"""An actor in its place: inboxes, loop, supervision, figures.

The cell outlives the instances of its actor; addresses point here. Three ideas carry its speed and its promises.

*Parked tasks, not channels.* The receiver, and everybody who waits for an answer, is a parked task that is woken by hand.

*One scope, moved.* A handler must stop at its message's deadline. Opening a scope per message costs more than the message, so there
is one long-lived scope whose deadline is moved; it is replaced only after it has fired. A caller that gives up cancels the scope
only while its message is the one in hand.

*Everyone is answered.* Whatever ends the instance (stop, crash, cancellation) goes through `_answer_gone`, which answers what is in
hand, queued, waiting for room or kept for later. A dead envelope frees its place at once.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import trio

from tripower.runtime.kernel.actor import LATER, Actor, Ref, Seen
from tripower.runtime.kernel.envelope import Envelope, Note
from tripower.runtime.kernel.errors import ActorGone, DeadlineExceeded, InboxFull, TripowerError
from tripower.runtime.kernel.messages import Message, Stop
from tripower.runtime.kernel.recording import NEVER_STARTED, Handled, Outcome, Recording, is_long
from tripower.runtime.kernel.statistics import ActorStatistics
from tripower.runtime.kernel.supervision import Strategy, Supervision

if TYPE_CHECKING:
    from tripower.runtime.kernel.system import ActorSystem

log = logging.getLogger("tripower.kernel")

BURST = 16
"""Messages handled between two checkpoints, so that a busy actor does not starve the loop."""
BURST_SECONDS = 0.005
"""The same bound in time, for handlers that compute."""


class ActorFailed(Exception):
    """An actor crashed and its supervision says that the parent must know."""


class Cell:
    """The place of one actor. Used by `Ref`, `Actor` and `ActorSystem`; everything here runs in the actor's Trio loop."""

    def __init__(
        self, factory: Callable[[], Actor[Any]], *, name: str, parent: str, supervision: Supervision, system: ActorSystem
    ) -> None:
        self.name = name
        self.parent = parent
        self.state = "starting"
        self.current: Envelope | None = None
        self.recording: Recording | None = None
        self.task: trio.lowlevel.Task | None = None
        """What it lives in, until it has ended."""
        self._factory = factory
        self._supervision = supervision
        self._system = system
        self._actor: Actor[Any] | None = None
        self._understands: frozenset[type[Message]] = frozenset()
        self._long: frozenset[type[Message]] = frozenset()
        self._inbox: deque[Envelope] = deque()
        self._inbox_max = 1
        self._waiting: OrderedDict[Envelope, None] = OrderedDict()
        self._control: deque[Envelope] = deque()
        self._later: set[Envelope] = set()
        self._receiver: trio.lowlevel.Task | None = None
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._open = True
        self._stop_asked = trio.Event()
        self._given_up = False
        self._ended = trio.Event()
        self.since = 0.0
        """When the message in hand, or the one before, was taken from its inbox."""
        self._inbox_peak = 0
        self._received = self._handled = self._refused = self._expired = self._abandoned = self._gone = 0
        self._crash_times: list[float] = []
        self._crashes = self._restarts = 0

    # Sending. All synchronous; called by `Ref` in the sender's task.

    def post(self, envelope: Envelope) -> None:
        """Queue an ask; beyond the inbox's bound it waits for room, while its sender is parked for the answer anyway."""
        if not self.post_if_room(envelope):
            if self.recording is not None:
                envelope.sent = self.recording.clock()
            self.wait_for_room(envelope)

    def wait_for_room(self, envelope: Envelope) -> None:
        """Line up behind a full inbox. The sender must park next."""
        self._waiting[envelope] = None

    def post_if_room(self, envelope: Envelope) -> bool:
        """Queue a message if there is room and nobody waits for it."""
        if type(envelope.message) not in self._understands:
            self._refuse_unknown(envelope)
        if not self._open:
            raise ActorGone(f"{self.name} is {self.state}")
        inbox = self._inbox
        depth = len(inbox)
        self._received += 1
        if depth >= self._inbox_max or self._waiting:
            return False
        inbox.append(envelope)
        if depth >= self._inbox_peak:
            self._inbox_peak = depth + 1
        receiver = self._receiver
        if receiver is not None:
            self._receiver = None
            trio.lowlevel.reschedule(receiver)
        elif self.recording is not None and envelope.asks:  # where nobody waited, it is taken at once
            envelope.sent = self.recording.clock()
        return True

    def post_nowait(self, envelope: Envelope) -> None:
        if self.recording is not None:
            self.recording.sent(envelope, "tell")
        if not self.post_if_room(envelope):
            self._received -= 1
            if self.recording is not None:
                self.recording.over(self.name, envelope, NEVER_STARTED, Outcome.FULL)
            raise InboxFull(f"{self.name} has {self._inbox_max} messages waiting")

    def post_control(self, envelope: Envelope) -> bool:
        if type(envelope.message) is Stop:
            return self.begin_stop()
        if type(envelope.message) not in self._understands:
            self._refuse_unknown(envelope)
        if not self._open:
            return False
        self._control.append(envelope)
        self._received += 1
        if self.recording is not None:
            self.recording.sent(envelope, "control")
        if self._receiver is not None:
            self._wake()
        return True

    def abandon(self, envelope: Envelope) -> None:
        """Whoever asked has gone: free its place now, or cancel its handler if it is in hand."""
        if envelope is self.current:
            self._given_up = True
            self._scope.cancel(reason="the caller gave up")
            return
        self._count_left(envelope)
        if envelope in self._later:
            self._later.discard(envelope)
        elif envelope in self._waiting:
            del self._waiting[envelope]
        else:
            self._inbox.remove(envelope)
            self._admit_waiting()
        if envelope.on_abandon is not None:
            envelope.on_abandon()

    def settle(self, envelope: Envelope, outcome: str) -> None:
        """An ask that was kept for later is answered now: `Outcome.ANSWERED`, or an error's code."""
        if envelope in self._later:
            self._later.discard(envelope)
            if self.recording is not None:
                self.recording.over(self.name, envelope, NEVER_STARTED, outcome)
            if outcome != Outcome.ANSWERED:
                self._refused += 1
            else:
                self._handled += 1

    def _count_left(self, envelope: Envelope) -> None:
        """Whoever asked has gone: because its time was over, or for reasons of its own."""
        expired = envelope.deadline <= trio.current_time()
        if expired:
            self._expired += 1
        else:
            self._abandoned += 1
        if self.recording is not None:
            started = self.since if envelope is self.current else NEVER_STARTED
            self.recording.over(self.name, envelope, started, Outcome.EXPIRED if expired else Outcome.ABANDONED)

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    async def stop(self) -> None:
        self.begin_stop()
        await self._ended.wait()

    def begin_stop(self) -> bool:
        """Take nothing more, and end when what is on the control inbox has been handled. False when it has ended, or will."""
        if self._stop_asked.is_set() or self._ended.is_set():
            return False
        self._stop_asked.set()
        self._open = False
        self._control.append(Note(Stop(), None, self))
        if self._receiver is not None:
            self._wake()
        return True

    def _wake(self) -> None:
        receiver, self._receiver = self._receiver, None
        assert receiver is not None
        trio.lowlevel.reschedule(receiver)

    def _admit_waiting(self) -> None:
        """Move whoever waits for room into the inbox. A `tell` ends here; an `ask` keeps waiting, for its answer."""
        waiting = self._waiting
        while waiting and len(self._inbox) < self._inbox_max:
            envelope, _ = waiting.popitem(last=False)
            self._inbox.append(envelope)
            if not envelope.asks:
                envelope.give(None)

    def _refuse_unknown(self, envelope: Envelope) -> None:
        if self._understands or self._actor is not None:
            raise TypeError(f"{self.name} does not understand {type(envelope.message).__name__}")
        raise ActorGone(f"{self.name} has not started")

    # Children.

    def spawn(self, factory: Callable[[], Actor[Any]], *, name: str, supervision: Supervision | None) -> Ref[Any]:
        assert self._nursery is not None, "an actor has children only while it lives"
        return self._system.place(factory, name=name, parent=self.name, supervision=supervision, nursery=self._nursery)

    def start_soon(self, work: Callable[..., Awaitable[object]], *arguments: Any, name: str) -> None:
        assert self._nursery is not None, "an actor has tasks only while it lives"
        self._nursery.start_soon(work, *arguments, name=f"{self.name}/{name}")

    # Living. One task.

    def prepare(self) -> None:
        """Make an instance; the first so early that messages can be sent before its task has run. Raises what the factory raises."""
        actor = self._factory()
        actor._cell = self
        self._actor = actor
        self._system.on_instance(self.name, actor)
        self._understands = actor.understands
        self._long = frozenset(filter(is_long, actor.understands))
        self._inbox_max = actor.inbox_max

    async def run(self) -> None:
        """Keep an instance alive as the supervision says. Raises `ActorFailed` to escalate."""
        self.task = trio.lowlevel.current_task()
        crashed = False
        try:
            while True:
                try:
                    if crashed:
                        self.prepare()
                        self._restarts += 1
                        self._open = True
                    await self._live()
                    return
                except Exception as error:  # noqa: BLE001 - a crash is whatever the actor, or its factory, did not expect
                    crashed = True
                    pause = self._decide_after_crash(error)
                except BaseExceptionGroup as group:  # cancelled from outside, and crashed over it: nobody is there to decide
                    cancelled, crash = group.split(trio.Cancelled)
                    if cancelled is None or not isinstance(crash, Exception):
                        raise
                    self._note_crash(crash)
                    raise cancelled from None
                if pause is None:
                    return
                with trio.move_on_after(pause):
                    await self._stop_asked.wait()
                if self._stop_asked.is_set():
                    return
        finally:
            self._open = False
            if self.state != "failed":
                self.state = "ended"
            self._answer_gone()
            self._ended.set()
            self._system.forget(self)
            self._let_go()

    def _let_go(self) -> None:
        """What an actor held is free at its end: addresses live on, and a cell in a cycle would keep it until a collection."""
        self.task = None
        self._actor = None
        self._factory = _no_successor

    def _note_crash(self, error: Exception) -> None:
        self._crashes += 1
        if self.recording is not None:
            self.recording.crashed(self.name, error)
        log.error("%s crashed: %r", self.name, error, exc_info=error)

    def _decide_after_crash(self, error: Exception) -> float | None:
        """Seconds to wait before a restart, or None to stay down. Raises `ActorFailed` when the parent must decide."""
        self._note_crash(error)
        now = trio.current_time()
        self._crash_times.append(now)
        pause = None
        if self._supervision.strategy is Strategy.RESTART:
            pause = self._supervision.pause_seconds(self._crash_times, now)
            if pause is not None:
                self.state = "restarting"
                return pause
        if self._supervision.strategy is Strategy.STOP:
            self.state = "failed"
            return None
        raise ActorFailed(f"{self.name} crashed") from error

    async def _live(self) -> None:
        """One instance from start to end."""
        actor = self._actor
        assert actor is not None
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    await actor.on_start()
                    self.state = "alive"
                    await self._serve(actor)
                finally:
                    self._open = False
                    self._answer_gone()
                    self.state = "ending"
                    with trio.move_on_after(actor.end_seconds, shield=True):
                        await actor.on_end()
                nursery.cancel_scope.cancel(reason=f"{self.name} ended")
        finally:
            self._open = False
            self._answer_gone()
            self._nursery = None

    async def _serve(self, actor: Actor[Any]) -> None:
        """Handle messages until `Stop`, opening a new scope whenever the old one has fired."""
        while True:
            with trio.CancelScope() as scope:
                self._scope = scope
                if await self._serve_in(scope, actor):
                    return
            self.current = None

    async def _serve_in(self, scope: trio.CancelScope, actor: Actor[Any]) -> bool:
        """The loop. True at `Stop`; False when `scope` was cancelled and must be replaced."""
        inbox, control, waiting = self._inbox, self._control, self._waiting
        on_message, now = actor.on_message, trio.lowlevel.current_clock().current_time
        me, wait, abort = trio.lowlevel.current_task(), trio.lowlevel.wait_task_rescheduled, self._abort_park
        name, long = self.name, self._long
        keep: Callable[[Handled], None] | None = None
        scope_deadline = math.inf
        burst = 0
        pause_at = math.inf
        self._given_up = False
        # `cancel_called` reads the clock: ask only when something can have fired.
        while not ((scope_deadline != math.inf or self._given_up) and scope.cancel_called):
            if burst >= BURST or self.since > pause_at:
                burst, pause_at = 0, math.inf
                await trio.lowlevel.checkpoint()
                continue
            if control:
                envelope = control.popleft()
                if type(envelope.message) is Stop:
                    return True
            elif inbox:
                envelope = inbox.popleft()
                if waiting:
                    self._admit_waiting()
            else:
                self._receiver = me
                await wait(abort)
                burst = 0
                continue
            deadline = envelope.deadline
            self.since = time = now()
            if not burst:
                pause_at = time + BURST_SECONDS
            burst += 1
            if deadline <= time:
                self._expired += 1
                if self.recording is not None:
                    self.recording.over(self.name, envelope, NEVER_STARTED, Outcome.EXPIRED)
                envelope.fail(DeadlineExceeded(f"the deadline passed while the request waited for {self.name}"))
                continue
            if deadline != scope_deadline:
                scope.deadline = scope_deadline = deadline
            self.current = envelope
            try:
                answer = await on_message(envelope.message)
            except TripowerError as error:
                self.current = None
                self._refused += 1
                if self.recording is not None:
                    self.recording.over(self.name, envelope, time, error.code)
                if not envelope.fail(error) and not envelope.asks:
                    log.warning("%s refused %s: %s", self.name, type(envelope.message).__name__, error)
            except (trio.Cancelled, BaseExceptionGroup):  # a handler with a nursery puts its `Cancelled` into a group
                self._count_cancelled(scope, envelope)
                raise
            else:
                self.current = None
                if answer is LATER:
                    if self.recording is not None:
                        self.recording.over(self.name, envelope, time, Outcome.LATER)
                    self._keep(envelope)
                else:
                    self._handled += 1
                    recording = self.recording
                    if recording is not None:
                        if recording.keep is not keep:  # another one listens, or the same to more
                            keep, clock, number = recording.keep, recording.clock, recording.number
                        if keep is None or (long and type(envelope.message) in long):
                            recording.over(name, envelope, time)
                        else:
                            task = envelope._task
                            keep((number(), envelope.sent, task and task.name, name, type(envelope.message), time, clock()))
                    if envelope.asks and not envelope.give(answer):
                        actor.on_undelivered(envelope.message, answer)
        return False

    def _keep(self, envelope: Envelope) -> None:
        """A handler wants to answer later, if it has not done so already, and if the caller has not left while it ran."""
        if envelope.waiting:
            self._later.add(envelope)
        elif self._given_up:
            self._count_left(envelope)
            if envelope.on_abandon is not None:
                envelope.on_abandon()
        else:
            self._handled += 1

    def _count_cancelled(self, scope: trio.CancelScope, envelope: Envelope) -> None:
        """A handler was cancelled: by its caller, by its deadline, or from outside (which `_answer_gone` will answer)."""
        if envelope.asks and not envelope.waiting:
            self._count_left(envelope)
        elif scope.cancel_called and envelope.deadline <= trio.current_time():
            self._expired += 1
            if self.recording is not None:
                self.recording.over(self.name, envelope, self.since, Outcome.EXPIRED)
            envelope.fail(DeadlineExceeded(f"the deadline passed while {self.name} handled the request"))
        else:
            return
        self.current = None

    def _abort_park(self, _raise_cancel: Any) -> trio.lowlevel.Abort:
        self._receiver = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _answer_gone(self) -> None:
        """Answer everyone who waits with `ActorGone`. Idempotent."""
        current, self.current = self.current, None
        left = [envelope for envelope in (current,) if envelope is not None]
        left += [*self._later, *self._inbox, *self._waiting]
        left += [envelope for envelope in self._control if type(envelope.message) is not Stop]
        for queue in (self._later, self._inbox, self._waiting, self._control):
            queue.clear()
        self._gone += len(left)
        for envelope in left:
            if self.recording is not None:
                self.recording.over(self.name, envelope, self.since if envelope is current else NEVER_STARTED, Outcome.GONE)
            envelope.fail(ActorGone(f"{self.name} ended before it answered"))
            if isinstance(envelope, Note) and envelope.on_dropped is not None:
                envelope.on_dropped()

    # Introspection.

    def look(self, read: Callable[[Any], Seen]) -> Seen | None:
        """What `read` makes of the instance at this moment; None while there is none. It changes nothing. Synchronous."""
        actor = self._actor
        return None if actor is None or self.state in ("starting", "restarting") else read(actor)

    def held(self) -> list[tuple[Envelope, str, float]]:
        """Messages that wait here (`queued`), are in hand (`handled`) or kept (`later`), and when the handler began. Synchronous."""
        queued = [each for each in (*self._control, *self._inbox, *self._waiting) if type(each.message) is not Stop]
        held = [(each, Outcome.LATER, NEVER_STARTED) for each in self._later] + [
            (each, Outcome.QUEUED, NEVER_STARTED) for each in queued
        ]
        return held if self.current is None else [(self.current, Outcome.HANDLED, self.since), *held]

    def askers(self) -> list[tuple[trio.lowlevel.Task, str]]:
        """The tasks that wait here, for an answer or for room, each with the type of its message. Synchronous."""
        envelopes = [*self._later, *self._inbox, *self._waiting]
        if self.current is not None:
            envelopes.append(self.current)
        return [(each._task, type(each.message).__name__) for each in envelopes if each._task is not None]

    def statistics(self, *, details: bool = True) -> ActorStatistics:
        current = self.current
        actor = self._actor
        told = details and actor is not None and self.state not in ("starting", "restarting")
        return ActorStatistics(
            name=self.name,
            kind=type(actor).__name__,
            parent=self.parent,
            state=self.state if self.state != "alive" else "handling" if current else "idle",
            message=type(current.message).__name__ if current else None,
            handling_seconds=trio.current_time() - self.since if current else 0.0,
            deadline_left=current.deadline - trio.current_time() if current and current.deadline < math.inf else None,
            inbox=len(self._inbox),
            inbox_max=self._inbox_max,
            inbox_peak=self._inbox_peak,
            waiting=len(self._waiting),
            control=len(self._control),
            pending=len(self._later),
            received=self._received,
            handled=self._handled,
            refused=self._refused,
            expired=self._expired,
            abandoned=self._abandoned,
            gone=self._gone,
            crashes=self._crashes,
            restarts=self._restarts,
            details=actor.statistics() if told and actor is not None else None,
            vital=self._supervision.vital,
        )


def _no_successor() -> Actor[Any]:
    raise AssertionError("an actor that has ended for good is not started again")
