"""Quiet loading: libraries draw their progress bars on a person's terminal and into the logs of actors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def hide_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing progress bars, and leave its setting as it was."""
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()
