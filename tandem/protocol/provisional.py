"""What the user sees of the own side's drafts before they are committed: the longest chain of them, told in order.

Each draft that is told was conditioned on what was committed or told before it. Knows tokens and digests; decides
nothing, and forgets nothing that the queue still holds.
"""

from __future__ import annotations

from collections.abc import Mapping

from tandem.events import Event, ProvisionalEvent, RetractEvent
from tandem.protocol.messages import Proposal
from tandem.protocol.prefix import Prefix


class Provisional:
    """The tokens that are shown: those committed, then provisional ones."""

    def __init__(self, session: int) -> None:
        self.shown = Prefix(session)
        self._tokens: dict[bytes, int] = {}  # of own drafts, by the digest of their prefix

    def drafted(self, draft: Proposal, token: int) -> None:
        """A new own draft; of two for one prefix the first counts, as in the queue."""
        self._tokens.setdefault(draft.digest, token)

    def extend(self, held: Mapping[bytes, Proposal], now_s: float) -> list[Event]:
        """Tell the drafts that have become the next ones. held: the queue's own drafts, by digest."""
        events: list[Event] = []
        self._tokens = {key: token for key, token in self._tokens.items() if key in held}
        while (token := self._tokens.get(self.shown.digest)) is not None:
            events.append(ProvisionalEvent(step=len(self.shown), token=token, text="", shown_at_s=now_s))
            self.shown.append(token)
        return events

    def commit(self, step: int, token: int) -> list[Event]:
        """`token` is committed: what contradicts it is void, to be told before its TokenEvent."""
        is_confirmed = len(self.shown) > step and self.shown.tokens[step] == token
        events = [] if is_confirmed else self.retract(step)
        if not is_confirmed:
            self.shown.append(token)
        return events

    def retract(self, step: int) -> list[Event]:
        """Whatever is shown from `step` on is void."""
        if len(self.shown) <= step:
            return []
        self.shown.truncate(step)
        return [RetractEvent(step=step)]
