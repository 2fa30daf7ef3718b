"""The server's log: a line per request and per failure, with nothing of what was asked or answered."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from tandem.errors import describe_origin

_log = logging.getLogger("tandem.plugins.server")


class _JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, event, and the fields of the event.

    Of loggers that are not the server's only the name and the level are kept: their messages may hold anything.
    """

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry = {
            "time": f"{seconds}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage() if record.name == _log.name else f"message of {record.name}",
            **getattr(record, "fields", {}),
        }
        return json.dumps(entry)


class _TextFormatter(logging.Formatter):
    """Formats a record for people: "event field=value ..."."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", {})
        shown = " ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
        return f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {record.getMessage()} {shown}".rstrip()


def set_up(*, as_json: bool) -> None:
    """Send the server's log to standard error; as JSON lines everything else that is logged, too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if as_json else _TextFormatter())
    logger = logging.getLogger() if as_json else _log
    logger.handlers[:] = [handler]
    _log.setLevel(logging.INFO)
    _log.propagate = as_json


def log_event(event: str, **fields: Any) -> None:
    """Log what happened. fields: numbers and names, never a text of a user."""
    _log.info(event, extra={"fields": fields})


def log_failure(what: str, error: BaseException) -> None:
    """Log an error that nobody caused on purpose: its kind and where, but not its message, which may quote a user."""
    kind, where = describe_origin(error)
    _log.error("failure", extra={"fields": {"of": what, "error": kind, "where": where}})
