"""Waiting for what other processes and threads do."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(is_true: Callable[[], object], limit_s: float = 120.0) -> None:
    """Looks again and again; an AssertionError if it takes too long."""
    end_s = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < end_s, "it took too long"
        time.sleep(0.02)
