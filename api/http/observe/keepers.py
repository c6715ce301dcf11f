"""Who keeps records of requests: the figures and the log always, an audit log and spans where the settings ask for them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import trio

from tripower.api.http.exchange import CLIENT_LEFT, Exchange
from tripower.api.http.figures import Figures
from tripower.api.http.observe.audit import AuditLog
from tripower.api.http.observe.records import RequestRecord, line
from tripower.api.http.observe.spans import RequestSpan, Tracing, open_tracer
from tripower.runtime.configuration import ServerSettings
from tripower.runtime.kernel import InvalidConfiguration

log = logging.getLogger("tripower.http")

UNAUDITED = frozenset(
    {
        "health",
        "ready",
        "metrics",
        "models",
        "model",
        "router_models",
        "openapi",
        "slots",
        "requests",
        "ui",
        "ui_style",
        "ui_script",
        "ui_state",
        "",
    }
)
"""Names of routes that only look; the empty one is of paths without a route."""
OFTEN = frozenset({"ui_state"})
"""What a page asks every second while somebody looks at it: the log tells of failures only."""
ACTIONS = {
    "completions": "completion",
    "embeddings": "embedding",
    "load_model": "model_load",
    "unload_model": "model_unload",
    "responses": "chat",
    "messages": "chat",
}
"""The audit log's words for routes, where they are not the route's name."""


@attrs.frozen
class Keepers:
    """What every finished request is told to. Outlives a restart of the actor."""

    figures: Figures = attrs.Factory(Figures)
    audit: AuditLog | None = None
    audit_denies: bool = False
    """Whether work is refused while it cannot be recorded."""
    tracing: Tracing | None = None

    def begin(self, exchange: Exchange) -> RequestSpan | None:
        """A request arrives: its span, if there are any."""
        return None if self.tracing is None else self.tracing.begin(exchange.headers, time.time())

    def check(self) -> None:
        """Raise `Unavailable` (`audit_failed`) where what a request does could not be recorded."""
        if self.audit_denies and self.audit is not None:
            self.audit.check()

    @property
    def refuses(self) -> bool:
        """Whether work is refused now because it could not be recorded."""
        return self.audit_denies and self.audit is not None and self.audit.failing

    def end(self, exchange: Exchange, action: str, span: RequestSpan | None) -> None:
        """A request is over. Synchronous, blocks on nothing."""
        left = exchange.end == "disconnect"
        status = exchange.status or (CLIENT_LEFT if left else 500)
        seconds = trio.current_time() - exchange.began
        self.figures.count_answer(exchange.method, exchange.route, status, seconds, left=left)
        if status == 429:
            self.figures.count_rate_limited(exchange.end)
        level = logging.DEBUG if action in OFTEN and status == 200 else logging.INFO
        logs = log.isEnabledFor(level)
        if not logs and span is None and self.audit is None:
            return
        record = record_of(exchange, action, status, seconds)
        if logs:
            log.log(level, "%s", line(record), extra={"request": record})
        if span is not None:
            span.end(record, exchange.asked)
        if self.audit is not None:
            _audit(self.audit, record)


def record_of(exchange: Exchange, action: str, status: int, seconds: float) -> RequestRecord:
    timings = exchange.timings
    return RequestRecord(
        at=time.time() - seconds,
        request_id=exchange.request_id.decode(),
        identity=exchange.caller.label,
        method=exchange.method,
        route=exchange.route,
        action=action,
        status=status,
        end=exchange.end,
        model=exchange.asked.model if exchange.asked is not None else exchange.model,
        seconds=seconds,
        wait_seconds=None if timings is None else timings.wait_seconds,
        prefill_seconds=None if timings is None else timings.prefill_seconds,
        decode_seconds=None if timings is None else timings.decode_seconds,
        prompt_tokens=exchange.prompt_tokens,
        completion_tokens=exchange.completion_tokens,
        ignored=exchange.ignored,
    )


def _audit(audit: AuditLog, record: RequestRecord) -> None:
    if record.status in (401, 403):
        action = "auth_failure"
    elif record.action in UNAUDITED:
        return
    else:
        action = ACTIONS.get(record.action, record.action)
    outcome = record.outcome
    audit.record(
        action,
        outcome,
        request_id=record.request_id,
        identity=record.identity,
        model=record.model[:200],
        reason="" if outcome == "success" else record.end or str(record.status),
        duration_ms=round(1000 * record.seconds, 3),
        tokens=record.prompt_tokens + record.completion_tokens,
    )


@contextmanager
def open_keepers(settings: ServerSettings) -> Iterator[Keepers]:
    """What the settings ask for, closed at the end of the block. Blocks for the audit log's file.

    Raises `InvalidConfiguration` for a file that cannot be written or is no audit log, and where OpenTelemetry is not installed.
    """
    audit, provider, tracing = None, None, None
    if settings.traces:
        tracer, provider = open_tracer()
        tracing = Tracing(tracer)
    if settings.audit_file:
        try:
            audit = AuditLog(Path(settings.audit_file).expanduser())
        except OSError as error:
            raise InvalidConfiguration(
                f"server.audit_file cannot be written: {error.strerror}", param="server.audit_file"
            ) from error
        audit.record("startup", "success")
    try:
        yield Keepers(audit=audit, audit_denies=settings.audit_denies, tracing=tracing)
    finally:
        if audit is not None:
            audit.record("shutdown", "success")
            audit.close()
        if provider is not None:
            provider.shutdown()
