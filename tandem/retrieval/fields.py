"""Metadata that a file brings along: YAML front matter, and which values of fields can be metadata."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any

from tandem.retrieval.documents import MAX_DEPTH

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_QUOTES = re.compile(r"""(['"]).{1,2}\1|b?(['"]).*""", re.DOTALL)
MAX_NAMED = 10
"""Ignored fields that one sentence names."""
MAX_NAME_CHARS = 40
"""So much of the name of an ignored field is shown."""


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
    shown = ", ".join(name[:MAX_NAME_CHARS] for name in names[:MAX_NAMED]) + (
        ", ..." if len(names) > MAX_NAMED else ""
    )
    were, values = (
        ("field {} was", "its value is") if len(names) == 1 else ("fields {} were", "their values are")
    )
    return [
        f"{source}: the {were.format(shown)} ignored: {values} no text, number, truth value, date or list of these; "
        "flatten what should be metadata."
    ]


def split_front_matter(text: str) -> tuple[dict[str, Any], str, str]:
    """The fields of a text's YAML front matter, the text behind it, and why it is none although it looks like it, with
    the remedy.

    Without front matter: no fields, the whole text.
    """
    match = _FRONT_MATTER.match(text)
    if match is None:
        return {}, text, ""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if _is_too_deep(yaml.parse(match[1], loader)):
            return {}, text, f"it is nested more than {MAX_DEPTH} levels deep; flatten it"
        fields = yaml.load(match[1], loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return {}, text, f"it is not valid YAML ({_brief(error)}); repair it"
    if not isinstance(fields, dict):  # a line across the page
        return {}, text, ""
    return fields, text[match.end() :], ""


def without_quotes(text: str) -> str:
    """At most 100 characters of an error's text, in which "..." stands for what it quotes of a file; a sign or two, as
    in "expected ','", stay.
    """
    return _QUOTES.sub(lambda quoted: quoted[0] if quoted[1] else "...", text)[:100]


def _is_too_deep(events: Iterable[Any]) -> bool:
    """Whether YAML is nested too deeply to be loaded: what loads it recurses in C, what parses it into events does
    not.
    """
    import yaml

    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            return True
    return False


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | date)  # a truth value is an int, a time of day a date


def _as_text(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value


def _brief(error: Exception) -> str:
    """What is wrong and where, in a few words."""
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    where = f" in line {mark.line + 2}" if mark is not None else ""
    return without_quotes(f"{problem or error}") + where
