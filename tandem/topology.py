"""The two sides of a session.

Knows nothing of processes, nodes or addresses: a side is a name, absolute and the same everywhere.
"""

from __future__ import annotations

from enum import StrEnum


class Party(StrEnum):
    """Who holds which documents. Absolute: the only form used in messages, logs, config and files."""

    DEVICE = "device"
    CLOUD = "cloud"

    @property
    def other(self) -> Party:
        """The opposite side."""
        return Party.CLOUD if self is Party.DEVICE else Party.DEVICE


PARTIES: tuple[Party, Party] = (Party.DEVICE, Party.CLOUD)
"""Both sides, always in this order, so that sums over sides round alike on both hosts."""
