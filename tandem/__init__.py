"""Dual-side RAG on Ray: a device's private documents and a cloud's public ones write one answer together.

Importing the package is free: each name below is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tandem.client import Tandem
    from tandem.config import Config
    from tandem.errors import TandemError
    from tandem.events import (
        Answer,
        DoneEvent,
        Event,
        PeerEvent,
        PlacementEvent,
        ProvisionalEvent,
        RetractEvent,
        SessionStatistics,
        Source,
        SourcesEvent,
        TokenEvent,
    )
    from tandem.topology import Party

__version__ = "0.2.0.dev0"

__all__ = [
    "Answer",
    "Config",
    "DoneEvent",
    "Event",
    "Party",
    "PeerEvent",
    "PlacementEvent",
    "ProvisionalEvent",
    "RetractEvent",
    "SessionStatistics",
    "Source",
    "SourcesEvent",
    "Tandem",
    "TandemError",
    "TokenEvent",
]

_ELSEWHERE = {
    "Tandem": "tandem.client",
    "Config": "tandem.config",
    "TandemError": "tandem.errors",
    "Party": "tandem.topology",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_ELSEWHERE.get(name, "tandem.events")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
