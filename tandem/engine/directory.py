"""Where a model lies, as far as its name and the file system tell. Loads nothing, so that it can be asked early.

Paths are asked through `os.path`, which answers no, not with an error, for a name that cannot be a path.
"""

from __future__ import annotations

import os

from tandem.errors import GenerationError


def expanded(model: str) -> str:
    """`model` with a leading ~ replaced by the home directory."""
    return os.path.expanduser(model) if model.startswith("~") else model


def check_directory(model: str) -> None:
    """GenerationError if `model` looks like a path but is no directory of a model; a hub id may be anything."""
    looks_local = os.path.isabs(model) or model.startswith((".", "~")) or model.count("/") > 1
    if not looks_local and not os.path.exists(model):
        return
    if not os.path.isdir(model):
        found = "it is a file" if os.path.exists(model) else "there is no such directory"
        raise GenerationError(
            f"A model is a directory or a hub id, {model!r:.200} is neither: {found}; correct the path."
        )
    if not os.path.isfile(os.path.join(model, "config.json")):
        raise GenerationError(
            f"A model directory holds a config.json, {model!r} has none; point to what save_pretrained wrote."
        )
