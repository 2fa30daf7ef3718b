"""The events of one session, kept by its home side until the client fetches them, tokens with their text."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tandem.engine.tokenizer import StopRule, TextStream
from tandem.events import (
    Event,
    ProvisionalEvent,
    RetractEvent,
    SourcesEvent,
    TokenEvent,
)
from tandem.transport.port import LinkCounters


class EventLog:
    """The events of one session, kept for the client."""

    def __init__(self, rule: StopRule, link: LinkCounters | None) -> None:
        self.events: list[Event] = []
        self.sources: dict[str, SourcesEvent] = {}
        self.changed = asyncio.Event()
        self.ended_s: float | None = None
        self.stream = TextStream(rule)
        self._detokenizer = rule.detokenizer
        self.provisional: list[TextStream] = []  # after each provisional token
        self.link = (
            link  # the link's counters when the session began; None: the session does not use the link
        )

    def add(self, event: Event) -> None:
        """Append an event and wake all waiting calls."""
        self.events.append(event)
        self.wake()

    def with_text(self, event: Event) -> Event:
        """The event with the text that its token adds. That text depends only on the tokens so far, so a provisional
        token adds the same text as it will once it is committed."""
        match event:
            case ProvisionalEvent():
                self.provisional.append((self.provisional or [self.stream])[-1].copy())
                return replace(event, text=self.provisional[-1].push([event.token]))
            case RetractEvent():
                del self.provisional[event.step - self.stream.num_tokens :]
            case TokenEvent():
                del self.provisional[:1]  # confirmed now, if there was one
                shown = replace(event, text=self.stream.push([event.token]))
                return shown if self._detokenizer is None else shown.spelled(self._detokenizer.spell)
        return event

    def wake(self) -> None:
        """Wake all waiting calls."""
        self.changed.set()
        self.changed = asyncio.Event()
