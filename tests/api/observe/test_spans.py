"""Spans: one for a request in its client's trace, one for each phase, and the context goes on in the message."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.api.fake_runtime import HELLO, Script, failed
from tests.api.serving import ASK, CHAT, serving
from tripower.api.http.observe.keepers import Keepers
from tripower.api.http.observe.spans import Tracing

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "marzipan"


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    yield InMemorySpanExporter()


def keepers(exporter: InMemorySpanExporter) -> Keepers:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Keepers(tracing=Tracing(provider.get_tracer("test")))


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


async def test_a_request_and_its_phases_lie_in_the_clients_trace(exporter: InMemorySpanExporter) -> None:
    asking = ASK | {"messages": [{"role": "user", "content": SECRET}], "temperature": 0.5, "max_tokens": 7, "stop": ["x"]}
    async with serving(HELLO, keepers=keepers(exporter)) as server:
        await server.ask(CHAT, asking, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
        given = server.runtime.requests[0].traceparent
    spans = by_name(exporter)
    assert set(spans) == {"chat fake", "queue", "prefill", "decode"}
    request = spans["chat fake"]
    assert request.context is not None and request.parent is not None and request.attributes is not None
    assert f"{request.context.trace_id:032x}" == TRACE and f"{request.parent.span_id:016x}" == PARENT
    assert given == f"00-{TRACE}-{request.context.span_id:016x}-01"
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "tripower",
        "gen_ai.request.model": "fake",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 7,
        "gen_ai.request.stop_sequences": ("x",),
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.time_to_first_chunk": 0.75,
        "http.response.status_code": 200,
    }
    assert {name: request.attributes[name] for name in expected} == expected
    assert SECRET not in str([span.to_json() for span in spans.values()])
    lengths = {name: (span.end_time or 0) - (span.start_time or 0) for name, span in spans.items()}
    assert [round(lengths[name] / 1e9, 2) for name in ("queue", "prefill", "decode")] == [0.5, 0.25, 2.0]
    assert all(spans[name].parent.span_id == request.context.span_id for name in ("queue", "prefill", "decode"))  # type: ignore[union-attr]


async def test_a_failure_is_said_and_a_broken_context_begins_a_trace(exporter: InMemorySpanExporter) -> None:
    async with serving(Script([failed()]), keepers=keepers(exporter)) as server:
        await server.ask(CHAT, ASK, headers={"traceparent": "what"})
        await server.ask("/v1/nothing")
    spans = by_name(exporter)
    assert spans["chat fake"].parent is None
    assert spans["chat fake"].status.description == "device_failed"
    assert (
        spans["GET unmatched"].attributes is not None and spans["GET unmatched"].attributes["error.type"] == "route_not_found"
    )


async def test_without_tracing_a_message_carries_no_context() -> None:
    async with serving(HELLO) as server:
        await server.ask(CHAT, ASK, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
        assert server.runtime.requests[0].traceparent == ""
