"""The last events of a run, kept as they were and written as text only when somebody wants to read them.

Knows messages by their fields; decides nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import fields, is_dataclass
from typing import Any

_UNTOLD = {
    "session",
    "spec",
    "texts",
    "text",
    "stamp",
    "echo",
    "held_us",
    "padding",
    "profile",
    "assumed",
}
_MAX_CHARS = 150


class EventLog:
    """Who got what, and when."""

    def __init__(self, length: int | None) -> None:
        """length: events that are kept; None: all."""
        self._events: deque[tuple[float, str, Any]] = deque(maxlen=length)

    def add(self, now_s: float, what: str, message: Any = "") -> None:
        """One event."""
        self._events.append((now_s, what, message))

    def lines(self) -> list[str]:
        """One line for each event."""
        return [f"{now_s:9.4f} s  {what:<22} {_told(message)}" for now_s, what, message in self._events]


def _told(value: Any) -> str:
    text = _text(value)
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]} ..."


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()[:8]
    if isinstance(value, float):
        return f"{value:.4g}"
    if is_dataclass(value):
        told = [
            f"{each.name}={_text(getattr(value, each.name))}"
            for each in fields(value)
            if each.name not in _UNTOLD
        ]
        return f"{type(value).__name__}({', '.join(told)})"
    if isinstance(value, tuple | list):
        return "[" + " ".join(map(_text, value)) + "]"
    return str(value)
