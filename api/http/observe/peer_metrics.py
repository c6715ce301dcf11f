"""The same figures under the names of vLLM and of llama.cpp's server, so that dashboards and pickers made for them work unchanged.

Only figures that exist here have a name here. Their labels are vLLM's `model_name` and `engine`; llama.cpp's server has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tripower.actors.queueing import QueueStatistics
from tripower.api.http.figures import ApiStatistics, HistogramSnapshot
from tripower.api.http.metrics import details_of, histogram_family
from tripower.runtime.kernel import ActorStatistics

ENGINE = "0"
VLLM_LABELS = ("model_name", "engine")
VLLM_HISTOGRAMS = (
    ("time_to_first_token_seconds", "first_tokens"),
    ("inter_token_latency_seconds", "token_intervals"),
    ("e2e_request_latency_seconds", "generations"),
    ("request_queue_time_seconds", "waits"),
    ("request_prefill_time_seconds", "prefills"),
    ("request_decode_time_seconds", "decodes"),
)


class VllmCollector(Collector):
    """The `vllm:` family."""

    def __init__(self, statistics: Callable[[], Sequence[ActorStatistics]]) -> None:
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        actors = self._statistics()
        queues = details_of(actors, QueueStatistics)
        for name, about, value in _GAUGES:
            yield _by_model(GaugeMetricFamily(f"vllm:{name}", about, labels=VLLM_LABELS), queues, value)
        for name, about, value in _COUNTERS:
            yield _by_model(CounterMetricFamily(f"vllm:{name}", about, labels=VLLM_LABELS), queues, value)
        rejections = CounterMetricFamily("vllm:admission_rejections", "Requests refused.", labels=(*VLLM_LABELS, "reason"))
        for queue in queues:
            rejections.add_metric((queue.model, ENGINE, "queue_full"), queue.gate.rejections)
        yield rejections
        yield from _vllm_border(details_of(actors, ApiStatistics))


def _vllm_border(borders: Sequence[ApiStatistics]) -> Iterator[Metric]:
    ends: Counter[tuple[str, str]] = Counter()
    for border in borders:
        for each in border.finishes:
            ends[each.model, each.reason] += each.count
    successes = CounterMetricFamily(
        "vllm:request_success", "Complete answers by how they ended.", labels=(*VLLM_LABELS, "finished_reason")
    )
    for (model, reason), count in ends.items():
        successes.add_metric((model, ENGINE, reason), count)
    yield successes
    for name, field in VLLM_HISTOGRAMS:
        snapshots: Iterable[HistogramSnapshot] = (each for border in borders for each in getattr(border, field))
        yield histogram_family(f"vllm:{name}", "Of complete answers.", VLLM_LABELS, snapshots, further=(ENGINE,))


class LlamaCppCollector(Collector):
    """The `llamacpp:` family, summed over models."""

    def __init__(self, statistics: Callable[[], Sequence[ActorStatistics]]) -> None:
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        queues = details_of(self._statistics(), QueueStatistics)

        def total(value: Callable[[QueueStatistics], float]) -> float:
            return sum(map(value, queues))

        steps = total(lambda queue: queue.batch.steps)
        decoded = total(lambda queue: queue.batch.decode_rows)
        yield CounterMetricFamily(
            "llamacpp:prompt_tokens", "Prompt tokens processed.", value=total(lambda queue: queue.prompt_tokens)
        )
        yield CounterMetricFamily(
            "llamacpp:tokens_predicted", "Tokens generated.", value=total(lambda queue: queue.generated_tokens)
        )
        yield CounterMetricFamily("llamacpp:n_decode", "Steps.", value=steps)
        yield GaugeMetricFamily(
            "llamacpp:requests_processing", "Requests that have a seat.", value=total(lambda queue: queue.gate.active)
        )
        yield GaugeMetricFamily(
            "llamacpp:requests_deferred", "Requests that wait.", value=total(lambda queue: queue.gate.waiting)
        )
        yield GaugeMetricFamily(
            "llamacpp:n_busy_slots_per_decode", "Decoding rows of a step, on average.", value=decoded / steps if steps else 0.0
        )


_GAUGES: tuple[tuple[str, str, Callable[[QueueStatistics], float]], ...] = (
    ("num_requests_running", "Requests that have a seat.", lambda queue: queue.gate.active),
    ("num_requests_waiting", "Requests that wait for one.", lambda queue: queue.gate.waiting),
    ("kv_cache_usage_perc", "Part of the state's memory that is in use, 0 to 1.", lambda queue: queue.state_share),
    ("gpu_cache_usage_perc", "The older name of kv_cache_usage_perc.", lambda queue: queue.state_share),
)
_COUNTERS: tuple[tuple[str, str, Callable[[QueueStatistics], float]], ...] = (
    ("num_preemptions", "Running requests that had to make room: none ever has to.", lambda queue: 0),
    ("prompt_tokens", "Prompt tokens of complete answers.", lambda queue: queue.prompt_tokens),
    ("generation_tokens", "Tokens of complete answers.", lambda queue: queue.generated_tokens),
    ("prefix_cache_queries", "Tokens of prompts that might have been reused.", lambda queue: sum(_prompt_tokens(queue))),
    ("spec_decode_num_drafts", "Steps of a request with guesses.", lambda queue: queue.batch.speculation.rounds),
    ("spec_decode_num_draft_tokens", "Guessed tokens.", lambda queue: queue.batch.speculation.drafted_tokens),
    ("spec_decode_num_accepted_tokens", "Of those, right ones.", lambda queue: queue.batch.speculation.accepted_tokens),
    ("spec_decode_num_emitted_tokens", "Tokens of such requests.", lambda queue: queue.batch.speculation.emitted_tokens),
    ("prefix_cache_hits", "Of those, tokens that were reused.", lambda queue: _prompt_tokens(queue)[0]),
)

COLLECTORS: dict[str, Callable[[Callable[[], Sequence[ActorStatistics]]], Collector]] = {
    "vllm": VllmCollector,
    "llamacpp": LlamaCppCollector,
}
"""By the names that `server.metrics_families` takes."""


def _prompt_tokens(queue: QueueStatistics) -> tuple[int, int]:
    """Reused and evaluated."""
    return (0, 0) if queue.prefix is None else (queue.prefix.reused_tokens, queue.prefix.evaluated_tokens)


def _by_model(
    family: GaugeMetricFamily | CounterMetricFamily,
    queues: Sequence[QueueStatistics],
    value: Callable[[QueueStatistics], float],
) -> Metric:
    for queue in queues:
        family.add_metric((queue.model, ENGINE), value(queue))
    return family
