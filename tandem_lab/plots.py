"""What all pictures share. They need matplotlib (the extra `lab`), which is imported only when one is drawn."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tandem.errors import TandemError, install_line

KINDS = (".png", ".pdf", ".svg")
"""Endings of the files that can be written."""


def check_matplotlib() -> None:
    """Raises TandemError if pictures cannot be drawn here."""
    if find_spec("matplotlib") is None:
        raise TandemError(f"A plot needs matplotlib, which is not installed; run `{install_line('lab')}`.")


def save(figure: Any, path: str | Path) -> None:
    """Write a matplotlib figure. Raises TandemError if that fails."""
    try:
        figure.savefig(path)
    except OSError as error:
        raise TandemError(
            f"The plot cannot be written to {path} ({error.strerror}); choose another file."
        ) from None
    except ValueError:
        raise TandemError(
            f"A plot is written as .png, .pdf or .svg, but the file is {Path(path).name!r}; rename it."
        ) from None
