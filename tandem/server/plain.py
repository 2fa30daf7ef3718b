"""Typed events as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
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
    events.AcceptanceLowEvent: "acceptance_low",
    events.PeerEvent: "peer",
    events.DoneEvent: "done",
}
"""What each class of events is called."""


def to_plain(value: Any) -> dict[str, Any]:
    """A dataclass as JSON holds it: what was not measured (nan) and what has no bound (inf) is null."""
    plain: dict[str, Any] = _finite(asdict(value))
    return plain


def compact(value: Mapping[str, Any]) -> str:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
