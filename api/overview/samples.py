"""What the counters of a server stood at, at one moment. Two such samples make the rates and shares of the time between them.

Counters begin again when a model is loaded anew: what is lower than before then counts as what has been since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import attrs

from tripower.actors.device import DeviceStatistics
from tripower.actors.queueing import IdentityStatistics, QueueStatistics
from tripower.api.http.figures import ApiStatistics
from tripower.runtime.kernel import ActorStatistics

REFUSALS = (429, 503)
PROBES = frozenset({"/health", "/ready"})
"""Routes that answer with 503 without having refused anything."""
Details = TypeVar("Details")


@attrs.frozen(kw_only=True)
class Tally:
    """Of one model, since it was loaded. All are tokens but the passes."""

    generated: int = 0
    evaluated: int = 0
    """Of prompts, by the engine."""
    reused: int = 0
    """Of prompts, instead of being evaluated."""
    reusable: int = 0
    """Of prompts that might have reused some: those that were reused, and those that were not."""
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    passes: int = 0

    def since(self, before: Tally) -> Tally:
        """The difference."""
        return Tally(**{field: _grown(value, getattr(before, field)) for field, value in attrs.asdict(self).items()})


@attrs.frozen(kw_only=True)
class Sample:
    """Counters that only grow, but for `running` and `waiting`. `at` is Trio's time."""

    at: float
    running: int = 0
    waiting: int = 0
    arrivals: int = 0
    refused: int = 0
    models: Mapping[str, Tally] = attrs.Factory(dict)
    identities: Mapping[str, int] = attrs.Factory(dict)
    """Tokens that were generated for each, by label."""
    busy: Mapping[str, float] = attrs.Factory(dict)
    """Seconds that each device has computed."""

    def since(self, before: Sample) -> Change:
        """What has happened between two samples."""
        seconds = max(self.at - before.at, 1e-9)
        return Change(
            seconds=seconds,
            arrivals=_grown(self.arrivals, before.arrivals),
            refused=_grown(self.refused, before.refused),
            models={name: tally.since(before.models.get(name, Tally())) for name, tally in self.models.items()},
            identities={label: _grown(tokens, before.identities.get(label, 0)) for label, tokens in self.identities.items()},
            busy={device: _grown(busy, before.busy.get(device, 0.0)) / seconds for device, busy in self.busy.items()},
        )


@attrs.frozen(kw_only=True)
class Change:
    """Between two samples. `busy` is a share of the time."""

    seconds: float
    arrivals: int
    refused: int
    models: Mapping[str, Tally]
    identities: Mapping[str, int]
    busy: Mapping[str, float]

    @property
    def generated(self) -> int:
        """Tokens, by all models."""
        return sum(tally.generated for tally in self.models.values())

    @property
    def evaluated(self) -> int:
        """Tokens of prompts, by all models."""
        return sum(tally.evaluated for tally in self.models.values())

    def of(self, model: str) -> Tally:
        """One model's part."""
        return self.models.get(model, Tally())


def details_of(actors: Iterable[ActorStatistics], kind: type[Details]) -> list[Details]:
    """What the actors of one kind publish."""
    return [actor.details for actor in actors if isinstance(actor.details, kind)]


def take_sample(actors: Sequence[ActorStatistics], served: Iterable[IdentityStatistics], at: float) -> Sample:
    """Read the counters off the kernel's list. Synchronous."""
    queues = details_of(actors, QueueStatistics)
    borders = details_of(actors, ApiStatistics)
    models: dict[str, Tally] = {}
    identities: Counter[str] = Counter()
    for queue in queues:
        models[queue.model] = tally(queue)  # of two with one name, the one that was loaded last
    for identity in served:
        identities[identity.label] += identity.generated
    return Sample(
        at=at,
        running=sum(queue.gate.active for queue in queues),
        waiting=sum(queue.gate.waiting for queue in queues),
        arrivals=sum(queue.arrivals for queue in queues),
        refused=sum(map(refusals, borders)) if borders else sum(queue.refused for queue in queues),
        models=models,
        identities=identities,
        busy={device.device: device.busy_seconds for device in details_of(actors, DeviceStatistics)},
    )


def tally(queue: QueueStatistics) -> Tally:
    """The counters of one model. Where only a remote engine knows its steps, prompts count when their answer is complete."""
    batch, prefix = queue.batch, queue.prefix
    guesses = batch.speculation
    return Tally(
        generated=queue.emitted_tokens,
        evaluated=batch.prefill_rows if batch.steps else queue.prompt_tokens,
        reused=prefix.reused_tokens if prefix else 0,
        reusable=prefix.reused_tokens + prefix.evaluated_tokens if prefix else 0,
        drafted=guesses.drafted_tokens,
        accepted=guesses.accepted_tokens,
        emitted=guesses.emitted_tokens,
        passes=guesses.target_passes,
    )


def refusals(border: ApiStatistics) -> int:
    """Answers that told somebody to come later."""
    return sum(each.count for each in border.responses if each.status in REFUSALS and each.route not in PROBES)


Number = TypeVar("Number", int, float)


def _grown(now: Number, before: Number) -> Number:
    return now - before if now >= before else now
