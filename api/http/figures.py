"""What the HTTP border counts. Owned by `ApiActor` and published through its `statistics()`; nobody else keeps a copy.

Durations are histograms with fixed buckets, so that no figure ever goes down. Labels come from closed sets: route templates, known
verbs, names of models that answered.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

import msgspec

REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
VERBS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER_VERB = "other"
UNMATCHED = "unmatched"


class HistogramSnapshot(msgspec.Struct, frozen=True):
    """`counts` has one entry for each bound and one for what is beyond; they are not cumulative. `total` is in seconds."""

    labels: tuple[str, ...]
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class ResponseCount(msgspec.Struct, frozen=True):
    method: str
    route: str
    status: int
    count: int


class ApiStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP border at one instant. `active_requests` are those whose answer is not complete."""

    url: str
    draining: bool
    open_connections: int
    active_requests: int
    accepted_connections: int
    requests: int
    by_class: tuple[int, int, int, int, int]
    """Answers of 1xx to 5xx. A client that left before its answer counts as 499."""
    left: int
    """Requests whose client left before the answer was complete."""
    responses: tuple[ResponseCount, ...]
    durations: tuple[HistogramSnapshot, ...]
    """By method and route."""
    first_tokens: tuple[HistogramSnapshot, ...]
    """Arrival in the queue to first token, by model, of complete answers."""
    generations: tuple[HistogramSnapshot, ...]
    """Arrival in the queue to last token, by model, of complete answers."""


class Histogram:
    """Durations in seconds, counted in fixed buckets."""

    def __init__(self) -> None:
        self._counts = [0] * (len(REQUEST_BUCKETS) + 1)
        self._total = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(REQUEST_BUCKETS, seconds)] += 1
        self._total += seconds

    def snapshot(self, *labels: str) -> HistogramSnapshot:
        return HistogramSnapshot(labels, REQUEST_BUCKETS, tuple(self._counts), self._total)


class Figures:
    """The counters. They outlive a restart of the actor."""

    def __init__(self) -> None:
        self._responses: Counter[tuple[str, str, int]] = Counter()
        self._durations: dict[tuple[str, str], Histogram] = {}
        self._first_tokens: dict[str, Histogram] = {}
        self._generations: dict[str, Histogram] = {}
        self._left = 0

    def count_answer(self, method: str, route: str, status: int, seconds: float, *, left: bool) -> None:
        """One request has ended."""
        method = method if method in VERBS else OTHER_VERB
        self._responses[method, route, status] += 1
        self._left += left
        key = (method, route)
        if key not in self._durations:
            self._durations[key] = Histogram()
        self._durations[key].observe(seconds)

    def count_generation(self, model: str, *, first_token_seconds: float, seconds: float) -> None:
        """One answer of a model is complete."""
        if model not in self._generations:
            self._first_tokens[model], self._generations[model] = Histogram(), Histogram()
        self._first_tokens[model].observe(first_token_seconds)
        self._generations[model].observe(seconds)

    def statistics(
        self, *, url: str, draining: bool, open_connections: int, active_requests: int, accepted_connections: int
    ) -> ApiStatistics:
        classes = [0] * 5
        for (_, _, status), count in self._responses.items():
            classes[min(max(status // 100, 1), 5) - 1] += count
        return ApiStatistics(
            url=url,
            draining=draining,
            open_connections=open_connections,
            active_requests=active_requests,
            accepted_connections=accepted_connections,
            requests=self._responses.total(),
            by_class=(classes[0], classes[1], classes[2], classes[3], classes[4]),
            left=self._left,
            responses=tuple(ResponseCount(*key, count) for key, count in self._responses.items()),
            durations=tuple(histogram.snapshot(*key) for key, histogram in self._durations.items()),
            first_tokens=tuple(histogram.snapshot(model) for model, histogram in self._first_tokens.items()),
            generations=tuple(histogram.snapshot(model) for model, histogram in self._generations.items()),
        )
