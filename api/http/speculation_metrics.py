"""What guesses have brought: the families `tripower_speculative_…`.

Labels are the queue's engine, its model and the strategy. Acceptance is accepted over drafted tokens, the yield emitted tokens over
target passes, passes without a guess included. The time of a phase is the lane's: `draft` is spent in drafters, `verify` in steps that
evaluated guesses, which other requests' rows share; it counts when a job of the lane has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily

from tripower.actors.queueing import QueueStatistics

LABELS = ("backend", "model", "strategy")
COUNTERS = (
    ("requests", "Requests with guesses."),
    ("rounds", "Steps of a request that evaluated guesses."),
    ("target_passes", "Steps of such a request that drew a token."),
    ("drafted_tokens", "Guesses that were evaluated."),
    ("accepted_tokens", "Of those, guesses that were right."),
    ("emitted_tokens", "Tokens of such requests."),
    ("replays", "Steps of a request in which a guess was wrong and its positions were taken back."),
)
PHASES = ("draft", "verify")


def speculation_metrics(queues: Sequence[QueueStatistics]) -> Iterator[Metric]:
    """Of queues that guess; families without a sample where none does."""
    for name, about in COUNTERS:
        family = CounterMetricFamily(f"tripower_speculative_{name}", about, labels=LABELS)
        for queue in queues:
            if queue.speculation is not None:
                family.add_metric(_labels(queue), getattr(queue.batch.speculation, name))
        yield family
    seconds = CounterMetricFamily("tripower_speculative_decode_seconds", "Time after the first token.", labels=LABELS)
    for queue in queues:
        if queue.speculation is not None:
            seconds.add_metric(_labels(queue), queue.speculation.decode_seconds)
    yield seconds
    fallbacks = CounterMetricFamily(
        "tripower_speculative_fallbacks",
        "Times that a request stopped guessing, until guesses would have been right.",
        labels=LABELS,
    )
    phases = CounterMetricFamily("tripower_speculative_phase_seconds", "Time of the lane.", labels=(*LABELS, "phase"))
    for queue in queues:
        if queue.speculation is not None:
            fallbacks.add_metric(_labels(queue), queue.speculation.fallbacks)
            for phase in PHASES:
                phases.add_metric((*_labels(queue), phase), getattr(queue.speculation, f"{phase}_seconds"))
    yield from (fallbacks, phases)


def _labels(queue: QueueStatistics) -> tuple[str, str, str]:
    assert queue.speculation is not None
    return queue.speculation.backend, queue.model, queue.speculation.strategy
