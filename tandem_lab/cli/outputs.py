"""The files that a command is to write: what would stand in their way is found before anything is started."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tandem.client.answers import to_plain
from tandem.config.schema import Config
from tandem.errors import TandemError
from tandem_lab.environment import describe_environment
from tandem_lab.plots import KINDS, check_matplotlib


def check_folder(option: str, name: str, files: Sequence[str], *, needs_plots: bool = True) -> Path:
    """The folder to write these files and plots into, created if it is not there.

    needs_plots: whether matplotlib must be there. Raises TandemError if nothing can be written there.
    """
    if needs_plots and any(Path(file).suffix in KINDS for file in files):
        check_matplotlib()
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TandemError(
            f"{option} needs a folder to write into, but {name!r} cannot be created ({error.strerror}); "
            "choose another."
        ) from None
    for path in (folder / file for file in files):
        if path.is_dir():
            raise TandemError(
                f"{option} writes the file {str(path)!r}, but a folder has that name; remove it, or choose another."
            )
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise TandemError(f"{option} has no permission to write {str(path)!r}; choose another folder.")
    return folder


def write_text(option: str, path: Path, text: str) -> None:
    """Write a file. Raises TandemError if that fails after all."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise TandemError(
            f"{option} could not write {str(path)!r} ({error.strerror}); choose another file."
        ) from None


def write_cells(folder: Path, text: str, values: Sequence[dict[str, Any]], config: Config) -> None:
    """Print a benchmark's table and write it, and its values for a script, into a folder. Raises TandemError."""
    print(text)
    write_text("--out", folder / "table.txt", text + "\n")
    results = {"cells": values, "settings": asdict(config), "environment": describe_environment()}
    write_text("--out", folder / "results.json", json.dumps(to_plain(results), indent=1) + "\n")
