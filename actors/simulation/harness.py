"""Run one scenario through the whole runtime on virtual time, and say what broke.

Everything is real but the engine, the clock and the lane, which runs inside the loop. The schedule of the tasks is a function of the
seed. After the run the books must balance: see `invariants`.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import trio
from trio.testing import MockClock

from tripower.actors.dialogue import Failed, GenerationFinished, GenerationRequest, PromptScored, SamplingChoices, TokenChunk
from tripower.actors.model_queue import ModelQueueActor
from tripower.actors.models import LoadLimits, ModelSource
from tripower.actors.queueing import QueueLimits
from tripower.actors.runtime import Runtime, RuntimePlan, open_actors
from tripower.actors.simulation.faults import FaultyBackend, Pace, Saboteur
from tripower.actors.simulation.invariants import check_answer, check_quiet, check_reports, check_reuse
from tripower.actors.simulation.scenario import NEVER_STEP, Caller, Scenario, draw_scenario
from tripower.runtime.admission import Caller as Whoever
from tripower.runtime.kernel import Actor, DeadlineExceeded, InlineLane, Supervision, TripowerError, deadline_after, within
from tripower.runtime.kernel.determinism import deterministic_schedule
from tripower.runtime.prefix_cache import PrefixSettings

QUIET_AFTER = 900.0
"""Virtual seconds after which nothing can still be on its way: beyond every slow step, back-off and budget."""
KEPT_SECONDS = 100.0
"""What is kept of prompts is dropped then: at the end of a run nothing may be left."""
AT_ONCE = 0.001
"""Virtual seconds, less than any step: a place is free by then, whatever the device does."""
ENDS = ("completed", "refused", "cancelled", "expired", "failed")


@attrs.define
class Report:
    """What one run did. `violations` is empty when all is well."""

    seed: int
    ends: dict[str, int]
    trace: list[str]
    violations: list[str]
    crashes: int = 0

    @property
    def trace_hash(self) -> str:
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()


class _Canceller(trio.abc.Instrument):
    """Cancels a caller's scope when its task has taken a given number of steps."""

    def __init__(self) -> None:
        self._left: dict[trio.lowlevel.Task, tuple[int, trio.CancelScope]] = {}

    def watch(self, task: trio.lowlevel.Task, steps: int, scope: trio.CancelScope) -> None:
        self._left[task] = (steps, scope)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task in self._left:
            steps, scope = self._left.pop(task)
            if steps <= 1:
                scope.cancel(reason="the simulation says so")
            else:
                self._left[task] = (steps - 1, scope)


