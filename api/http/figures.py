"""What the HTTP border counts. Owned by `ApiActor` and published through its `statistics()`; nobody else keeps a copy.

Durations are histograms with fixed buckets, so that no figure ever goes down. Labels come from closed sets: route templates, known
verbs, names of models that answered.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Literal

import msgspec

from tripower.actors.dialogue import Timings

REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
INTERVAL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
VERBS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER_VERB = "other"
UNMATCHED = "unmatched"
LIMITS = {"rate_limit_exceeded": "rate", "concurrency_exceeded": "concurrency", "share_exceeded": "share"}
"""What codes of 429 are called in the figures; those of remote engines are `other`."""


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


class FinishCount(msgspec.Struct, frozen=True):
    """How answers of a model ended: `stop`, `length`, `tool_calls`."""

    model: str
    reason: str
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
    waits: tuple[HistogramSnapshot, ...] = ()
    """In the waiting room, by model, of complete answers."""
    prefills: tuple[HistogramSnapshot, ...] = ()
    """Seat to first token, by model, of complete answers."""
    decodes: tuple[HistogramSnapshot, ...] = ()
    """First token to last one, by model, of complete answers."""
    token_intervals: tuple[HistogramSnapshot, ...] = ()
    """Between tokens on average, by model, of complete answers of at least two tokens."""
    finishes: tuple[FinishCount, ...] = ()
    auth_failures: tuple[tuple[str, int], ...] = ()
    """Requests without a key that is known, by why."""
    rate_limited: tuple[tuple[str, int], ...] = ()
    """Answers of 429, by which limit."""
    audit_failures: int = 0
    """Events that the audit log could not keep."""


class Histogram:
    """Durations in seconds, counted in fixed buckets."""

    def __init__(self, bounds: tuple[float, ...] = REQUEST_BUCKETS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._total += seconds

    def snapshot(self, *labels: str) -> HistogramSnapshot:
        return HistogramSnapshot(labels, self._bounds, tuple(self._counts), self._total)


class ModelFigures:
    """Of one model's complete answers."""

    def __init__(self) -> None:
        self.first_token, self.whole, self.wait, self.prefill, self.decode = (Histogram() for _ in range(5))
        self.token_interval = Histogram(INTERVAL_BUCKETS)

    def observe(self, timings: Timings, tokens: int) -> None:
        first_token = timings.wait_seconds + timings.prefill_seconds
        self.first_token.observe(first_token)
        self.whole.observe(first_token + timings.decode_seconds)
        self.wait.observe(timings.wait_seconds)
        self.prefill.observe(timings.prefill_seconds)
        self.decode.observe(timings.decode_seconds)
        if tokens > 1:
            self.token_interval.observe(timings.decode_seconds / (tokens - 1))


class Figures:
    """The counters. They outlive a restart of the actor."""

    def __init__(self) -> None:
        self._responses: Counter[tuple[str, str, int]] = Counter()
        self._durations: dict[tuple[str, str], Histogram] = {}
        self._models: dict[str, ModelFigures] = {}
        self._finishes: Counter[tuple[str, str]] = Counter()
        self._left = 0
        self._auth_failures: Counter[str] = Counter()
        self._rate_limited: Counter[str] = Counter()

    def count_auth_failure(self, reason: Literal["missing", "invalid", "admin"]) -> None:
        """Somebody came without a key, with one that nobody knows, or with one that is not enough."""
        self._auth_failures[reason] += 1

    def count_rate_limited(self, code: str) -> None:
        """Somebody was told to ask less."""
        self._rate_limited[LIMITS.get(code, "other")] += 1

    def count_answer(self, method: str, route: str, status: int, seconds: float, *, left: bool) -> None:
        """One request has ended."""
        method = method if method in VERBS else OTHER_VERB
        self._responses[method, route, status] += 1
        self._left += left
        key = (method, route)
        if key not in self._durations:
            self._durations[key] = Histogram()
        self._durations[key].observe(seconds)

    def count_generation(self, model: str, timings: Timings, *, tokens: int, reason: str) -> None:
        """One answer of a model is complete."""
        if model not in self._models:
            self._models[model] = ModelFigures()
        self._models[model].observe(timings, tokens)
        self._finishes[model, reason] += 1

    def statistics(
        self,
        *,
        url: str,
        draining: bool,
        open_connections: int,
        active_requests: int,
        accepted_connections: int,
        audit_failures: int = 0,
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
            first_tokens=tuple(each.first_token.snapshot(model) for model, each in self._models.items()),
            generations=tuple(each.whole.snapshot(model) for model, each in self._models.items()),
            waits=tuple(each.wait.snapshot(model) for model, each in self._models.items()),
            prefills=tuple(each.prefill.snapshot(model) for model, each in self._models.items()),
            decodes=tuple(each.decode.snapshot(model) for model, each in self._models.items()),
            token_intervals=tuple(each.token_interval.snapshot(model) for model, each in self._models.items()),
            finishes=tuple(FinishCount(*key, count) for key, count in self._finishes.items()),
            auth_failures=tuple(self._auth_failures.items()),
            rate_limited=tuple(self._rate_limited.items()),
            audit_failures=audit_failures,
        )
