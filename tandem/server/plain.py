"""What typed events are called, and JSON without spaces."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tandem import events

EVENT_NAMES: Mapping[type, str] = {
    events.SourcesEvent: "sources",
    events.TokenEvent: "token",
    events.ProvisionalEvent: "provisional",
    events.RetractEvent: "retract",
    events.WaitEvent: "wait",
    events.PlacementEvent: "placement",
    events.EstimateEvent: "estimate",
    events.RoundEvent: "round",
    events.PeerEvent: "peer",
    events.DoneEvent: "done",
}
"""What each class of events is called."""


def compact(value: Mapping[str, Any]) -> str:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))
