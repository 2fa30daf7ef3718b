"""What one party still owes its peer, and what it still has to acknowledge. Both hold within one view."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from tandem.messages import ListRequest, Proposal, Sources, Verdict, Votes
from tandem.protocol.round_trips import MAX_TIMEOUT_S

RECEIPT_S = 0.1
"""A receipt waits at most this long, or half a round trip, for a frame to travel with."""
MAX_RECEIPTS = 4096
"""Receipts that wait for a frame; of more bodies at once the rest is not acknowledged, so it comes again."""


Numbered: TypeAlias = Proposal | Verdict | Sources | Votes | ListRequest
"""Bodies whose receipt is acknowledged."""


@dataclass(slots=True)
class Parcel:
    """A body that was sent, and how the sending went."""

    body: Numbered
    sent_s: float
    num_sent: int = 1
    is_received: bool = False


class Backlog:
    """Proposals, votes and verdicts that the peer has not committed, by their number in this session.

    Invariants: a number names one body for ever. A body is resent until the peer has acknowledged its receipt, and kept
    until the peer has committed its step or no committed prefix can need it any more; a request until its step is
    committed here; what has no step is kept to the end of the view.
    """

    def __init__(self) -> None:
        self.parcels: dict[int, Parcel] = {}
        self._last_number = 0  # 0 stands for a body that needs no receipt

    def __len__(self) -> int:
        return len(self.parcels)

    def add(self, body: Numbered, now_s: float) -> int:
        """Keep a body that is sent now; returns its number."""
        self._last_number += 1
        self.parcels[self._last_number] = Parcel(body, now_s)
        return self._last_number

    def supersede(self, body: Proposal | Votes) -> None:
        """Forget what says less of the same prefix: one vote of the same party, a shorter list of it."""
        self.parcels = {
            key: parcel for key, parcel in self.parcels.items() if not _says_less(parcel.body, body)
        }

    def receive_receipts(self, numbers: Iterable[int], now_s: float) -> None:
        """The peer has these. It is alive, so what it lacks need not wait any longer than at first."""
        is_fresh = False
        for number in numbers:
            parcel = self.parcels.get(number)
            if parcel is not None and not parcel.is_received:
                parcel.is_received = is_fresh = True
        for parcel in self.parcels.values() if is_fresh else ():
            if not parcel.is_received and parcel.num_sent > 1:
                parcel.num_sent, parcel.sent_s = 1, now_s

    def take_overdue(self, now_s: float, timeout_s: float) -> dict[int, Parcel]:
        """What is to be sent again now: not received within the timeout, which doubles each time."""
        overdue: dict[int, Parcel] = {}
        for number, parcel in self.parcels.items():
            if parcel.is_received or now_s - parcel.sent_s < min(timeout_s, MAX_TIMEOUT_S):
                continue
            wait_s = min(timeout_s * 2 ** (parcel.num_sent - 1), MAX_TIMEOUT_S)
            if now_s - parcel.sent_s >= wait_s:
                overdue[number] = parcel
                parcel.num_sent += 1
                parcel.sent_s = now_s
        return overdue

    def drop_committed(self, step: int) -> None:
        """The peer has committed all steps before `step`."""
        self.parcels = {
            key: parcel
            for key, parcel in self.parcels.items()
            if isinstance(parcel.body, Sources) or _last_step(parcel.body) >= step
        }

    def drop_dead(self, live: Container[bytes], step: int) -> None:
        """Drop proposals from `step` on whose digest is not among the `live` ones, and requests for earlier steps."""
        self.parcels = {
            key: parcel for key, parcel in self.parcels.items() if not _is_dead(parcel.body, live, step)
        }

    def clear(self) -> None:
        """A new view: whatever the peer needs in it is added again."""
        self.parcels.clear()


def _last_step(body: Proposal | Verdict | Votes | ListRequest) -> int:
    """The last step that the body has to do with."""
    match body:
        case Votes():
            return body.step + len(body.digests) - 1
        case ListRequest():
            return body.step
        case _:
            return body.step + max(1, len(body.tokens)) - 1


def _says_less(body: Numbered, other: Proposal | Votes) -> bool:
    match body, other:
        case Proposal(), Proposal():
            return body.digest == other.digest and len(body.tokens) == 1
        case Votes(), Votes():
            return body.digests == other.digests
        case _:
            return False


def _is_dead(body: Numbered, live: Container[bytes], step: int) -> bool:
    if isinstance(body, ListRequest):
        return body.step < step
    return isinstance(body, Proposal) and body.step >= step and body.digest not in live


class Receipts:
    """Numbers of the peer's bodies that arrived and were not acknowledged yet.

    Invariant: every arrival is acknowledged once, a repeated one too, but for those beyond MAX_RECEIPTS. A receipt that
    is lost costs a resend.
    """

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._since_s = 0.0

    def add(self, number: int, now_s: float) -> None:
        """A body with this number has arrived, and is held or no longer needed. 0: it needs no receipt."""
        if number == 0 or len(self.numbers) >= MAX_RECEIPTS:
            return
        if not self.numbers:
            self._since_s = now_s
        self.numbers.append(number)

    def is_due(self, now_s: float, rtt_s: float = 0.0) -> bool:
        """Whether a frame should go out for their sake."""
        return bool(self.numbers) and now_s - self._since_s >= max(RECEIPT_S, rtt_s / 2)

    def take(self) -> tuple[int, ...]:
        """For the header of a frame that is sent now."""
        numbers, self.numbers = tuple(self.numbers), []
        return numbers

    def clear(self) -> None:
        """A new view: older numbers mean nothing in it."""
        self.numbers.clear()
