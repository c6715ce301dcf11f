"""The choices of one request: several generations that begin, run and end together.

Each is a member of the batch of its own. All are entered before anything is read, so that a request has all its seats or waiting
places or is refused; leaving the block leaves all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

import trio

from tripower.actors.dialogue import Failed, GenerationEvent
from tripower.actors.generation import Generation
from tripower.actors.queueing import QueueStatistics
from tripower.actors.runtime import Runtime
from tripower.api.http.wire import Asked
from tripower.runtime.admission import places_max
from tripower.runtime.kernel import InvalidRequest, TripowerError

Burst = Sequence[tuple[int, Sequence[GenerationEvent]]]
"""What has come since, by choice."""


class Choices(Protocol):
    """An async context manager around the generations of one request, in the order of their choices."""

    generations: Sequence[Generation]

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    async def receive(self) -> Burst:
        """Everything that has come since, at least one event. Blocks. Not to be called after the end of all."""


def choices_of(runtime: Runtime, asked: Asked, deadline: float) -> Choices:
    """Nothing happens before they are entered; that raises what entering a generation raises."""
    if len(asked.requests) == 1:
        return OneChoice(runtime, asked, deadline)
    return SeveralChoices(runtime, asked, deadline)


def check_places(runtime: Runtime, asked: Asked) -> None:
    """Raise `InvalidRequest` for more choices than the model ever has places for: waiting would not help."""
    request, wanted = asked.requests[0], len(asked.requests)
    for actor in runtime.statistics():
        if isinstance(actor.details, QueueStatistics) and actor.details.model == request.model:
            gate = actor.details.gate
            places = places_max(request.caller, seats=gate.active_limit, waiting=gate.waiting_limit)
            if wanted > places:
                param = "n" if asked.n > 1 else "prompt"
                raise InvalidRequest(
                    f"{param}: {wanted} answers are more than the {places} that you may have here at once, seated and waiting; "
                    "send several requests one after the other",
                    param=param,
                )


class OneChoice:
    """The usual case, with nothing between the generation and whoever reads it."""

    def __init__(self, runtime: Runtime, asked: Asked, deadline: float) -> None:
        self._generation = runtime.generate(asked.requests[0], deadline=deadline)
        self.generations: Sequence[Generation] = (self._generation,)

    async def __aenter__(self) -> Self:
        await self._generation.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._generation.__aexit__(kind, error, traceback)

    async def receive(self) -> Burst:
        return ((0, await self._generation.receive()),)


class SeveralChoices:
    """A task for each choice puts what comes where the reader finds it, so that a step's tokens are one burst."""

    def __init__(self, runtime: Runtime, asked: Asked, deadline: float) -> None:
        self._runtime = runtime
        self._asked = asked
        self._deadline = deadline
        self._entered: list[Generation] = []
        self.generations: Sequence[Generation] = self._entered
        self._come: list[tuple[int, Sequence[GenerationEvent]]] = []
        self._news = trio.Event()
        self._error: Exception | None = None

    async def __aenter__(self) -> Self:
        try:
            for request in self._asked.requests:
                if request.choice == 0:
                    generation = self._runtime.generate(request, deadline=self._deadline)
                else:
                    first = self._entered[-request.choice]
                    generation = self._runtime.generate(request, deadline=self._deadline, like=first)
                await generation.__aenter__()
                self._entered.append(generation)
                if len(self._entered) == 1:  # now the model is there for certain
                    check_places(self._runtime, self._asked)
        except BaseException as error:
            await self._leave(error)
            raise
        self._nurseries = trio.open_nursery()
        nursery = self._nursery = await self._nurseries.__aenter__()
        for index, generation in enumerate(self._entered):
            nursery.start_soon(self._read, index, generation, name=f"choice {index}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._nursery.cancel_scope.cancel(reason="the answer is complete, or nobody wants it any more")
        try:
            await self._nurseries.__aexit__(None, None, None)  # its tasks raise nothing
        except BaseExceptionGroup:
            if error is None:  # else the block's own error, which may be the same cancellation, goes on by itself
                raise
        finally:
            await self._leave(error)

    async def _leave(self, error: BaseException | None) -> None:
        for generation in reversed(self._entered):
            await generation.__aexit__(type(error) if error is not None else None, error, None)

    async def _read(self, index: int, generation: Generation) -> None:
        try:
            while not generation.ended:
                events = await generation.receive()
                self._come.append((index, events))
                self._news.set()
        except TripowerError as error:
            self._come.append((index, [Failed.of(error)]))
            self._news.set()
        except Exception as error:  # noqa: BLE001 - raised where the answer is written
            self._error = error
            self._news.set()

    async def receive(self) -> Burst:
        if not self._come and self._error is None:
            await self._news.wait()
        self._news = trio.Event()
        if self._error is not None:
            raise self._error
        come, self._come = self._come, []
        return come
