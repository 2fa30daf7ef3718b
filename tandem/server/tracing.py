"""A span of OpenTelemetry for each query, where opentelemetry-api is installed; numbers and names, no text of a user.

Who exports spans is the operator's choice, by the SDK's own environment variables (`opentelemetry-instrument tandem
serve`); without a provider a span costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tandem.events import AcceptanceLowEvent, DoneEvent, Event, PeerEvent, SourcesEvent, TokenEvent

NAME = "tandem.query"


class QuerySpan:
    """The span of one query, and what happened within it."""

    def __init__(self, mode: str) -> None:
        self._span = _start(mode)
        self._has_token = False

    def on_event(self, event: Event) -> None:
        """The next event."""
        if self._span is None:
            return
        match event:
            case SourcesEvent():
                self._note("sources", party=event.party, num_documents=len(event.sources))
            case TokenEvent() if not self._has_token:
                self._has_token = True
                self._note("first_token")
            case PeerEvent():
                kind = "peer_lost" if event.is_alone else "peer_returned"
                self._note(kind, party=event.party, step=event.step)
            case AcceptanceLowEvent():
                self._note("acceptance_low", rate=event.rate, usual_rate=event.usual_rate)
            case DoneEvent():
                self._finish(event)

    def on_end(self) -> None:
        """The query has ended, in whatever way."""
        if self._span is not None:
            self._span.end()

    def _note(self, name: str, **attributes: Any) -> None:
        assert self._span is not None
        self._span.add_event(name, {f"tandem.{key}": value for key, value in attributes.items()})

    def _finish(self, done: DoneEvent) -> None:
        from opentelemetry.trace import StatusCode

        assert self._span is not None
        statistics = done.statistics
        self._span.set_attributes(
            {
                "tandem.reason": done.reason,
                "tandem.num_tokens": statistics.num_tokens,
                "tandem.sent_bytes": statistics.sent_bytes,
                "tandem.received_bytes": statistics.received_bytes,
                "tandem.is_degraded": statistics.degraded_from is not None,
            }
        )
        if done.reason == "failed":
            self._span.set_status(StatusCode.ERROR)


@contextmanager
def within_caller(headers: Mapping[str, str]) -> Iterator[None]:
    """Spans that are started meanwhile belong to the trace that a client names in its headers (`traceparent`)."""
    try:
        from opentelemetry import context, propagate
    except ImportError:
        yield
        return
    token = context.attach(propagate.extract(headers))
    try:
        yield
    finally:
        context.detach(token)


def _start(mode: str) -> Any:
    """A span that runs, a child of the one that is current; None without the package."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace.get_tracer("tandem").start_span(NAME, attributes={"tandem.mode": mode})
