"""`devices`, `models`, `cache` and `health`: what there is, what it does, and whether anything is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import trio

from tripower.api.cli.terminal import size
from tripower.api.console.table import FittedTable
from tripower.api.console.text import duration
from tripower.api.console.verb import Subject, Verb
from tripower.api.console.words import model_names, no_words, word_or_none
from tripower.runtime.kernel.errors import NotFound

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tripower.actors.queueing import QueueStatistics

State = TypeVar("State")


class DeviceState(msgspec.Struct, frozen=True, kw_only=True):
    """One device. Times are seconds."""

    device: str
    state: str
    """`idle`, `busy` or `wedged`."""
    job: str
    """What its lane works on; empty when idle."""
    job_seconds: float
    jobs: int
    jobs_done: int
    jobs_failed: int
    steps: int
    quiet_seconds: float
    """Since the lane's last boundary, while it has work."""


async def list_devices(subject: Subject, words: Sequence[str]) -> list[DeviceState]:
    """Every device."""
    from tripower.actors.device import DeviceStatistics

    no_words(words, "devices")
    await trio.lowlevel.checkpoint()
    found = [actor.details for actor in subject.runtime.statistics() if isinstance(actor.details, DeviceStatistics)]
    return [DeviceState(**{name: getattr(each, name) for name in DeviceState.__struct_fields__}) for each in found]


def show_devices(devices: list[DeviceState]) -> RenderableType:
    """A line for each."""
    cells = {
        "DEVICE": [each.device for each in devices],
        "STATE": [each.state for each in devices],
        "WORKS ON": [each.job for each in devices],
        "FOR": [duration(each.job_seconds) if each.job else "" for each in devices],
        "JOBS": [str(each.jobs) for each in devices],
        "DONE": [str(each.jobs_done) for each in devices],
        "FAILED": [str(each.jobs_failed or "") for each in devices],
        "STEPS": [str(each.steps) for each in devices],
        "QUIET FOR": [duration(each.quiet_seconds) if each.job else "" for each in devices],
    }
    spare = ("STEPS", "DONE", "QUIET FOR", "JOBS", "FAILED", "FOR", "WORKS ON")
    return FittedTable(cells=cells, left=("DEVICE", "STATE", "WORKS ON"), spare=spare)


class ModelState(msgspec.Struct, frozen=True, kw_only=True):
    """One model. Figures are 0 while it is not loaded."""

    name: str
    state: str
    error: str = ""
    """Of its last load, where that failed."""
    pinned: bool
    backend: str
    kernels: str = ""
    determinism: str = ""
    context: int
    parameters: int
    size_bytes: int
    threads: int
    running: int = 0
    seats: int = 0
    waiting: int = 0
    completed: int = 0
    refused: int = 0
    failed: int = 0


async def list_models(subject: Subject, words: Sequence[str]) -> list[ModelState]:
    """Everything that can be asked for, or one."""
    wanted = word_or_none(words, "models [MODEL]")
    cards = await subject.runtime.models()
    queues = _queues(subject)
    engines = {each.model: each for each in subject.runtime.health().engines}
    states = []
    for card in cards:
        figures: dict[str, Any] = {}
        if (queue := queues.get(card.name)) is not None:
            figures = {"running": queue.gate.active, "seats": queue.gate.active_limit, "waiting": queue.gate.waiting}
            figures |= {name: getattr(queue, name) for name in ("completed", "refused", "failed")}
        if (engine := engines.get(card.name)) is not None:
            figures |= {"kernels": engine.kernels, "determinism": engine.determinism}
        for name in ("name", "state", "error", "pinned", "backend", "context", "parameters", "size_bytes", "threads"):
            figures[name] = getattr(card, name)
        states.append(ModelState(**figures))
    return _named(states, wanted, [state.name for state in states])


def show_models(models: list[ModelState]) -> RenderableType:
    """A line for each. Only what is loaded has seats."""
    cells = {
        "MODEL": [each.name for each in models],
        "STATE": [each.state + (f": {each.error}" if each.error else "") for each in models],
        "BACKEND": [each.backend for each in models],
        "KERNELS": [each.kernels for each in models],
        "CONTEXT": [str(each.context or "") for each in models],
        "PARAMETERS": [f"{each.parameters / 1e6:.0f} M" if each.parameters else "" for each in models],
        "MEMORY": [size(each.size_bytes) if each.size_bytes else "" for each in models],
        "SEATS": [f"{each.running}/{each.seats}" if each.seats else "" for each in models],
        "WAITING": [str(each.waiting) if each.seats else "" for each in models],
        "ANSWERED": [str(each.completed) if each.seats else "" for each in models],
        "REFUSED": [str(each.refused or "") for each in models],
        "FAILED": [str(each.failed or "") for each in models],
    }
    spare = ("KERNELS", "PARAMETERS", "CONTEXT", "ANSWERED", "MEMORY", "BACKEND", "REFUSED", "FAILED", "WAITING", "SEATS")
    return FittedTable(cells=cells, left=("MODEL", "STATE", "BACKEND", "KERNELS"), spare=spare)


