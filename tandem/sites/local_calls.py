"""What local commands may call on a device that runs in another process, as JSON objects, a line each.

    device --{"tandem", "pid", "settings", "described"}--> command, once
    command --{"id", "actor", "method", "arguments"}--> device
    device --{"id", "result" or "error", perhaps "described"}--> command, in any order

They cross a socket that this user alone may open, never a link.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from tandem import errors
from tandem.errors import CallError, ClusterError, Code, TandemError
from tandem.events import Event
from tandem.system.paths import state_folder

CALLS = {
    ("draft_queue", "open"),
    ("draft_queue", "events"),
    ("draft_queue", "sources"),
    ("draft_queue", "cancel"),
    ("retriever", "passages"),
    ("retriever", "embed"),
    ("decoder", "tokenizer_json"),
    ("decoder", "answer_room"),
    ("site", "status"),
}
"""All that can be called, by actor and method; "site" is the device as a whole."""
MAX_LINE_BYTES = 64 << 20
EVENT_TYPES = {event_type.__name__: event_type for event_type in get_args(Event)}


def socket_folder() -> Path:
    """Where a device of this user listens for local commands."""
    return state_folder() / "device"


def write_line(values: Mapping[str, Any]) -> bytes:
    """One message."""
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def read_line(line: bytes) -> dict[str, Any]:
    """Inverse of `write_line`. Raises ClusterError for what is no message."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise ClusterError(f"The other end of the device's socket does not speak Tandem ({line[:40]!r}).")
    return values


def encode_result(value: Any) -> Any:
    """A result as JSON has it; events with the names of their types."""
    if isinstance(value, list):
        return [encode_result(item) for item in value]
    if type(value).__name__ in EVENT_TYPES:
        return {"event": type(value).__name__, "fields": asdict(value)}
    return value


def decode_result(value: Any) -> Any:
    """Inverse of `encode_result`. Raises CallError for an event that this version does not know."""
    if isinstance(value, list):
        return [decode_result(item) for item in value]
    if not isinstance(value, dict) or set(value) != {"event", "fields"}:
        return value
    try:
        return _adapter(value["event"]).validate_python(value["fields"])
    except (KeyError, ValidationError):
        raise CallError(
            f"The device sent an event that this version of Tandem does not know ({value['event']!r:.40}); restart "
            "`tandem device`."
        ) from None


def encode_error(error: TandemError) -> dict[str, Any]:
    """Its class, its sentence and what programs may know of it."""
    return {"kind": type(error).__name__, "sentence": str(error), "fault": asdict(error.fault)}


def decode_error(value: Mapping[str, Any]) -> TandemError:
    """Inverse of `encode_error`; a class that is not known here becomes a CallError."""
    kind = getattr(errors, value["kind"], None)
    is_known = isinstance(kind, type) and issubclass(kind, TandemError)
    fault = dict(value["fault"])
    code = Code(fault.pop("code"))
    return (kind if is_known and kind is not None else CallError)(value["sentence"], code=code, **fault)


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(EVENT_TYPES[name])
