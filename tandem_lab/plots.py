"""Pictures of what happened. They need matplotlib (the extra `lab`), which is imported only when one is drawn.

Here is what all of them share; each picture has a module of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tandem.errors import TandemError

KINDS = (".png", ".pdf", ".svg")
"""Endings of the files that can be written."""


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
