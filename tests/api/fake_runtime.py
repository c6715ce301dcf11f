"""A runtime whose answers are written down beforehand: which texts, after which pauses, with which end.

It has the shape of `tripower.actors.runtime.Runtime` as far as the HTTP border uses it. Everything else about the border is real.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace, TracebackType
from typing import Any, Self, cast

import attrs
import trio

from tripower.actors.dialogue import (
    Failed,
    GenerationEvent,
    GenerationFinished,
    GenerationRequest,
    GenerationStarted,
    Timings,
    TokenChunk,
    Usage,
)
from tripower.actors.models import ModelCard, ReadyModel
from tripower.actors.runtime import Health
from tripower.backends.toy import ToyText
from tripower.runtime.engine import AnswerPlan, AnswerReader, EngineInfo, LoadedModel, PlainReader, StepEngine, TextLayer
from tripower.runtime.kernel import NEVER, ActorStatistics, ActorSystem, NotFound, Overloaded, Ref, TripowerError

PROMPT_TOKENS = 3
Step = float | trio.Event | BaseException | Sequence[GenerationEvent]
"""A pause in seconds (`math.inf` for ever) or until something happens, an error that `receive` raises, or a burst of events."""


def tokens(*texts: str) -> list[GenerationEvent]:
    """One burst of tokens with these texts."""
    return [TokenChunk(number, text) for number, text in enumerate(texts)]


def finished(reason: str = "stop", *, held: str = "", generated: int = 0) -> list[GenerationEvent]:
    """The regular end; `held` was held back until now."""
    return [GenerationFinished(reason, held, Usage(PROMPT_TOKENS, generated), Timings(0.5, 0.25, 2.0))]


def failed(code: str = "device_failed", status: int = 500) -> list[GenerationEvent]:
    """The end by an error."""
    return [Failed(code, "the device failed", status, "server_error")]


@attrs.define
class Script:
    """What happens to a request: a refusal at the door, or steps."""

    steps: Sequence[Step] = ()
    refusal: TripowerError | None = None
    before: float = 0.0
    """Seconds until the request is accepted or refused."""
    reader: Callable[[], AnswerReader] = PlainReader
    """What reads the answer."""


HELLO = Script([[GenerationStarted(0.5)], tokens("Hel", "lo"), tokens(" there") + finished(generated=3)])


BIG = "x" * 65_536
"""A token that fills buffers."""


def never_ending() -> Script:
    """More than any client takes without reading; with pauses, so that virtual time moves."""
    return Script([step for _ in range(2000) for step in (tokens(BIG), 0.001)] + [finished()])


class FakeGeneration:
    """One answer by script."""

    def __init__(self, runtime: FakeRuntime, request: GenerationRequest, deadline: float, script: Script) -> None:
        self.model = request.model
        self.seed = 7
        self.ended = False
        self.ticket = -1
        self.enqueued_at = trio.current_time()
        self.end: GenerationFinished | Failed | None = None
        self.text: TextLayer | None = runtime.text
        self.prompt = (1, 2, 3)
        self.prompt_tokens = PROMPT_TOKENS
        self.plan = AnswerPlan(new_reader=script.reader)
        self.deadline = deadline
        self._runtime = runtime
        self._script = script
        self._steps = iter(script.steps)

    async def __aenter__(self) -> Self:
        await trio.sleep(self._script.before)
        if self._script.refusal is not None:
            raise self._script.refusal
        if self._runtime.draining:
            raise Overloaded("draining", code="draining", retry_after=5.0)
        self._runtime.running.append(self)
        self._runtime.changed.set()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._runtime.running.remove(self)
        self._runtime.ended.append(kind)
        self._runtime.changed.set()

    def new_reader(self) -> AnswerReader:
        return self.plan.new_reader()

    async def receive(self) -> list[GenerationEvent]:
        events = await self._receive()
        last = events[-1]
        if isinstance(last, GenerationFinished | Failed):
            self.ended, self.end = True, last
        return events

    async def _receive(self) -> list[GenerationEvent]:
        while True:
            step = next(self._steps)
            began = trio.current_time()
            try:
                if isinstance(step, BaseException):
                    raise step
                if isinstance(step, trio.Event):
                    await step.wait()
                elif isinstance(step, float | int):
                    await trio.sleep(max(0.0, step))
                else:
                    await trio.lowlevel.checkpoint()
                    return list(step)
            except trio.Cancelled:
                # A step that was interrupted, say for a keep-alive comment, goes on afterwards. Nothing of it is lost.
                rest = step - (trio.current_time() - began) if isinstance(step, float | int) else step
                self._steps = iter([rest, *self._steps])
                raise


class FakeRuntime:
    """Answers the n-th request by the n-th script, and all later ones by the last."""

    def __init__(self, system: ActorSystem, *scripts: Script, models: Sequence[str] = ("fake",)) -> None:
        self.system = system
        self.scripts = list(scripts) or [HELLO]
        self.requests: list[GenerationRequest] = []
        self.running: list[FakeGeneration] = []
        self.ended: list[type[BaseException] | None] = []
        """How each generation's block was left."""
        self.deadlines: list[float] = []
        self.draining = False
        self.started_at = trio.current_time()
        self.health_now = Health("ok")
        self.changed = trio.Event()
        self._models = models
        self.text: TextLayer = ToyText()
        """Of every model."""
        self.vocabulary_size = 257
        self.delegate: Any = None
        """What every model is instead, if it is not None."""
        self.unloaded: list[str] = []

    async def ready(self, name: str, deadline: float = NEVER) -> ReadyModel:
        """A model that has a text layer, and an engine that can tell of itself and no more."""
        await trio.lowlevel.checkpoint()
        if self.draining:
            raise Overloaded("draining", code="draining", retry_after=5.0)
        if name not in self._models:
            raise NotFound(f"there is no model {name[:200]!r}", param="model")
        info = EngineInfo(
            backend="fake", architecture="fake", context_max=512, vocabulary_size=self.vocabulary_size, sequences_max=1
        )
        engine = cast(StepEngine, SimpleNamespace(info=info))
        return ReadyModel(name, cast(Ref[Any], None), self.delegate or LoadedModel(engine, self.text))

    async def unload(self, name: str, *, deadline: float = NEVER) -> None:
        await self.ready(name, deadline)
        self.unloaded.append(name)

    def generate(self, request: GenerationRequest, *, deadline: float = NEVER, like: Any = None) -> FakeGeneration:
        script = self.scripts[min(len(self.requests), len(self.scripts) - 1)]
        self.requests.append(request)
        self.deadlines.append(deadline)
        return FakeGeneration(self, request, deadline, script)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that a generation changes is so."""
        while not condition():
            self.changed = trio.Event()
            await self.changed.wait()

    async def settle(self) -> None:
        await trio.lowlevel.checkpoint()

    async def models(self) -> Sequence[ModelCard]:
        return [
            ModelCard(
                name=name, source="/secret/path", state="loaded", backend="fake", created=1_790_000_000, context=512,
                parameters=1000, size_bytes=4000,
            )
            for name in self._models
        ]  # fmt: skip

    def begin_drain(self) -> None:
        self.draining = True
        self.health_now = Health("draining")

    def health(self) -> Health:
        return self.health_now

    def statistics(self) -> list[ActorStatistics]:
        return self.system.statistics()
