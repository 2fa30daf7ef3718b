"""Drafts of the home party that its client sees before they are committed."""

from __future__ import annotations

from collections.abc import Mapping

from tandem.events import Event, ProvisionalEvent, RetractEvent
from tandem.protocol.ballots import Entry
from tandem.protocol.prefix import Prefix


class Provisional:
    """The tokens that are shown: the committed ones, then drafts that continue them."""

    def __init__(self, session: int) -> None:
        self.shown = Prefix(session)

    def extend(self, own: Mapping[bytes, Entry], now_s: float) -> list[Event]:
        """Show the drafts that have become the next ones."""
        events: list[Event] = []
        while (entry := own.get(self.shown.digest)) is not None and entry.token is not None:
            events.append(
                ProvisionalEvent(step=len(self.shown), token=entry.token, text="", shown_at_s=now_s)
            )
            self.shown.append(entry.token)
        return events

    def commit(self, step: int, token: int) -> list[Event]:
        """`token` is committed: retract what contradicts it. Emit the result before the TokenEvent."""
        if len(self.shown) > step and self.shown.tokens[step] == token:
            return []
        events = self.retract(step)
        self.shown.append(token)
        return events

    def retract(self, step: int) -> list[Event]:
        """Whatever is shown from `step` on is void."""
        if len(self.shown) <= step:
            return []
        self.shown.truncate(step)
        return [RetractEvent(step=step)]
