"""OpenTelemetry spans, one for each request and one for each of its phases; never one for a token.

The client's context comes in `traceparent`. Ours goes on in the message (`GenerationRequest.traceparent`), since context variables do not
pass through an actor's inbox, and from there to a remote engine. The phases are told when the request is over, from the queue's own
times, so that nothing is done for them while tokens are generated. Needs the extra `tripower[otel]`.

Names are those of the GenAI semantic conventions, which still move: they are all in this file. Nothing of a prompt or an answer is told.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tripower.actors.dialogue import GenerationRequest
from tripower.api.http.observe.records import RequestRecord
from tripower.runtime.kernel import InvalidConfiguration

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

log = logging.getLogger("tripower.http")

NANOSECONDS = 1_000_000_000
OPERATIONS = {
    "chat": "chat",
    "responses": "chat",
    "messages": "chat",
    "completions": "text_completion",
    "embeddings": "embeddings",
}
"""By the route's name. Other routes have no span."""
SAMPLING = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "seed": "gen_ai.request.seed",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
}


class Tracing:
    """Makes spans with a tracer of the embedding program's, or with one of its own that `open_tracer` made."""

    def __init__(self, tracer: Tracer) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._tracer = tracer
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, headers: Mapping[bytes, bytes], at: float) -> RequestSpan:
        """The span of a request that arrived at `at`, in seconds since 1970."""
        carrier = {
            name: headers[name.encode()].decode("latin-1") for name in ("traceparent", "tracestate") if name.encode() in headers
        }
        context = self._propagator.extract(carrier)
        span = self._tracer.start_span("request", context, kind=self._trace.SpanKind.SERVER, start_time=round(at * NANOSECONDS))
        carrier = {}
        self._propagator.inject(carrier, self._trace.set_span_in_context(span))
        return RequestSpan(self, span, carrier.get("traceparent", ""))

    def end(self, span: Span, record: RequestRecord, request: GenerationRequest | None) -> None:
        """Say what is known of a request that is over, and tell its phases."""
        operation = OPERATIONS.get(record.action)
        span.update_name(f"{operation} {record.model}".strip() if operation else f"{record.method} {record.route}")
        span.set_attributes(attributes(record, operation, request))
        if record.outcome == "failure":
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, record.end))
        began = record.at
        within = self._trace.set_span_in_context(span)
        for name, seconds in (
            ("queue", record.wait_seconds),
            ("prefill", record.prefill_seconds),
            ("decode", record.decode_seconds),
        ):
            if seconds is not None:
                phase = self._tracer.start_span(name, within, start_time=round(began * NANOSECONDS))
                began += seconds
                phase.end(round(began * NANOSECONDS))
        span.end(round((record.at + record.seconds) * NANOSECONDS))


class RequestSpan:
    """The span of one request that is under way."""

    def __init__(self, tracing: Tracing, span: Span, traceparent: str) -> None:
        self._tracing = tracing
        self._span = span
        self.traceparent = traceparent
        """What whoever works for this request names as its parent."""

    def end(self, record: RequestRecord, request: GenerationRequest | None) -> None:
        """The request is over. Never raises: what watches must not harm what it watches."""
        try:
            self._tracing.end(self._span, record, request)
        except Exception:
            log.exception("a span could not be told")


def attributes(record: RequestRecord, operation: str | None, request: GenerationRequest | None) -> dict[str, Any]:
    """What a span says."""
    said: dict[str, Any] = {
        "http.request.method": record.method,
        "http.route": record.route,
        "http.response.status_code": record.status,
        "tripower.request.id": record.request_id,
    }
    if record.outcome == "failure":
        said["error.type"] = record.end or str(record.status)
    if operation is None:
        return said
    said |= {"gen_ai.operation.name": operation, "gen_ai.provider.name": "tripower", "gen_ai.request.model": record.model}
    if record.outcome == "success":
        said |= {
            "gen_ai.response.model": record.model,
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.output_tokens": record.completion_tokens,
        }
        if record.end:
            said["gen_ai.response.finish_reasons"] = (record.end,)
    if record.prefill_seconds is not None:
        said["gen_ai.response.time_to_first_chunk"] = (record.wait_seconds or 0.0) + record.prefill_seconds
    return said | (asked(request) if request is not None else {})


def asked(request: GenerationRequest) -> dict[str, Any]:
    """The settings of a request that were given."""
    given = {name: getattr(request.sampling, field) for field, name in SAMPLING.items()}
    given["gen_ai.request.max_tokens"] = request.max_tokens
    given["gen_ai.request.stop_sequences"] = request.stop or None
    return {name: value for name, value in given.items() if value is not None}


def open_tracer() -> tuple[Tracer, Any]:
    """A tracer that exports by OTLP over HTTP, configured by the usual `OTEL_…` variables, and its provider, which must be shut down.

    Raises `InvalidConfiguration` with the command that installs what is missing.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise InvalidConfiguration(
            "server.traces needs OpenTelemetry: install it with `pip install 'tripower[otel]'`", param="server.traces"
        ) from error
    resource = Resource.create({"service.name": "tripower"})  # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider.get_tracer("tripower"), provider
