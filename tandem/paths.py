"""Where Tandem keeps things on this machine, by the rules of the platform (XDG on Linux)."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import platformdirs

from tandem.topology import Party

_APP = "tandem"


def cache_folder() -> Path:
    """What Tandem can make again: $XDG_CACHE_HOME/tandem or ~/.cache/tandem, or a temporary folder of this user's."""
    base = platformdirs.user_cache_path(_APP, appauthor=False)
    try:
        base.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=base):
            return base
    except OSError:
        return _temporary_folder()


def data_folder() -> Path:
    """What a person would miss: $XDG_DATA_HOME/tandem, or ~/.local/share/tandem."""
    return platformdirs.user_data_path(_APP, appauthor=False)


def state_folder() -> Path:
    """What a person would not miss: $XDG_STATE_HOME/tandem, or ~/.local/state/tandem."""
    return platformdirs.user_state_path(_APP, appauthor=False)


def index_folder(party: Party) -> Path:
    """Where `tandem index` puts a side's index by default."""
    return data_folder() / party


def _temporary_folder() -> Path:
    """A folder of this user's alone in the system's temporary folder."""
    folder = Path(tempfile.gettempdir()) / f"tandem-cache-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
