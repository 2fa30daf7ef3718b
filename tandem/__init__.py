"""Cooperative decoding on Ray: a device's private documents and a cloud's public ones write one answer together.

Importing the package is free: each name below is loaded when it is first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tandem.system import __version__ as __version__

if sys.platform == "win32":
    raise ImportError("Tandem runs on Linux and macOS; on Windows, install it within WSL 2.")

if TYPE_CHECKING:
    from tandem.citations import Citation, Span
    from tandem.client.ask import BatchItem
    from tandem.client.request import QueryOptions
    from tandem.client.tandem import Tandem
    from tandem.config.schema import Config, SamplingParams
    from tandem.errors import (
        CallError,
        ClusterError,
        Code,
        ConfigError,
        Fault,
        FilterError,
        GenerationError,
        ProtocolError,
        QueryError,
        RetrievalError,
        TandemError,
    )
    from tandem.events import (
        Answer,
        CitationEvent,
        DoneEvent,
        EstimateEvent,
        Event,
        PeerEvent,
        PlacementEvent,
        ProvisionalEvent,
        RetractEvent,
        SessionStatistics,
        Source,
        SourcesEvent,
        StepEvent,
        TokenEvent,
        WaitEvent,
    )
    from tandem.topology import Party

__all__ = [
    "Answer",
    "BatchItem",
    "CallError",
    "Citation",
    "CitationEvent",
    "ClusterError",
    "Code",
    "Config",
    "ConfigError",
    "DoneEvent",
    "EstimateEvent",
    "Event",
    "Fault",
    "FilterError",
    "GenerationError",
    "Party",
    "PeerEvent",
    "PlacementEvent",
    "ProtocolError",
    "ProvisionalEvent",
    "QueryError",
    "QueryOptions",
    "RetractEvent",
    "RetrievalError",
    "SamplingParams",
    "SessionStatistics",
    "Source",
    "SourcesEvent",
    "Span",
    "StepEvent",
    "Tandem",
    "TandemError",
    "TokenEvent",
    "WaitEvent",
]

_MODULES = {
    "BatchItem": "tandem.client.ask",
    "Citation": "tandem.citations",
    "Span": "tandem.citations",
    "Code": "tandem.errors",
    "Fault": "tandem.errors",
    "Tandem": "tandem.client.tandem",
    "Config": "tandem.config.schema",
    "QueryOptions": "tandem.client.request",
    "SamplingParams": "tandem.config.schema",
    "Party": "tandem.topology",
}
"""Where the names come from that are neither exceptions nor events."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "tandem.errors" if name.endswith("Error") else "tandem.events"
    value = getattr(import_module(_MODULES.get(name, home)), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
