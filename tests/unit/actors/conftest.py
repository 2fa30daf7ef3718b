"""What actors of a test have around them: settings, a data plane that keeps what it is given, frames of the link.

Tests that are coroutine functions run as those of the transport.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from tandem.actors.base import Runtime
from tandem.config.schema import Config
from tandem.messages import LinkFrame, decode
from tandem.protocol.log import Prefix
from tandem.transport.port import LinkCounters
from tests.unit.transport.conftest import pytest_pyfunc_call as pytest_pyfunc_call


def runtime(*settings: str) -> Runtime:
    """Of an actor with these settings, whose plane is a fake."""
    return Runtime(secret=b"s", directory="/nonexistent", config=Config.load(None, settings))


class Outbox:
    """A data plane that keeps what it is given; everybody is reachable."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []  # receiver, message
        self.counters: dict[str, LinkCounters] = defaultdict(LinkCounters)
        self.changed = asyncio.Event()

    def send(self, to: str, frame: bytes) -> None:
        self.sent.append((to, decode(frame)))
        self.changed.set()

    def flush(self) -> None:
        pass

    def is_connected(self, to: str) -> bool:
        return True

    def renew(self, to: str) -> None:
        pass

    async def close(self) -> None:
        pass

    @property
    def messages(self) -> list[Any]:
        """What was sent, to whomever."""
        return [message for _, message in self.sent]


def frame_of(body: Any, session: int = 1) -> LinkFrame:
    """The first frame of a link."""
    return LinkFrame(
        session=session, view=0, committed=0, committed_digest=Prefix(session).digest,
        stamp=1, echo=0, held_us=0, body=body,
    )  # fmt: skip
