"""CONCORD's waiting debt: while waiting has not paid, steps are committed without the cloud.

Hu et al., *CONCORD: Asynchronous Sparse Aggregation for Device-Cloud RAG under Document Isolation* (arXiv 2606.15179):
greedy decoding, in which the return of past waiting decides whether a step waits for the cloud; a step that does has
the token of the whole mixture, as with Tandem's race lists, and any other the device's own.
NOT in the paper, of which we could read the abstract alone: how the debt is kept. `WaitingDebt` is our guess, with one
dial. A step whose cloud vote is there uses it, debt or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

from tandem.events import Event, TokenEvent
from tandem.topology import Party
from tandem_lab.simulation.virtual import VirtualRun


@dataclass(slots=True)
class WaitingDebt:
    """Seconds that were waited in vain and not yet paid back; a step may wait only without any."""

    relief_s: float  # what each step without the cloud pays back
    debt_s: float = 0.0

    @property
    def may_wait(self) -> bool:
        """Whether the next step may wait for the cloud."""
        return self.debt_s <= 0

    def wait(self, waited_s: float, *, is_changed: bool) -> None:
        """A step had the cloud's vote. is_changed: its token is not the device's own, which remits all debt."""
        self.debt_s = 0.0 if is_changed else self.debt_s + waited_s

    def skip(self) -> None:
        """A step was committed without the cloud."""
        self.debt_s = max(0.0, self.debt_s - self.relief_s)


class WaitingDebtRun(VirtualRun):
    """A greedy query that the device decides, each step as soon as the debt says so.

    The wait of a step begins when the one before is committed and the device's own vote is there.
    """

    def __init__(self, *args: Any, relief_s: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self.debt = WaitingDebt(relief_s)
        self._committed_s = 0.0

    def after_event(self, party: str) -> None:
        """Commit a step that may not wait."""
        session = self.session(Party.DEVICE) if party == Party.DEVICE else None
        if session is None or session.end.reason is not None or self.debt.may_wait:
            return
        digest, ballots = session.prefix.digest, session.ballots
        if (
            digest in ballots.own
            and digest not in ballots.entries[Party.CLOUD]
            and not ballots.is_late(digest)
        ):
            ballots.limit_wait(digest, 0.0, 0.0, inf)
            self.deliver(party, self.tick(party))

    def _on_event(self, event: Event) -> None:
        super()._on_event(event)
        if isinstance(event, TokenEvent):
            if event.is_alone:
                self.debt.skip()
            else:
                since_s = max(self._committed_s, event.device_arrived_s)
                waited_s = max(0.0, event.cloud_arrived_s - since_s)
                self.debt.wait(waited_s, is_changed=not event.device_accepted)
            self._committed_s = event.committed_s
