"""The files that a command is to write: what would stand in their way is found before anything is started."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tandem.errors import TandemError
from tandem.lab.plots import KINDS


def check_file(option: str, given: str) -> Path:
    """The path of a file to write. Raises TandemError if it cannot be written; creates and changes nothing."""
    path = Path(given)
    folder = path.parent
    if path.is_dir():
        raise TandemError(f"{option} needs the name of a file, but {given!r} is a folder; add a name.")
    if not folder.is_dir():
        raise TandemError(
            f"{option} writes into a folder that is there, but {str(folder)!r} is none; create it, or choose another."
        )
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise TandemError(
            f"{option} needs a file that may be written, but {given!r} may not; choose another."
        )
    return path


def check_folder(option: str, given: str, names: Sequence[str]) -> Path:
    """The folder to write files and plots of these names into, made if it is not there.

    Raises TandemError if nothing can be written there.
    """
    folder = Path(given)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TandemError(
            f"{option} needs a folder to write into, but {given!r} cannot be made ({error.strerror}); choose another."
        ) from None
    for name in names:
        is_plot = Path(name).suffix in KINDS
        (check_plot if is_plot else check_file)(option, str(folder / name))
    return folder


def check_plot(option: str, given: str) -> Path:
    """The path of a plot to write; as `check_file`, and matplotlib must be there."""
    from tandem.lab.timeline.pipeline import check_matplotlib

    check_matplotlib()
    path = check_file(option, given)
    if path.suffix.lower() not in KINDS:
        raise TandemError(
            f"{option} writes one of {', '.join(KINDS)}, but the file is {path.name!r}; rename it."
        )
    return path


def write_text(option: str, path: Path, text: str) -> None:
    """Writes a file. Raises TandemError if that fails after all."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise TandemError(
            f"{option} could not write {str(path)!r} ({error.strerror}); choose another file."
        ) from None
