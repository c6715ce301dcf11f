"""What is reused of prompts, as metrics by model. Hits measure reuse, not speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from tripower.actors.queueing import QueueStatistics
from tripower.runtime.prefix_cache import PrefixStatistics


def prefix_metrics(queues: Sequence[QueueStatistics]) -> Iterator[Metric]:
    """The `tripower_prefix_…` family."""
    kept = [(queue.model, queue.prefix) for queue in queues if queue.prefix is not None]
    for name, about, field in (
        ("requests", "Prompts that might have reused a state.", "requests"),
        ("hits", "Prompts that began with a state that was there.", "hits"),
        ("replaced", "States that a longer one made useless.", "replaced"),
    ):
        yield _counter(name, about, [((model,), getattr(each, field)) for model, each in kept])
    yield _counter(
        "misses", "Prompts that found nothing, by why.", [((model, why), count) for model, each in kept for why, count in each.misses],
        "reason",
    )  # fmt: skip
    yield _counter("tokens", "Tokens of prompts.", [sample for model, each in kept for sample in _tokens(model, each)], "kind")
    yield _counter(
        "evictions", "States dropped.", [sample for model, each in kept for sample in _evictions(model, each)], "cause"
    )
    for name, about, field in (
        ("entries", "States that are kept.", "entries"),
        ("bytes", "Memory of kept states.", "bytes"),
        ("bytes_max", "Memory that kept states may take at most.", "bytes_max"),
    ):
        gauge = GaugeMetricFamily(f"tripower_prefix_{name}", about, labels=("model",))
        for model, each in kept:
            gauge.add_metric((model,), getattr(each, field))
        yield gauge


def _tokens(model: str, figures: PrefixStatistics) -> Iterator[tuple[tuple[str, str], int]]:
    yield (model, "reused"), figures.reused_tokens
    yield (model, "evaluated"), figures.evaluated_tokens


def _evictions(model: str, figures: PrefixStatistics) -> Iterator[tuple[tuple[str, str], int]]:
    yield (model, "ttl"), figures.evicted_ttl
    yield (model, "capacity"), figures.evicted_capacity


def _counter(name: str, about: str, samples: Sequence[tuple[tuple[str, ...], int]], *labels: str) -> Metric:
    family = CounterMetricFamily(f"tripower_prefix_{name}", about, labels=("model", *labels))
    for values, value in samples:
        family.add_metric(values, value)
    return family
