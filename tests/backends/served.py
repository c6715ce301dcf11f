"""A served model for the contract suite: one runtime for each engine, opened once, in a Trio run of its own in a thread.

Tests that are marked as a `behaviour` are coroutines that run there, so that a model is loaded once and not for every test.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import attrs
import trio

from tests.api.serving import configured
from tripower.actors.dialogue import GenerationFinished
from tripower.actors.generation import Generation
from tripower.actors.queueing import QueueStatistics
from tripower.actors.runtime import open_actors, toy_plan
from tripower.api.embedding import EmbeddedRuntime, open_runtime
from tripower.api.http import bind, start_api
from tripower.runtime.configuration import Configuration, EngineSettings, ProxySettings, SchedulerSettings
from tripower.runtime.store import Store

PATIENCE = 300.0
SLOW_TOY = "toy:5000"
"""Five milliseconds a step: slow enough to be left in the middle."""
SCHEDULER = SchedulerSettings(batch_members=2, waiting=1)


@attrs.frozen
class Engine:
    """How a model is asked for, and what its engine is known to lack."""

    name: str
    source: str = ""
    """A reference; empty for the GGUF file that the suite is given."""
    unsupported: tuple[str, Any] = ("logit_bias", {1 << 40: 1.0})
    """An option that must be refused, by this name."""
    context: int = 0


@attrs.define(eq=False)
class Answer:
    """A whole answer."""

    text: str
    finished: GenerationFinished
    pieces: int


class Served:
    """The thread, its runtime and what a test needs of them."""

    def __init__(self, engine: Engine, file: Path | None, folder: Path) -> None:
        self.engine = engine
        self.runtime: EmbeddedRuntime
        self._file = file
        self._folder = folder
        self._ready = threading.Event()
        self._done = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self.error: BaseException | None = None
        self.left_over: list[Any] = []
        self._thread = threading.Thread(target=self._run, name=f"served {engine.name}")

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(PATIENCE), "the runtime did not open"
        if self.error is not None:
            raise self.error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        assert self._token is not None
        self._token.run_sync_soon(self._done.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive() and self.left_over == []
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:  # noqa: BLE001 - raised again where the test runs
            self.error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        async with AsyncExitStack() as stack:
            source = self.engine.source or str(self._file)
            if self.engine.name == "proxy":
                source = await stack.enter_async_context(upstream())
            configuration = Configuration(
                scheduler=SCHEDULER,
                engine=EngineSettings(backend=self.engine.name, threads=1, context=self.engine.context),
                proxy=ProxySettings(extensions=("ignore_eos",)),
            )
            async with open_runtime(configuration, models=[f"it={source}"], store=Store(self._folder)) as self.runtime:
                self._token = trio.lowlevel.current_trio_token()
                self._ready.set()
                await self._done.wait()
            self.left_over = self.runtime.statistics()

    def run(self, work: Callable[[Served], Awaitable[None]]) -> None:
        """Run a coroutine there. Blocks."""

        async def bounded() -> None:
            with trio.fail_after(PATIENCE):
                await work(self)
                await self.quiet()

        trio.from_thread.run(bounded, trio_token=self._token)

    # For coroutines there.

    def ask(self, text: str = "Count to ten.", **options: Any) -> Generation:
        """A greedy conversation of so many tokens, whatever end tokens come."""
        given = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True} | options
        return self.runtime.chat("it", [{"role": "user", "content": text}], **given)

    async def answer(self, text: str = "Count to ten.", **options: Any) -> Answer:
        pieces = []
        async with self.ask(text, **options) as generation:
            async for event in generation:
                pieces.append(event.text)
        assert isinstance(event, GenerationFinished)
        return Answer("".join(pieces), event, len(pieces))

    @property
    def figures(self) -> QueueStatistics:
        (queue,) = (each.details for each in self.runtime.statistics() if isinstance(each.details, QueueStatistics))
        return queue

    @staticmethod
    async def until(condition: Callable[[], bool]) -> None:
        """Let everybody else get on until something is so: threads too."""
        while not condition():
            await trio.to_thread.run_sync(lambda: None)

    async def quiet(self) -> None:
        """Wait until nothing is held any more; fails when the counters do not add up then."""

        def busy(queue: QueueStatistics) -> int:
            return queue.live + queue.gate.active + queue.gate.waiting + queue.step_running

        await self.until(lambda: not busy(self.figures))
        queue = self.figures
        assert queue.arrivals == queue.completed + queue.refused + queue.cancelled + queue.expired + queue.failed


@asynccontextmanager
async def upstream() -> AsyncIterator[str]:
    """A service of ours with the toy behind a real socket; gives its address as a source."""
    configuration = configured()
    with bind(configuration.server) as bound:
        async with open_actors(toy_plan(source=SLOW_TOY, members_max=2)) as runtime:
            await runtime.load("toy")
            api = start_api(runtime, configuration, bound)
            yield f"proxy:{bound.url}/v1#toy"
            await api.stop()


def behaviour(test: Callable[[Served], Awaitable[None]]) -> Callable[[Served], None]:
    """A test of the suite: a coroutine that runs beside the runtime."""

    @functools.wraps(test)
    def run(served: Served) -> None:
        served.run(test)

    return run
