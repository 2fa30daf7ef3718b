"""What an actor says of a failure."""

from __future__ import annotations

from tandem.topology import PARTIES

MAX_REASON_CHARS = 10_000
"""A reason why a query failed is cut here, far below the size of a message."""


def remedy_for(party: str) -> str:
    """What helps where an actor of a party has died."""
    if party not in PARTIES:
        return "close this cluster and launch another"
    return f"ask again in a moment where `tandem up {party}` started it, else launch again"


def sendable(text: str) -> str:
    """`text` in a form that fits a message: characters that UTF-8 cannot encode are escaped, long texts are cut."""
    return text[:MAX_REASON_CHARS].encode("utf-8", "backslashreplace").decode()
