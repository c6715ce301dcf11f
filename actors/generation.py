"""One generation from the side of whoever asked for it.

Not a generator: it yields across no nursery and no cancel scope, so it can be left at any point, and leaving it is one synchronous
message. As a context manager it is left at the end of the block; iterated over directly, when the loop is left in whatever way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

import trio

from tripower.actors.assistant_message import AssistantMessage, MessageBuilder
from tripower.actors.dialogue import AnswerEvent, Failed, GenerationEvent, GenerationFinished, GenerationRequest
from tripower.actors.models import ReadyModel
from tripower.actors.preparation import PLAIN_PLAN, Prepared, prepare, prepare_choice
from tripower.actors.queueing import MODEL_UNLOADING, AnswerParts, Leave
from tripower.actors.request_checks import check_request
from tripower.runtime.engine import AnswerPlan, AnswerReader, TextLayer
from tripower.runtime.kernel import DeadlineExceeded, Outlet, Ref, Unavailable

UNLOADS_MAX = 3
"""How often a request follows a model that is unloaded just before it arrives."""

FindReady = Callable[[str, float], Awaitable[ReadyModel]]
T = TypeVar("T")


async def follow_unloads(work: Callable[[], Awaitable[T]]) -> T:
    """Do something with a model, and again if the model is unloaded just before: it is loaded again for whoever asks."""
    for _ in range(UNLOADS_MAX):
        try:
            return await work()
        except Unavailable as error:
            if error.code != MODEL_UNLOADING:
                raise
    return await work()


class Generation:
    """An async context manager around one answer.

    Entering checks everything, loads the model if need be, and enqueues: it raises `InvalidRequest`, `NotFound`, `Overloaded`,
    `DeadlineExceeded` or `ModelRefused` before anything has been generated. Then take bursts with `receive`, or iterate over single
    events. Leaving frees the seat at the next step boundary.

    `like` is another choice of the same request, entered before: what is the same of both is not made again.

    Without a block, `async for event in generation` enters at its first event. Then an exception ends it too, a cancellation
    included, and a `break` does as soon as nothing refers to the generation any more: at once, if the loop had the only reference.
    """

    def __init__(self, find: FindReady, request: GenerationRequest, deadline: float, *, like: Generation | None = None) -> None:
        self.model = request.model
        self.prompt: tuple[int, ...] = ()
        """The prompt's tokens, once it is entered; empty where only the engine knows them."""
        self.text: TextLayer | None = None
        """What spells tokens; None where only the engine can."""
        self.plan: AnswerPlan = PLAIN_PLAN
        """How the answer is read; see `new_reader`."""
        self.seed = 0
        self.ended = False
        self.enqueued_at = 0.0
        """When it had a seat or a waiting place, on Trio's clock; 0 before."""
        self._end: GenerationFinished | Failed | None = None
        self._like = like
        self._prepared: Prepared | None = None
        self._find = find
        self._request = request
        self._deadline = deadline
        self._queued: deque[GenerationEvent] = deque()
        self._queue: Ref[Any] | None = None
        self._outlet: Outlet[GenerationEvent]
        self.ticket = -1
        self._entered = False
        self._direct = False
        self._token: trio.lowlevel.TrioToken

    async def __aenter__(self) -> Self:
        assert not self._entered, "a generation is entered once"
        self._entered = True
        self._token = trio.lowlevel.current_trio_token()
        check_request(self._request)
        await follow_unloads(self._enqueue)
        return self

    async def _enqueue(self) -> None:
        """Find the model and a place in its queue. Raises `Unavailable` (`model_unloading`) when the model was leaving meanwhile."""
        ready = await self._find(self._request.model, self._deadline)
        prepared = self._prepared = await self._prepare(ready)
        self.prompt, self.text, self.plan, self.seed = prepared.prompt, prepared.text, prepared.plan, prepared.seed
        self._outlet = Outlet(prepared.room)
        parts = AnswerParts(self._outlet, prepared.constraint, prepared.drafter)
        enqueued = await ready.queue.ask(prepared.message, deadline=self._deadline, live=parts)
        self._queue, self.ticket = ready.queue, enqueued.ticket
        self.enqueued_at = trio.current_time()

    async def _prepare(self, ready: ReadyModel) -> Prepared:
        like = self._like
        if like is not None and like._prepared is not None and like.text is getattr(ready.loaded, "text", None):
            return await prepare_choice(like._prepared, self._request)
        return await prepare(ready, self._request)

    @property
    def prompt_tokens(self) -> int:
        """How many tokens the prompt has, once it is entered; 0 where only the engine can count them."""
        return len(self.prompt)

    @property
    def end(self) -> GenerationFinished | Failed | None:
        """How the answer ended, whether that has been received yet or not; None while it goes on, and where it was left."""
        if self._end is None and self._queue is not None:
            last = self._outlet.newest
            return last if isinstance(last, GenerationFinished | Failed) else None
        return self._end

    def new_reader(self) -> AnswerReader:
        """What takes the answer's text, piece by piece, to what is said, what is thought, and what is to be called."""
        return self.plan.new_reader()

    async def message(self) -> AssistantMessage:
        """The whole answer in its parts; enters first where that has not happened. Blocks until its end.

        Raises what entering raises, and the error of an answer that fails. Not to be mixed with iterating.
        """
        builder: MessageBuilder | None = None
        async for event in self:
            builder = builder or MessageBuilder(self.new_reader())
            builder.take(event)
        assert builder is not None, "the generation has been read before"
        return builder.message()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave(expired=isinstance(error, DeadlineExceeded) or trio.current_time() >= self._deadline)

    def leave(self, *, expired: bool = False) -> None:
        """Want nothing more. Synchronous, idempotent."""
        if not self.ended:
            self.ended = True
            self._queued.clear()
            if self._queue is not None:
                _leave(self._queue, self._outlet, Leave(self.ticket, expired))

    async def aclose(self) -> None:
        """`leave`, under the name that `contextlib.aclosing` calls. Always a checkpoint."""
        self.leave()
        await trio.lowlevel.checkpoint()

    def __del__(self) -> None:
        # Forgotten without leaving. The collector may call this on any thread, and after the loop has ended.
        if self._queue is not None and not self.ended:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(_leave, self._queue, self._outlet, Leave(self.ticket))

    async def receive(self) -> list[GenerationEvent]:
        """Everything that has come since, at least one event. The last event of all is `GenerationFinished` or `Failed`.

        Blocks; raises `DeadlineExceeded` at the deadline. Not to be called after the end.
        """
        assert not self.ended, "the generation has ended"
        events = await self._receive_in_time()
        last = events[-1]
        if isinstance(last, GenerationFinished | Failed):
            self.ended, self._end = True, last
        return events

    async def _receive_in_time(self) -> list[GenerationEvent]:
        if self._deadline >= trio.current_effective_deadline():
            return await self._outlet.receive()
        with trio.CancelScope(deadline=self._deadline):
            return await self._outlet.receive()
        self.leave(expired=True)
        raise DeadlineExceeded("the deadline passed before the answer was complete")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnswerEvent:
        """The next single event. Raises the error of `Failed`, and stops after the end."""
        if not self._entered:
            self._direct = True
        try:
            return await self._next()
        except BaseException:
            if self._direct:
                self.leave()
            raise

    async def _next(self) -> AnswerEvent:
        if not self._entered:
            await self.__aenter__()
        if not self._queued:
            if self.ended:
                raise StopAsyncIteration
            self._queued.extend(await self.receive())
        else:
            await trio.lowlevel.checkpoint()
        event = self._queued.popleft()
        if isinstance(event, Failed):
            raise event.error()
        return event


def _leave(queue: Ref[Any], outlet: Outlet[GenerationEvent], message: Leave) -> None:
    outlet.leave()
    queue.control(message)
