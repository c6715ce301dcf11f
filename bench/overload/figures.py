"""The server's own figures, as a client reads them from `/metrics`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

OUTCOMES = ("completed", "refused", "cancelled", "expired", "failed")
"""How a queue says that requests ended."""
AT_REST = (
    "tripower_active_requests",
    "tripower_requests_waiting",
    "tripower_requests_running",
    "tripower_batch_members",
    "tripower_gate_active",
    "tripower_gate_waiting",
    "vllm:kv_cache_usage_perc",
)
"""Gauges that are 0 when nobody asks for anything."""

Labels = frozenset[tuple[str, str]]


@attrs.frozen
class Reading:
    """All samples at one moment."""

    samples: Mapping[tuple[str, Labels], float]

    def total(self, name: str, **labels: str) -> float:
        """The sum of the samples of this name that have these labels; 0 where there is none."""
        wanted = set(labels.items())
        return sum(value for (each, has), value in self.samples.items() if each == name and wanted <= has)

    def outcomes(self, model: str) -> dict[str, int]:
        """How the requests of a model ended, so far."""
        return {each: int(self.total("tripower_requests_total", model=model, outcome=each)) for each in OUTCOMES}

    def generated(self) -> float:
        """Rows of decoding so far: a token of an answer each, but for its first."""
        return self.total("tripower_batch_rows_total", phase="decode")

    def occupied(self) -> dict[str, float]:
        """The gauges that should be 0 and are not."""
        return {name: value for name in AT_REST if (value := self.total(name))}


def read_figures(text: str) -> Reading:
    """What `/metrics` answered. Raises `ValueError` for what is no exposition."""
    families: Iterable[Metric] = text_string_to_metric_families(text)
    return Reading(
        {(sample.name, frozenset(sample.labels.items())): sample.value for family in families for sample in family.samples}
    )