class Simulation:
    """One run."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        rng = random.Random(scenario.seed ^ 0x5EED)
        self.backend = FaultyBackend(rng.getrandbits(32), scenario.faults)
        self.saboteur = Saboteur(rng.getrandbits(32), scenario.faults)
        self._pace_seed = rng.getrandbits(32)
        self.report = Report(scenario.seed, dict.fromkeys(ENDS, 0), [], [])
        self._canceller = _Canceller()
        self._queues: list[ModelQueueActor] = []
        self._sent: dict[str, list[Caller]] = {}
        """Who has asked by now, by identity."""

    def note(self, text: str) -> None:
        self.report.trace.append(f"{trio.current_time():.6f} {text}")

    def run(self) -> Report:
        """Blocks for some milliseconds."""
        with deterministic_schedule(self.scenario.seed), _quiet_logs():
            trio.run(self._main, clock=MockClock(autojump_threshold=0), instruments=[self._canceller])
        self.report.crashes = self.saboteur.crashes
        return self.report

    def _plan(self) -> RuntimePlan:
        scenario = self.scenario
        queue = QueueLimits(
            members_max=scenario.members_max,
            waiting_max=scenario.waiting_max,
            steps_per_job=scenario.steps_per_job,
            rows_max=scenario.rows_max,
            prefix=PrefixSettings(entries_max=scenario.kept_entries, ttl_seconds=KEPT_SECONDS)
            if scenario.kept_entries
            else None,
        )
        return RuntimePlan(
            backends={"toy": self.backend},
            sources=(ModelSource(name="toy", source="toy", backend="toy"),),
            limits=LoadLimits(context=0, state_bytes_max=0, threads=1, queue=queue),
            open_port=lambda: InlineLane(Pace(self._pace_seed, scenario.faults)),
            supervision=Supervision(restarts_max=scenario.restarts_max),
            on_instance=self._on_instance,
        )

    def _on_instance(self, name: str, actor: Actor[Any]) -> None:
        if isinstance(actor, ModelQueueActor):
            self._queues.append(actor)
        self.saboteur.on_instance(name, actor)

    async def _main(self) -> None:
        async with trio.open_nursery() as callers:
            try:
                async with open_actors(self._plan()) as runtime:
                    for caller in self.scenario.callers:
                        callers.start_soon(self._call, runtime, caller, name=f"caller {caller.number}")
                    await self._watch(runtime)
            except* Exception as group:  # noqa: BLE001
                # A system that gives up after too many crashes ends its users' block; without one it must not.
                if not self.saboteur.crashes:
                    self.report.violations.append(f"the runtime failed without a crash: {group!r}")
        self._check_end()

    async def _watch(self, runtime: Runtime) -> None:
        """Leave at the shutdown's time, or when everybody has ended and the dust has settled."""
        if self.scenario.faults.shutdown_at is not None:
            await trio.sleep(self.scenario.faults.shutdown_at)
            self.note("shutdown")
            return
        while sum(self.report.ends.values()) < len(self.scenario.callers):
            await trio.sleep(50.0)
            if trio.current_time() > 100 * QUIET_AFTER:
                self.report.violations.append("a caller never ended")
                return
        await trio.sleep(QUIET_AFTER)
        self.report.violations += check_quiet(runtime.statistics(), self.backend.engines)

    async def _call(self, runtime: Runtime, caller: Caller) -> None:
        await trio.sleep(caller.arrives_at)
        self.note(f"{caller.number} arrives")
        end = "cancelled"
        with trio.CancelScope() as scope:
            if caller.cancel_at_step != NEVER_STEP:
                self._canceller.watch(trio.lowlevel.current_task(), caller.cancel_at_step, scope)
            end = await self._converse(runtime, caller)
        self.report.ends[end] += 1
        self.note(f"{caller.number} {end}")

    async def _converse(self, runtime: Runtime, caller: Caller) -> str:
        deadline = deadline_after(caller.timeout)
        tokens: list[int] = []
        self._sent.setdefault(caller.identity, []).append(caller)
        generation = runtime.generate(_request(caller), deadline=deadline)
        try:
            with within(deadline):
                async with generation:
                    end = await self._listen(caller, generation, tokens)
        except DeadlineExceeded:
            end = "expired"
        except TripowerError as error:
            self.note(f"{caller.number} {error.code}")
            end = "refused" if error.status < 500 or error.code in ("queue_full", "draining") else "failed"
        finally:
            self.report.violations += check_answer(caller, tokens, complete=False)
            with trio.CancelScope(shield=True):
                await trio.sleep(AT_ONCE)
            if any(queue.is_live(generation.ticket) for queue in self._queues):
                self.report.violations.append(f"caller {caller.number} has gone and still has a place")
        if end == "completed":
            self.report.violations += check_answer(caller, tokens, complete=True)
        return end

    async def _listen(self, caller: Caller, generation: Any, tokens: list[int]) -> str:
        seen = scored = 0
        while True:
            if caller.reads_slowly:
                await trio.sleep(caller.reads_slowly)
            for event in await generation.receive():
                seen += 1
                match event:
                    case TokenChunk():
                        self.report.violations += check_reports(caller, tokens, event)
                        tokens.append(event.token)
                    case PromptScored():
                        self.report.violations += check_reports(caller, tokens, event)
                        scored += 1
                    case GenerationFinished():
                        if scored != caller.wants_reports:
                            self.report.violations.append(f"caller {caller.number} was told of its prompt {scored} times")
                        self.note(f"{caller.number} {event.reason} {event.usage.completion_tokens} {event.usage.cached_tokens}")
                        others = [each for each in self._sent[caller.identity] if each is not caller]
                        self.report.violations += check_reuse(caller, event.usage.cached_tokens, others)
                        return "completed"
                    case Failed():
                        self.note(f"{caller.number} {event.code}")
                        return "expired" if event.code == "deadline_exceeded" else "failed"
                if seen >= caller.leaves_after_events:
                    return "cancelled"

    def _check_end(self) -> None:
        """After the runtime has closed: everybody has ended, once, and nothing is held."""
        ended = sum(self.report.ends.values())
        if ended != len(self.scenario.callers):
            self.report.violations.append(f"{len(self.scenario.callers)} callers, {ended} ends")
        for engine in self.backend.engines:
            if engine.sequences() or engine.table.pages_free < engine.table.pages_max:
                self.report.violations.append(f"an engine still holds {engine.sequences()}, or pages of nobody")


def _request(caller: Caller) -> GenerationRequest:
    return GenerationRequest(
        model=caller.model,
        prompt=caller.prompt,
        max_tokens=caller.max_tokens,
        ignore_eos=caller.ignore_eos,
        stop_token_ids=(caller.stop_token,) if caller.stop_token >= 0 else (),
        min_tokens=caller.min_tokens,
        logprobs=1 if caller.wants_reports else None,
        prompt_logprobs=0 if caller.wants_reports else None,
        progress=caller.wants_reports,
        sampling=SamplingChoices(temperature=caller.temperature, seed=caller.seed),
        caller=Whoever(identity=caller.identity),
    )


@contextmanager
def _quiet_logs() -> Iterator[None]:
    """Injected crashes are not news."""
    logger = logging.getLogger("tripower")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def simulate(seed: int) -> Report:
    """Run the scenario of one seed. Blocks for some milliseconds."""
    return Simulation(draw_scenario(seed)).run()
