"""The parts of an overview, each from what the actors publish and what has changed lately. Synchronous."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice

from tripower.actors.device import DeviceStatistics
from tripower.actors.models import RegistryStatistics
from tripower.actors.queueing import IdentityStatistics, QueueStatistics
from tripower.actors.request_paths import RequestPath
from tripower.api.overview.figures import DeviceOverview, IdentityOverview, ModelOverview, Percentiles
from tripower.api.overview.samples import Change, Tally, details_of
from tripower.runtime.kernel import ActorStatistics

ANSWERS_SECONDS = 60.0
"""How old a complete answer may be that still counts."""
IDENTITIES_MAX = 20
ANONYMOUS = "anonymous"


def model_overviews(
    actors: Sequence[ActorStatistics], paths: Sequence[RequestPath], rates: Change, lately: Change, now: float
) -> tuple[ModelOverview, ...]:
    """Every model that the registry knows, the busiest first."""
    queues = {queue.model: queue for queue in details_of(actors, QueueStatistics)}
    answering: dict[str, list[RequestPath]] = {}
    for path in paths:
        if path.answer is not None:
            answering.setdefault(path.model, []).append(path)
    overviews = []
    for registry in details_of(actors, RegistryStatistics):
        backends = {engine.model: engine.backend for engine in registry.engines}
        for name, state in registry.names:
            plain = ModelOverview(name=name, state=state, backend=backends.get(name, ""))
            queue = queues.get(name)
            if queue is not None:
                plain = _busy_model(plain, queue, answering.get(name, ()), rates, lately.of(name), now)
            overviews.append(plain)
    return tuple(sorted(overviews, key=lambda model: (-model.members - model.waiting, -model.tokens_per_second, model.name)))


def _busy_model(
    plain: ModelOverview, queue: QueueStatistics, answering: Sequence[RequestPath], rates: Change, lately: Tally, now: float
) -> ModelOverview:
    answers = [answer for answer in queue.answers if now - answer.at <= ANSWERS_SECONDS]
    tally = rates.of(queue.model)
    return ModelOverview(
        name=plain.name,
        state=plain.state,
        backend=plain.backend,
        members=queue.batch.members,
        members_max=queue.batch.members_max,
        waiting=queue.gate.waiting,
        tokens_per_second=tally.generated / rates.seconds,
        prompt_tokens_per_second=tally.evaluated / rates.seconds,
        first_token=percentiles([*(each.first_token for each in answers), *map(_first_token, answering)]),
        token_interval=percentiles([*(each.token_interval for each in answers), *map(_token_interval, answering)]),
        reused_share=_share(lately.reused, lately.reusable),
        acceptance=_share(lately.accepted, lately.drafted),
        tokens_per_pass=_share(lately.emitted, lately.passes),
        state_share=queue.state_share,
    )


def _first_token(path: RequestPath) -> float:
    return (path.waiting or 0.0) + (path.prompt or 0.0)


def _token_interval(path: RequestPath) -> float | None:
    return 1 / path.tokens_per_second if path.tokens_per_second else None


def identity_overviews(served: Iterable[IdentityStatistics], lately: Change) -> tuple[IdentityOverview, ...]:
    """Everybody who had tokens lately, waits or runs; without the others, where there are many."""
    running: dict[str, list[int]] = {}
    for identity in served:
        counts = running.setdefault(identity.label, [0, 0])
        counts[0] += identity.running
        counts[1] += identity.waiting
    total = sum(lately.identities.values())
    overviews = [
        IdentityOverview(
            label=label or ANONYMOUS, running=active, waiting=waiting, share=_share(lately.identities.get(label, 0), total)
        )
        for label, (active, waiting) in running.items()
        if active or waiting or lately.identities.get(label)
    ]
    busiest = sorted(overviews, key=lambda each: (-each.share, -each.running, -each.waiting, each.label))
    return tuple(islice(busiest, IDENTITIES_MAX))


def device_overviews(devices: Iterable[DeviceStatistics], rates: Change) -> tuple[DeviceOverview, ...]:
    """Every lane."""
    return tuple(
        DeviceOverview(
            name=device.device,
            state=device.state,
            job=device.job,
            job_seconds=device.job_seconds,
            busy_share=min(1.0, rates.busy.get(device.device, 0.0)),
        )
        for device in devices
    )


def percentiles(values: Iterable[float | None]) -> Percentiles:
    """By nearest rank: each is a value that really was."""
    ranked = sorted(value for value in values if value is not None)
    if not ranked:
        return Percentiles()
    return Percentiles(*(ranked[math.ceil(share * len(ranked)) - 1] for share in (0.5, 0.95, 0.99)))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
