"""Where the command line keeps indexes and its notes on what it started, by the XDG rules."""

from __future__ import annotations

import os
from pathlib import Path

from tandem.topology import Party


def data_folder() -> Path:
    """What a person would miss: $XDG_DATA_HOME/tandem, or ~/.local/share/tandem."""
    return _folder("XDG_DATA_HOME", ".local/share")


def state_folder() -> Path:
    """What a person would not miss: $XDG_STATE_HOME/tandem, or ~/.local/state/tandem."""
    return _folder("XDG_STATE_HOME", ".local/state")


def index_folder(party: Party) -> Path:
    """Where `tandem index` puts a side's index unless told otherwise."""
    return data_folder() / party


def _folder(variable: str, default: str) -> Path:
    base = Path(os.environ.get(variable, ""))
    return (base if base.is_absolute() else Path.home() / default) / "tandem"
