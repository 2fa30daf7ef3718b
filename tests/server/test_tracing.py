"""The span of a query by the official SDK: its numbers, its events, and no text of a user."""

from __future__ import annotations

import httpx
import pytest

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed (extra [test])")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tandem.events import DoneEvent, Event, PeerEvent, SessionStatistics
from tandem.server import tracing
from tandem.server.tracing import QuerySpan
from tests.server.running import QUESTION

CHAT = {"model": "tandem", "messages": [{"role": "user", "content": QUESTION}], "seed": 5}


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """What ends up at an exporter."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return exporter


def spans_of(exported: InMemorySpanExporter) -> list[ReadableSpan]:
    return [span for span in exported.get_finished_spans() if span.name == "tandem.query"]


def played(exported: InMemorySpanExporter, *events: Event) -> ReadableSpan:
    span = QuerySpan("dual")
    for event in events:
        span.on_event(event)
    span.on_end()
    (finished,) = spans_of(exported)
    return finished


def test_an_answer_is_a_span(http: httpx.Client, exported: InMemorySpanExporter) -> None:
    done = http.post("/v1/chat/completions", json=CHAT).json()
    http.post("/v1/chat/completions", json=CHAT | {"max_tokens": 2, "mode": "speculative"})
    whole, short = spans_of(exported)
    assert whole.attributes == {
        "tandem.mode": "dual",
        "tandem.reason": "eos",
        "tandem.num_tokens": done["tandem"]["statistics"]["num_tokens"],
        "tandem.sent_bytes": done["tandem"]["statistics"]["sent_bytes"],
        "tandem.received_bytes": done["tandem"]["statistics"]["received_bytes"],
        "tandem.is_degraded": False,
    }
    assert dict(short.attributes or {})["tandem.mode"] == "speculative"
    assert dict(short.attributes or {})["tandem.num_tokens"] == 2
    assert whole.start_time is not None
    assert whole.end_time is not None
    assert whole.start_time < whole.end_time
    told = "".join(span.to_json() for span in (whole, short))
    assert QUESTION not in told
    assert done["choices"][0]["message"]["content"] not in told


def test_an_answer_is_in_the_trace_of_its_client(http: httpx.Client, exported: InMemorySpanExporter) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
    http.post("/v1/chat/completions", json=CHAT | {"max_tokens": 2}, headers=headers)
    (span,) = spans_of(exported)
    assert f"{span.context.trace_id:032x}" == trace_id


def test_no_span_of_a_request_names_a_file(http: httpx.Client, exported: InMemorySpanExporter) -> None:
    """FastAPI's own would hold the URL."""
    http.post("/v1/tandem/documents?name=diagnosis.md", content=b"x")
    http.delete("/v1/tandem/documents/diagnosis.md")
    assert "diagnosis" not in "".join(span.to_json() for span in exported.get_finished_spans())


def test_what_goes_wrong_is_in_it(exported: InMemorySpanExporter) -> None:
    span = played(
        exported,
        PeerEvent(step=3, is_alone=True, reason="The cloud has gone."),
        DoneEvent(reason="failed", statistics=SessionStatistics(degraded_from=3), error="It has failed."),
    )
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["tandem.is_degraded"] is True
    assert "gone" not in span.to_json()
    assert "It has failed" not in span.to_json()


def test_a_query_that_is_abandoned_ends_its_span(exported: InMemorySpanExporter) -> None:
    assert "tandem.reason" not in (played(exported).attributes or {})


def test_without_the_package_there_is_none(
    exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "trace", None)
    span = QuerySpan("dual")
    span.on_event(DoneEvent(reason="eos", statistics=SessionStatistics()))
    span.on_end()
    assert spans_of(exported) == []
