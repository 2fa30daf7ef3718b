"""Metadata that a file brings along: YAML front matter, and which values of fields can be metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from typing import Any

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
MAX_NAMED = 10
"""Ignored fields that one sentence names."""


def plain_fields(fields: Mapping[Any, Any]) -> tuple[dict[str, Any], list[str]]:
    """The fields whose values can be metadata (dates as texts), and the names of the others; empty ones are neither."""
    plain: dict[str, Any] = {}
    ignored: list[str] = []
    for key, value in fields.items():
        if value is None:
            continue
        if _is_plain(value) or (isinstance(value, list) and all(map(_is_plain, value))):
            plain[str(key)] = (
                [_as_text(item) for item in value] if isinstance(value, list) else _as_text(value)
            )
        else:
            ignored.append(str(key))
    return plain, ignored


def describe_ignored(source: str, names: list[str]) -> list[str]:
    """One sentence about the ignored fields of a file; none if there are none."""
    if not names:
        return []
    shown = ", ".join(names[:MAX_NAMED]) + (", ..." if len(names) > MAX_NAMED else "")
    were, values = (
        ("field {} was", "its value is") if len(names) == 1 else ("fields {} were", "their values are")
    )
    return [
        f"{source}: the {were.format(shown)} ignored: {values} no text, number, truth value, date or list of these; "
        "flatten what should be metadata."
    ]


def split_front_matter(text: str) -> tuple[dict[str, Any], str, str]:
    """The fields of a text's YAML front matter, the text behind it, and why it is none although it looks like it.

    Without front matter: no fields, the whole text.
    """
    match = _FRONT_MATTER.match(text)
    if match is None:
        return {}, text, ""
    import yaml

    try:
        fields = yaml.load(match[1], getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return {}, text, _brief(error)
    if not isinstance(fields, dict):  # a line across the page
        return {}, text, ""
    return fields, text[match.end() :], ""


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | date)  # a truth value is an int, a time of day a date


def _as_text(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value


def _brief(error: Exception) -> str:
    """What is wrong and where, in a few words."""
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    where = f" in line {mark.line + 2}" if mark is not None else ""
    return f"{problem or error}"[:100] + where
