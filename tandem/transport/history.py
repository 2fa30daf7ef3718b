"""How dialling one actor has gone: what decides whether an end tries again, how soon, and what its user reads."""

from __future__ import annotations

import logging
from math import inf

from tandem.errors import ProtocolError
from tandem.transport.handshake import Refused

_log = logging.getLogger("tandem")

MAX_REFUSALS = 3
"""Attempts in a row that may be refused for good before an actor that was never reached is given up."""
BRIEF_S = 10.0
"""A connection that lived for less counts as a failed attempt, except for the first in a row: a link may break twice.
Longer than MAX_RETRY_S of dialling: two ends that replace each other would otherwise start over at every turn."""


class DialHistory:
    """Connections to one actor that this end opened, and refusals since the last one."""

    def __init__(self, own: str, name: str) -> None:
        """own, name: of this actor and of the other one."""
        self.refusal: ProtocolError | None = None  # the latest
        self._own, self._name = own, name
        self._has_met = False
        self._num_refusals = 0  # for good, since dialling began
        self._num_brief = 0  # connections in a row
        self._opened_s = -inf

    def begin(self) -> int:
        """Dialling begins; the number of attempts that count as failed already."""
        self._num_refusals = 0
        return max(0, self._num_brief - 1)

    def opened(self, now_s: float) -> None:
        """There is a connection."""
        self.refusal, self._has_met, self._opened_s = None, True, now_s

    def lost(self, now_s: float) -> None:
        """The connection broke, and no other one had replaced it."""
        self._num_brief = self._num_brief + 1 if now_s - self._opened_s < BRIEF_S else 0

    def refused(self, error: ProtocolError) -> None:
        """The other actor refused this one, or was not what it should be; raises `error` to give up."""
        if self.refusal is None:
            _log.error("%s cannot connect to %s: %s", self._own, self._name, error)
        self.refusal = error
        self._num_refusals += not (isinstance(error, Refused) and error.retry_after_s is not None)
        if self._num_refusals == MAX_REFUSALS and not self._has_met:
            raise error
