"""The two parties of a session. A party is an absolute name, the same in every process."""

from __future__ import annotations

from enum import StrEnum


class Party(StrEnum):
    """Who holds which documents; the only form used in messages, logs, settings and files."""

    DEVICE = "device"
    CLOUD = "cloud"

    @property
    def other(self) -> Party:
        """The opposite party."""
        return Party.CLOUD if self is Party.DEVICE else Party.DEVICE


PARTIES: tuple[Party, Party] = (Party.DEVICE, Party.CLOUD)
"""Both parties, always in this order, so that sums over parties round alike on both hosts."""
