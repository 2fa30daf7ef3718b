"""The draft queue of a cloud that serves many devices, each of which sees its own queries only.

    device "@phone" --LinkFrame--> HostQueue --as from "device"--> session table
    device "@phone" <--LinkFrame-- HostQueue <--to "device"------- session table

A session belongs to the device that opened it. Its number, 32 random bits, is part of every digest, so it is not
translated; a number that another device uses already is refused, and a frame for another device's session is dropped.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Any

from tandem.actors.base import Runtime
from tandem.actors.draft_queue import DraftQueueActor
from tandem.errors import Code, ProtocolError, QueryError, TandemError
from tandem.messages import Cancel, LinkFrame, Open, encode
from tandem.modes.spec import SessionSpec
from tandem.protocol.limits import check_spec
from tandem.protocol.outbox import Send
from tandem.protocol.peer import Peer
from tandem.protocol.prefix import Prefix
from tandem.topology import Party

_log = logging.getLogger("tandem")
PEER = f"{Party.DEVICE}/draft_queue"
MAX_OWNERS = 1024
"""Sessions whose device is remembered, beyond those that are open."""
SESSIONS_PER_QUERY = 2
"""Of a device that keeps to its limit: after a broken link, what has ended there may still be open here."""


def is_device(name: str) -> bool:
    """Whether a name on the data plane is that of a device's draft queue."""
    return name.startswith("@")


class HostQueue(DraftQueueActor):
    """Gives every query of every device to the same session table, and keeps them apart."""

    def __init__(self, party: str, runtime: Runtime) -> None:
        super().__init__(party, runtime)
        self.num_foreign = 0  # frames of a device for a session that is not its own
        self.owners: dict[int, str] = {}  # session -> draft queue of its device, oldest first
        self.table.owner_of = lambda session: self.owners.get(session, "")

    def receive(self, message: Any, source: str) -> None:
        """A message of this site, or a device's frame for one of its sessions."""
        if not is_device(source):
            super().receive(message, source)
            return
        if isinstance(message.body, Open) and message.session not in self.owners:
            if (refusal := self._find_refusal(message.body, source)) is not None:
                self._refuse(message, source, refusal)
                return
            self.owners[message.session] = source
            self._forget_owners()
        if self.owners.get(message.session) != source:
            self.num_foreign += 1
            if self.num_foreign.bit_count() == 1:
                _log.warning(
                    "%s dropped a frame of %s for a query that it has not opened, %d so far",
                    self.name,
                    source,
                    self.num_foreign,
                )
            return
        super().receive(message, PEER)

    def send_to_peer(self, send: Send, frame: bytes) -> None:
        """To the device whose session it is."""
        if owner := self.owners.get(send.message.session):
            self.bus.send(self._plane(), owner, frame)

    def on_connected(self, name: str) -> None:
        """Resend at once what this device has not acknowledged."""
        if not is_device(name):
            super().on_connected(name)
        elif own := [session for session in self.table.sessions if self.owners.get(session) == name]:
            self.dispatch(self.table.resend_all(time.monotonic(), Party.DEVICE, own))

    def open_by_device(self) -> Counter[str]:
        """How many queries each device has open or waiting, by the name of its draft queue."""
        return Counter(owner for session, owner in self.owners.items() if self.table.holds(session))

    def _find_refusal(self, opening: Open, source: str) -> TandemError | None:
        """The reason why a query of a device is not taken, if so. One that is malformed is for the table to refuse.

        Devices know `max_queries` and keep the rest waiting, so a limit protects the cloud from those that do not.
        """
        limits = self.config.devices
        if (num_open := self.open_by_device()[source]) >= SESSIONS_PER_QUERY * limits.max_queries:
            return QueryError(
                f"This device has {num_open} queries open at the cloud, as many as it may; wait for one to end.",
                code=Code.BUSY,
                retry_after_s=1,
            )
        try:
            check_spec(SessionSpec.from_json(opening.spec), limits.max_answer_tokens)
        except ProtocolError as error:
            return error
        return None

    def _refuse(self, frame: LinkFrame, source: str, error: TandemError) -> None:
        self.table.num_refused += 1
        if (
            self.table.num_refused.bit_count() == 1
        ):  # ever more rarely: a device decides how often this happens
            _log.warning(
                "%s refused a query of %s, %d so far: %s", self.name, source, self.table.num_refused, error
            )
        link = Peer(frame.session, time.monotonic(), Party.DEVICE)
        send = link.send(
            Cancel(reason=str(error), fault=error.fault), Prefix(frame.session), time.monotonic()
        )
        self.bus.send(self._plane(), source, encode(send.message))

    def _forget_owners(self) -> None:
        """Forget the owners of the sessions that ended first."""
        for session in list(self.owners):
            if len(self.owners) <= MAX_OWNERS:
                return
            if not self.table.holds(session):
                del self.owners[session]

    def _extra_statistics(self) -> dict[str, float]:
        turned_away = getattr(self.plane, "num_turned_away", 0)
        return {
            **super()._extra_statistics(),
            "num_foreign": self.num_foreign,
            "num_turned_away": turned_away,
        }
