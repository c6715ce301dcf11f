"""What the tests of the actors share: toys that fail on demand, a runtime on virtual time, and what must be left at the end."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
import trio.testing

from tripower.actors.device import DeviceStatistics, RunSteps, StepOrder, StepsCommitted, StepsDone
from tripower.actors.dialogue import Failed, GenerationFinished, GenerationRequest, SamplingChoices, TokenChunk
from tripower.actors.generation import Generation
from tripower.actors.queueing import QueueStatistics
from tripower.actors.runtime import Runtime, open_actors, toy_plan
from tripower.backends.toy import ToyEngine, ToyText
from tripower.backends.toy.engine import absorb, draw
from tripower.runtime.engine import LoadedModel, LoadSpecification, Progress, SamplingParameters, StepRow, StepTable
from tripower.runtime.engine.step_table import INVALID_LOGITS
from tripower.runtime.kernel import Actor, ActorStatistics, InlineLane, LaneJob, Ref

STEP_SECONDS = 1.0
"""What a boundary of a steps job takes on virtual time; loads and unloads take none."""


def steps_only(job: LaneJob) -> float:
    return STEP_SECONDS if job.name.startswith("steps") else 0.0


class BrittleEngine(ToyEngine):
    """A toy whose next steps fail, before they change anything, or lie about what they did; and with a prompt that spoils its logits."""

    failing = 0
    lying = 0
    poison = ""
    """How a prompt begins whose logits are not finite."""

    def step(self, rows: Sequence[StepRow]) -> list[int]:
        if self.failing:
            self.failing -= 1
            raise RuntimeError("the step failed")
        drawn = super().step(rows)
        if self.lying:
            self.lying -= 1
            return [-1 for _ in drawn]
        poison = tuple(self.poison.encode())
        return [
            INVALID_LOGITS if poison and row.draw and row.position == 0 and row.tokens[: len(poison)] == poison else token
            for row, token in zip(rows, drawn, strict=True)
        ]


class RecordingBackend:
    """Loads toys and keeps them. Errors in `failures` are raised by the next loads, at their last boundary."""

    name = "toy"

    def __init__(self, *failures: BaseException, boundaries: int = 1, context: int = 8192) -> None:
        self.failures = list(failures)
        self.boundaries = boundaries
        self.engines: list[BrittleEngine] = []
        self.loads = self.stopped = 0
        self._context = context

    def load(self, specification: LoadSpecification, progress: Progress) -> Iterator[LoadedModel | None]:
        self.loads += 1
        try:
            for boundary in range(self.boundaries):
                progress("weights", boundary / self.boundaries)
                yield None
        except GeneratorExit:
            self.stopped += 1
            raise
        if self.failures:
            raise self.failures.pop(0)
        self.engines.append(BrittleEngine(context=self._context, sequences_max=specification.sequences_max))
        yield LoadedModel(self.engines[-1], ToyText())

    @property
    def engine(self) -> BrittleEngine:
        """The newest."""
        return self.engines[-1]


@asynccontextmanager
async def open_toy(
    backend: RecordingBackend | None = None, *, pace: Callable[[LaneJob], float] = steps_only, **plan: Any
) -> AsyncIterator[tuple[Runtime, RecordingBackend]]:
    """A runtime with a recording backend on an inline lane. At its end every engine must be closed."""
    backend = backend or RecordingBackend()
    async with open_actors(toy_plan(backends={"toy": backend}, open_port=lambda: InlineLane(pace), **plan)) as runtime:
        yield runtime, backend
    assert runtime.statistics() == []
    assert all(engine.closed and not engine.sequences() for engine in backend.engines)


async def warm_up(runtime: Runtime) -> float:
    """Load the model and let everything settle. Returns the time."""
    await runtime.load("toy")
    await trio.sleep(50)
    return trio.current_time()


def request(prompt: str = "p", max_tokens: int | None = 3, **changes: Any) -> GenerationRequest:
    """A greedy one that heeds no end token, so that its length is known."""
    changes.setdefault("sampling", SamplingChoices(temperature=0.0))
    changes.setdefault("ignore_eos", True)
    return GenerationRequest(model=changes.pop("model", "toy"), prompt=prompt, max_tokens=max_tokens, **changes)


def greedy(prompt: str, count: int) -> list[int]:
    """What the toy answers."""
    state, tokens = 0, list[int]()
    for token in prompt.encode():
        state = absorb(state, token)
    while len(tokens) < count:
        tokens.append(draw(state, 0))
        state = absorb(state, tokens[-1])
    return tokens


@attrs.define
class Listener:
    """Everything that one generation said, and when."""

    tokens: list[int] = attrs.Factory(list)
    times: list[float] = attrs.Factory(list)
    text: str = ""
    started_at: float | None = None
    finished: GenerationFinished | None = None
    ended_at: float | None = None
    error: BaseException | None = None

    async def run(self, generation: Generation, scope: trio.CancelScope | None = None) -> None:
        """Enter, listen to the end, note the error or the end."""
        try:
            with scope or trio.CancelScope():
                async with generation:
                    await self.listen(generation)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
            self.error = error
        self.ended_at = trio.current_time()

    async def listen(self, generation: Generation) -> None:
        async for event in generation:
            assert not isinstance(event, Failed), "iterating raises it"
            self.text += event.text
            if isinstance(event, TokenChunk):
                self.tokens.append(event.token)
                self.times.append(trio.current_time())
            elif isinstance(event, GenerationFinished):
                self.finished = event
            elif self.started_at is None:
                self.started_at = trio.current_time()


async def complete(runtime: Runtime, prompt: str = "p", max_tokens: int = 3) -> Listener:
    listener = Listener()
    await listener.run(runtime.generate(request(prompt, max_tokens)))
    assert listener.error is None and listener.tokens == greedy(prompt, max_tokens)
    return listener


class Probe(Actor[StepsCommitted | StepsDone]):
    """Orders steps and remembers the news."""

    def __init__(self) -> None:
        self.news: list[StepsCommitted | StepsDone] = []

    async def on_message(self, message: StepsCommitted | StepsDone) -> None:
        self.news.append(message)

    @property
    def done(self) -> StepsDone:
        (done,) = (news for news in self.news if isinstance(news, StepsDone))
        return done


def order(engine: ToyEngine, reply_to: Ref[Any], *prompts: str, steps: int = 4, first: int = 0) -> tuple[RunSteps, StepOrder]:
    """A job for these prompts, on sequences from `first` on."""
    table = StepTable(slots_max=8, steps_max=64, rows_max=64)
    table.clear(steps_max=steps)
    sequences = tuple(range(first, first + len(prompts)))
    for sequence, prompt in zip(sequences, prompts, strict=True):
        table.add(
            sequence=sequence,
            position=0,
            pending=list(prompt.encode()),
            remaining=100,
            output_index=0,
            sampling=SamplingParameters(temperature=0.0),
            ends=frozenset(),
            history=(),
            prompt_length=len(prompt),
        )
    return RunSteps("toy", next(_jobs), sequences, sequences), StepOrder(engine, table, reply_to)


_jobs = itertools.count()


def figures(runtime: Runtime, name: str) -> ActorStatistics:
    return next(actor for actor in runtime.statistics() if actor.name == name)


def queue_figures(runtime: Runtime) -> QueueStatistics:
    details = figures(runtime, "queue:toy").details
    assert isinstance(details, QueueStatistics)
    return details


async def assert_quiet(runtime: Runtime, backend: RecordingBackend) -> None:
    """Nobody asks any more: when the last messages have been read nothing is held, nothing runs, and all counters add up."""
    await trio.testing.wait_all_tasks_blocked()
    for actor in runtime.statistics():
        ends = actor.handled + actor.refused + actor.expired + actor.abandoned + actor.gone
        assert actor.received == ends, actor
        assert actor.inbox == actor.waiting == actor.control == actor.pending == 0, actor
        if isinstance(actor.details, DeviceStatistics):
            assert actor.details.jobs == 0 and actor.details.state == "idle"
        if isinstance(actor.details, QueueStatistics):
            queue = actor.details
            assert queue.live == queue.gate.active == queue.gate.waiting == queue.batch.members == 0
            assert not queue.step_running
            assert queue.arrivals == queue.completed + queue.refused + queue.cancelled + queue.expired + queue.failed
    assert all(not engine.sequences() for engine in backend.engines)
    assert runtime.active() == 0


class Saboteur:
    """Makes actors crash: give its `on_instance` to a plan, then arm it."""

    def __init__(self) -> None:
        self._armed: dict[str, tuple[int, bool]] = {}

    def arm(self, name: str, *, skip: int = 0, after: bool = False) -> None:
        """The message after the next `skip` ones crashes the actor: instead of being handled, or after it was."""
        self._armed[name] = (skip, after)

    @property
    def armed(self) -> bool:
        return bool(self._armed)

    def on_instance(self, name: str, actor: Actor[Any]) -> None:
        handle = actor.on_message

        async def sabotaged(message: Any) -> Any:
            if name not in self._armed:
                return await handle(message)
            skip, after = self._armed.pop(name)
            if skip:
                self._armed[name] = (skip - 1, after)
            elif not after:
                raise RuntimeError(f"{name} crashed instead of handling {type(message).__name__}")
            answer = await handle(message)
            if not skip:
                raise RuntimeError(f"{name} crashed after it had handled {type(message).__name__}")
            return answer

        actor.on_message = sabotaged  # type: ignore[method-assign]
