"""Where a model lies, as far as its name and the file system tell. Loads nothing, so that it can be asked early."""

from __future__ import annotations

from pathlib import Path

from tandem.errors import GenerationError


def expanded(model: str) -> str:
    """`model` with a leading ~ replaced by the home directory."""
    return str(Path(model).expanduser()) if model.startswith("~") else model


def check_directory(model: str) -> None:
    """GenerationError if `model` looks like a path but is no directory of a model; a hub id may be anything."""
    path = Path(model)
    looks_local = path.is_absolute() or model.startswith(".") or model.count("/") > 1 or path.exists()
    if not looks_local:
        return
    if not path.is_dir():
        found = "it is a file" if path.exists() else "there is no such directory"
        raise GenerationError(
            f"A model is a directory or a hub id, {model!r} is neither: {found}; correct the path."
        )
    if not (path / "config.json").is_file():
        raise GenerationError(
            f"A model directory holds a config.json, {model!r} has none; point to what save_pretrained wrote."
        )