class CacheState(msgspec.Struct, frozen=True, kw_only=True):
    """What one model's queue keeps of prompts for whoever asks again. `requests` = `hits` + the sum of `misses`."""

    model: str
    entries: int
    bytes: int
    bytes_max: int
    requests: int
    hits: int
    misses: dict[str, int]
    """By why nothing was there."""
    reused_tokens: int
    evaluated_tokens: int
    replaced: int
    evicted_ttl: int
    evicted_capacity: int


async def list_caches(subject: Subject, words: Sequence[str]) -> list[CacheState]:
    """Of every loaded model that keeps anything, or of one."""
    wanted = word_or_none(words, "cache [MODEL]")
    await trio.lowlevel.checkpoint()
    states = []
    for model, queue in _queues(subject).items():
        if (prefix := queue.prefix) is not None:
            figures = {name: getattr(prefix, name) for name in CacheState.__struct_fields__ if name not in ("model", "misses")}
            states.append(CacheState(model=model, misses=dict(prefix.misses), **figures))
    return _named(states, wanted, [state.model for state in states])


def show_caches(caches: list[CacheState]) -> RenderableType:
    """A line for each."""
    from rich.text import Text

    if not caches:
        return Text("no loaded model keeps states of prompts")
    cells = {
        "MODEL": [each.model for each in caches],
        "ENTRIES": [str(each.entries) for each in caches],
        "MEMORY": [size(each.bytes) for each in caches],
        "OF": [size(each.bytes_max) for each in caches],
        "PROMPTS": [str(each.requests) for each in caches],
        "HITS": [f"{each.hits} ({each.hits / each.requests:.0%})" if each.requests else "0" for each in caches],
        "TOKENS REUSED": [f"{each.reused_tokens} of {each.reused_tokens + each.evaluated_tokens}" for each in caches],
        "EVICTED": [f"{each.evicted_ttl} old, {each.evicted_capacity} for room" for each in caches],
        "REPLACED": [str(each.replaced) for each in caches],
        "MISSES": [", ".join(f"{why} {count}" for why, count in each.misses.items() if count) for each in caches],
    }
    spare = ("REPLACED", "MISSES", "EVICTED", "OF", "ENTRIES", "PROMPTS", "TOKENS REUSED", "MEMORY")
    return FittedTable(cells=cells, left=("MODEL",), spare=spare)


class HealthState(msgspec.Struct, frozen=True):
    """`ok`, `loading`, `draining` or `failing`, and why."""

    status: str
    reasons: tuple[str, ...] = ()


async def read_health(subject: Subject, words: Sequence[str]) -> HealthState:
    """What `/health` says."""
    no_words(words, "health")
    await trio.lowlevel.checkpoint()
    health = subject.runtime.health()
    return HealthState(health.status, health.reasons)


def show_health(health: HealthState) -> RenderableType:
    """A word, and a line for each reason."""
    from rich.text import Text

    style = {"ok": "green", "failing": "red"}.get(health.status, "yellow")
    return Text("\n".join([health.status, *(f"  {reason}" for reason in health.reasons)]), style=style)


def _queues(subject: Subject) -> Mapping[str, QueueStatistics]:
    from tripower.actors.queueing import QueueStatistics

    found = [actor.details for actor in subject.runtime.statistics() if isinstance(actor.details, QueueStatistics)]
    return {each.model: each for each in found}


def _named(states: list[State], wanted: str | None, names: Sequence[str]) -> list[State]:
    if wanted is not None and wanted not in names:
        raise NotFound(f"there is no model {wanted[:200]!r}; known: {', '.join(names) or 'none'}", param="model")
    return [state for state, name in zip(states, names, strict=True) if wanted in (None, name)]


VERBS = (
    Verb(
        name="devices",
        summary="each device: what its thread works on, since when, and whether it moves",
        run=list_devices,
        answer=list[DeviceState],
        show=show_devices,
    ),
    Verb(
        name="models",
        summary="each model: its state, its engine, its seats",
        usage="[MODEL]",
        run=list_models,
        answer=list[ModelState],
        show=show_models,
        complete=model_names,
    ),
    Verb(
        name="cache",
        summary="what is kept of prompts: entries, hits, misses by why, evictions",
        usage="[MODEL]",
        run=list_caches,
        answer=list[CacheState],
        show=show_caches,
        complete=model_names,
    ),
    Verb(
        name="health",
        summary="whether anything is wrong, and what",
        run=read_health,
        answer=HealthState,
        show=show_health,
    ),
)
