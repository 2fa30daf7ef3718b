"""The decoders of one party, of which there may be several: a session moves only when its decoder is lost.

first message of a session --> the decoder with the fewest open sessions, from then on always that one
a decoder is lost --> its sessions are given again, as they stand, each to the one with the fewest
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from tandem.messages import End, ProposalLength, Window
from tandem.protocol.outbox import Send

MAX_ENDED = 1024
"""Ended sessions whose decoders are remembered, for what is still said to them."""

Order = Window | ProposalLength
"""What profiler and scheduler have a decoder do; they do not know which one has a session."""


class DecoderPool:
    """The decoders of a party and their sessions, as its draft queue sees them.

    Invariants: a session has at most one decoder at a time, and it was there when it was chosen. The only decoder of a
    party is never given up: whether it is there is up to the connection to it.
    """

    def __init__(self, names: Sequence[str], is_open: Callable[[int], bool]) -> None:
        """names: of all decoders. is_open: whether a session is; others do not count."""
        self.names = tuple(names)
        self._is_open = is_open
        self._lost: set[str] = set()
        self._pins: dict[int, str] = {}
        self._holders: OrderedDict[int, dict[str, None]] = (
            OrderedDict()
        )  # that ever had it, oldest session first
        self._orders: dict[int, dict[type[Order], Order]] = {}  # the last of each kind, by session

    @property
    def available(self) -> tuple[str, ...]:
        """Those that are not lost."""
        return tuple(name for name in self.names if name not in self._lost)

    def receivers(self, message: Any) -> tuple[str, ...]:
        """The receivers of a message: the session's decoder, chosen now if it has none; of an End, all it ever had."""
        if len(self.names) == 1:
            return self.names
        if isinstance(message, End):
            return tuple(self._holders.get(message.session, ()))
        if message.session not in self._pins and not self._pin(message.session):
            return ()
        return (self._pins[message.session],)

    def lose(self, name: str) -> list[int] | None:
        """A decoder is gone; returns its open sessions, for others to go on with, or None if there are no others."""
        if len(self.names) == 1:
            return None
        self._lost.add(name)
        moved = [session for session, pinned in self._pins.items() if pinned == name]
        for session in moved:
            del self._pins[session]
        return [session for session in moved if self._is_open(session)] if self.available else None

    def find(self, name: str) -> list[int]:
        """A decoder is there, perhaps again; returns sessions that it may still hold although they have ended."""
        self._lost.discard(name)
        return [
            session
            for session, holders in self._holders.items()
            if name in holders and not self._is_open(session)
        ]

    def note(self, order: Order) -> list[Send]:
        """An order for the session's decoder, now and whichever has it later; nothing if the session is not open."""
        if not self._is_open(order.session):
            return []
        self._orders.setdefault(order.session, {})[type(order)] = order
        return [Send("decoder", order)]

    def orders(self, session: int) -> list[Send]:
        """The last orders to the decoder of a session, for another one."""
        return [Send("decoder", order) for order in self._orders.get(session, {}).values()]

    def _pin(self, session: int) -> bool:
        """Choose a decoder for a session; False if all are lost."""
        num_open = Counter(pinned for known, pinned in self._pins.items() if self._is_open(known))
        if not self.available:
            return False
        self._pins[session] = name = min(self.available, key=lambda known: num_open[known])
        self._holders.setdefault(session, {})[name] = None
        self._forget()
        return True

    def _forget(self) -> None:
        """Forget the ended sessions that began first."""
        for session in list(self._holders):
            if len(self._holders) <= MAX_ENDED:
                return
            if not self._is_open(session):
                del self._holders[session]
                self._pins.pop(session, None)
                self._orders.pop(session, None)
