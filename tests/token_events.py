"""Committed tokens of scripted answers."""

from __future__ import annotations

from math import nan
from typing import Any

from tandem.events import TokenEvent
from tandem.topology import Party


def committed(step: int, **changes: Any) -> TokenEvent:
    """The token of a step, which equals both drafts, but for these fields."""
    values: dict[str, Any] = {
        "token": step,
        "text": "",
        "device_accepted": True,
        "cloud_accepted": True,
        "aggregator": Party.DEVICE,
        "committed_s": 0.0,
        "device_decode_s": nan,
        "cloud_decode_s": nan,
    }
    return TokenEvent(step=step, **values | changes)
