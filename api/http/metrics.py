"""Prometheus metrics, read off the kernel's registry at the moment of the scrape.

Nothing is counted here: actors publish what they count through `statistics()`, and this file only says under which name it appears.
Figures of several instances of one kind are summed where the name has no label to tell them apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from tripower.actors.device import DeviceStatistics
from tripower.actors.models import RegistryStatistics
from tripower.actors.queueing import QueueStatistics
from tripower.api.http.figures import ApiStatistics, HistogramSnapshot
from tripower.api.http.prefix_metrics import prefix_metrics
from tripower.api.http.speculation_metrics import speculation_metrics
from tripower.runtime.kernel import ActorStatistics

Details = TypeVar("Details")
Samples = Iterable[tuple[Sequence[str], float]]


class KernelCollector(Collector):
    """Collects from a function that gives the statistics of every actor."""

    def __init__(self, statistics: Callable[[], Sequence[ActorStatistics]]) -> None:
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        actors = self._statistics()
        yield from actor_metrics(actors)
        yield from queue_metrics(details_of(actors, QueueStatistics))
        yield from device_metrics(details_of(actors, DeviceStatistics))
        yield from registry_metrics(details_of(actors, RegistryStatistics))
        yield from http_metrics(details_of(actors, ApiStatistics))


def details_of(actors: Sequence[ActorStatistics], kind: type[Details]) -> list[Details]:
    return [actor.details for actor in actors if isinstance(actor.details, kind)]


def gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(f"tripower_{name}", about, value=value)


def counter(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily(f"tripower_{name}", about, value=value)


def gauges(name: str, about: str, labels: Sequence[str], samples: Samples) -> Metric:
    family = GaugeMetricFamily(f"tripower_{name}", about, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def counters(name: str, about: str, labels: Sequence[str], samples: Samples) -> Metric:
    family = CounterMetricFamily(f"tripower_{name}", about, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def histograms(name: str, about: str, labels: Sequence[str], snapshots: Iterable[HistogramSnapshot]) -> Metric:
    return histogram_family(f"tripower_{name}", about, labels, snapshots)


def histogram_family(
    name: str, about: str, labels: Sequence[str], snapshots: Iterable[HistogramSnapshot], further: Sequence[str] = ()
) -> Metric:
    """`further` are values of labels that all snapshots have in common, behind their own."""
    family = HistogramMetricFamily(name, about, labels=labels)
    for snapshot in snapshots:
        buckets: list[tuple[str, float]] = []
        reached = 0
        for bound, count in zip((*snapshot.bounds, float("inf")), snapshot.counts, strict=True):
            reached += count
            buckets.append((floatToGoString(bound), reached))  # type: ignore[no-untyped-call]
        family.add_metric((*snapshot.labels, *further), buckets, snapshot.total)
    return family


def actor_metrics(actors: Sequence[ActorStatistics]) -> Iterator[Metric]:
    states = Counter(actor.state for actor in actors)
    yield gauges("actors", "Actors by state.", ["state"], (([state], count) for state, count in states.items()))
    yield gauges("actor_inbox", "Requests queued for an actor.", ["actor"], (([each.name], each.inbox) for each in actors))
    yield counters("actor_handled", "Messages handled.", ["actor"], (([each.name], each.handled) for each in actors))
    yield counters("actor_restarts", "Restarts after a crash.", ["actor"], (([each.name], each.restarts) for each in actors))
    yield counters("actor_crashes", "Crashes.", ["actor"], (([each.name], each.crashes) for each in actors))


def queue_metrics(queues: Sequence[QueueStatistics]) -> Iterator[Metric]:
    yield gauge("active_requests", "Requests that wait or run.", sum(queue.live for queue in queues))
    yield gauge("requests_waiting", "Requests that wait for a seat.", sum(queue.gate.waiting for queue in queues))
    yield gauge("requests_running", "Requests that have a seat.", sum(queue.gate.active for queue in queues))
    yield counter("requests_cancelled", "Requests given up by their client.", sum(queue.cancelled for queue in queues))
    yield counters(
        "requests",
        "Requests by how they ended.",
        ["model", "outcome"],
        (
            ([queue.model, outcome], getattr(queue, outcome))
            for queue in queues
            for outcome in ("completed", "refused", "cancelled", "expired", "failed")
        ),
    )
    yield counters(
        "inference_tokens",
        "Tokens of prompts and of answers.",
        ["model", "type"],
        (
            ([queue.model, kind], value)
            for queue in queues
            for kind, value in (("input", queue.prompt_tokens), ("output", queue.generated_tokens))
        ),
    )
    yield from gate_metrics(queues)
    yield from batch_metrics(queues)
    yield from prefix_metrics(queues)
    yield from speculation_metrics(queues)


def gate_metrics(queues: Sequence[QueueStatistics]) -> Iterator[Metric]:
    gates = [queue.gate for queue in queues]
    label = ["gate"]
    for name, about, field in (
        ("gate_active", "Permits in use.", "active"),
        ("gate_waiting", "Waiting for a permit.", "waiting"),
        ("gate_peak_active", "Most permits ever in use.", "peak_active"),
        ("gate_peak_waiting", "Most ever waiting.", "peak_waiting"),
    ):
        yield gauges(name, about, label, [(["model"], sum(getattr(gate, field) for gate in gates))])
    for name, about, field in (
        ("gate_admitted", "Permits given.", "admitted"),
        ("gate_queue_rejections", "Refused at the gate.", "rejections"),
        ("gate_share_rejections", "Of those, refused because one key had more than its share.", "share_rejections"),
        ("gate_cancelled_waiters", "Gave up waiting.", "cancelled_waiters"),
        ("gate_deadline_expirations", "Deadlines that passed while waiting.", "expirations"),
    ):
        yield counters(name, about, label, [(["model"], sum(getattr(gate, field) for gate in gates))])


def batch_metrics(queues: Sequence[QueueStatistics]) -> Iterator[Metric]:
    batches = [queue.batch for queue in queues]

    def total(field: str) -> int:
        return sum(getattr(batch, field) for batch in batches)

    yield gauge("batch_members", "Members of the running batches.", total("members"))
    yield counters(
        "batch_steps", "Steps, and jobs that were given up.", ["outcome"],
        [(["committed"], total("steps")), (["aborted"], total("aborted_jobs"))],
    )  # fmt: skip
    yield counters(
        "batch_rows", "Rows evaluated.", ["phase"], [(["prefill"], total("prefill_rows")), (["decode"], total("decode_rows"))]
    )
    yield counters(
        "batch_left", "Members that left, by why.", ["end"],
        [(["completed"], total("finished")), (["cancelled"], total("left")), (["failed"], total("failed"))],
    )  # fmt: skip


def device_metrics(devices: Sequence[DeviceStatistics]) -> Iterator[Metric]:
    label = ["device"]
    yield gauges("device_jobs", "Jobs on a lane.", label, (([each.device], each.jobs) for each in devices))
    yield gauges(
        "device_quiet_seconds",
        "Time since a busy lane's last boundary.",
        label,
        (([each.device], each.quiet_seconds) for each in devices),
    )
    yield gauges(
        "device_wedged", "Whether a lane no longer moves.", label, (([each.device], each.state == "wedged") for each in devices)
    )
    yield counters("device_steps", "Steps committed.", label, (([each.device], each.steps) for each in devices))
    yield counters("device_jobs_failed", "Jobs that failed.", label, (([each.device], each.jobs_failed) for each in devices))


def registry_metrics(registries: Sequence[RegistryStatistics]) -> Iterator[Metric]:
    yield gauge("models_loaded", "Models that are resident.", sum(registry.loaded for registry in registries))
    yield counters(
        "model_loads", "Loads by outcome.", ["outcome"],
        [(["ok"], sum(each.loads_ok for each in registries)), (["failed"], sum(each.loads_failed for each in registries))],
    )  # fmt: skip


def http_metrics(borders: Sequence[ApiStatistics]) -> Iterator[Metric]:
    yield gauge("http_connections", "Open connections.", sum(border.open_connections for border in borders))
    yield gauge(
        "http_requests_in_progress", "Requests without a complete answer.", sum(border.active_requests for border in borders)
    )
    yield counter("http_connections_accepted", "Connections accepted.", sum(border.accepted_connections for border in borders))
    yield counter("http_disconnects", "Clients that left before their answer.", sum(border.left for border in borders))
    yield counter(
        "audit_failures", "Events that the audit log could not keep.", sum(border.audit_failures for border in borders)
    )
    for name, about, field in (
        ("auth_failures", "Requests without a key that is known.", "auth_failures"),
        ("rate_limited", "Requests of a key over one of its limits.", "rate_limited"),
    ):
        totals: Counter[str] = Counter()
        for border in borders:
            totals.update(dict(getattr(border, field)))
        yield counters(name, about, ["reason"], (([reason], count) for reason, count in totals.items()))
    responses: Counter[tuple[str, str, str]] = Counter()
    for border in borders:
        for each in border.responses:
            responses[each.method, each.route, str(each.status)] += each.count
    yield counters("http_requests", "Requests by answer.", ["method", "route", "status"], responses.items())
    for name, about, labels, field in (
        (
            "http_request_duration_seconds",
            "From the request's head to the end of its answer.",
            ["method", "route"],
            "durations",
        ),
        ("ttft_seconds", "From the queue to the first token, of complete answers.", ["model"], "first_tokens"),
        ("inference_duration_seconds", "From the queue to the last token, of complete answers.", ["model"], "generations"),
        ("queue_wait_seconds", "In the waiting room, of complete answers.", ["model"], "waits"),
        ("prefill_seconds", "From the seat to the first token, of complete answers.", ["model"], "prefills"),
        ("decode_seconds", "From the first token to the last one, of complete answers.", ["model"], "decodes"),
        ("token_interval_seconds", "Between tokens on average, of complete answers.", ["model"], "token_intervals"),
    ):
        yield histograms(name, about, labels, (each for border in borders for each in getattr(border, field)))
