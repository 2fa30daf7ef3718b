"""A span of OpenTelemetry for each query, where opentelemetry-api is installed; numbers and names, no text of a user.

Who exports spans is the operator's choice, by the SDK's own environment variables (`opentelemetry-instrument tandem
serve`); without a provider a span costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from tandem.events import DoneEvent, Event

try:
    from opentelemetry import context, propagate, trace
except ImportError:
    trace = None  # type: ignore[assignment]


def join_trace(headers: Mapping[str, str]) -> None:
    """What this task starts from now on belongs to the trace named in a client's headers (`traceparent`)."""
    if trace is not None:
        context.attach(propagate.extract(headers))


class QuerySpan:
    """The span of one query: its mode, how it ended, tokens and bytes."""

    def __init__(self, mode: str) -> None:
        attributes = {"tandem.mode": mode}
        self._span = trace and trace.get_tracer("tandem").start_span("tandem.query", attributes=attributes)

    def on_event(self, event: Event) -> None:
        """The next event."""
        if self._span is None or not isinstance(event, DoneEvent):
            return
        for name in ("num_tokens", "sent_bytes", "received_bytes"):
            self._span.set_attribute(f"tandem.{name}", getattr(event.statistics, name))
        self._span.set_attribute("tandem.reason", event.reason)
        self._span.set_attribute("tandem.is_degraded", event.statistics.degraded_from is not None)
        if event.reason == "failed":
            self._span.set_status(trace.StatusCode.ERROR)

    def on_end(self) -> None:
        """The query has ended, in whatever way."""
        if self._span is not None:
            self._span.end()
