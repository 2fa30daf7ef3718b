"""Readers of text files: txt, md, csv and jsonl, and the metadata that they bring along."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from functools import cache
from io import StringIO
from itertools import accumulate
from typing import Any, BinaryIO

from tandem.retrieval.documents import MAX_DEPTH, Document, is_too_deep, with_metadata
from tandem.retrieval.readers import (
    Unreadable,
    as_table,
    brief,
    decode,
    describe_data,
    listed,
    parsing,
    without_data,
    without_quotes,
)

MAX_LINE_PROBLEMS = 10
"""Malformed lines of one jsonl file that are named one by one; the rest is counted."""
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
MAX_NAMED = 10
"""Ignored fields that one sentence names."""
MAX_NAME_CHARS = 40
"""So much of the name of an ignored field is shown."""


def read_text(file: BinaryIO, source: str, problems: list[str]) -> Iterator[Document]:
    """A txt file: one document."""
    yield with_metadata(decode(file.read(), source, problems), {}, source=source)


def read_markdown(file: BinaryIO, source: str, problems: list[str]) -> Iterator[Document]:
    """An md file: one document; the fields of its front matter become metadata."""
    fields, text, flaw = _split_front_matter(decode(file.read(), source, problems))
    if flaw:
        problems.append(f"{source}: its front matter was read as text: {flaw}.")
    metadata, ignored = _plain_fields(fields)
    problems += _describe_ignored(source, ignored)
    yield with_metadata(text, metadata, source=source)


def read_csv(file: BinaryIO, source: str, problems: list[str]) -> Iterator[Document]:
    """A csv or tsv file: one document, a line per row, with tabs between its cells."""
    text, num_files = without_data(decode(file.read(), source, problems))
    problems += describe_data(source, num_files)
    first = text.lstrip().partition("\n")[0]
    delimiter = max(",;\t|", key=first.count)
    if first == f"sep={delimiter}":  # as Excel writes it
        text = text.lstrip().partition("\n")[2]
    with parsing("csv", "save it again"):
        rows = list(csv.reader(StringIO(text), delimiter=delimiter))
    yield with_metadata(as_table(rows), {}, source=source)


def read_jsonl(file: BinaryIO, source: str, problems: list[str]) -> Iterator[Document]:
    """A jsonl file: a document a line, {"text": string, "metadata": object, other fields}; text alone will do."""
    bad: list[str] = []
    ignored: dict[str, None] = {}
    num_read = 0
    for number, line in enumerate(decode(file.read(), source, problems).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            text, metadata, others = _record(line)
        except ValueError as error:
            bad.append(f"{source} line {number} was left out: {error}.")
            continue
        num_read += 1
        plain, names = _plain_fields(others)
        ignored.update(dict.fromkeys(names))
        yield with_metadata(text, plain | metadata, source=source, line=number)
    problems.extend(bad[:MAX_LINE_PROBLEMS])
    problems.extend(_describe_ignored(source, list(ignored)))
    if len(bad) > MAX_LINE_PROBLEMS:
        more = len(bad) - MAX_LINE_PROBLEMS
        problems.append(f"{source}: {more} more malformed lines were left out; repair them in the same way.")
    if num_read == 0:
        raise Unreadable('it has no usable line; write one {"text": "...", "metadata": {...}} a line')


def _record(line: str) -> tuple[str, dict[str, object], dict[str, object]]:
    """Text, metadata and other fields of a jsonl line; ValueError whose text says what is wrong and the remedy."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not valid JSON ({brief(error)}); repair it") from None
    if is_too_deep(record):
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep; flatten it")
    text = record.get("text") if isinstance(record, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise ValueError('it has no "text" with a non-empty string; add one')
    metadata = record.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise ValueError(f'its "metadata" is {type(metadata).__name__}, not an object; write {{...}}')
    others = {key: value for key, value in record.items() if key not in ("text", "metadata")}
    return text, metadata, others


# ---- metadata that a file brings along -----------------------------------------------------------------------


def _plain_fields(fields: Mapping[Any, Any]) -> tuple[dict[str, Any], list[str]]:
    """The fields whose values can be metadata (dates as texts), and the names of the others; empty ones are neither."""
    plain: dict[str, Any] = {}
    ignored: list[str] = []
    for key, value in fields.items():
        if value is None:
            continue
        items = value if isinstance(value, list) else [value]
        if all(isinstance(item, str | int | float | date) for item in items):  # a truth value is an int
            texts = [item.isoformat() if isinstance(item, date) else item for item in items]
            plain[str(key)] = texts if isinstance(value, list) else texts[0]
        else:
            ignored.append(str(key))
    return plain, ignored


def _describe_ignored(source: str, names: list[str]) -> list[str]:
    if not names:
        return []
    shown = listed([name[:MAX_NAME_CHARS] for name in names], MAX_NAMED)
    were, values = (
        ("field {} was", "its value is") if len(names) == 1 else ("fields {} were", "their values are")
    )
    return [
        f"{source}: the {were.format(shown)} ignored: {values} no text, number, truth value, date or list of these; "
        "flatten what should be metadata."
    ]


def _split_front_matter(text: str) -> tuple[dict[str, Any], str, str]:
    """The fields of a text's YAML front matter, the text behind it, and why it is none although it looks like it, with
    the remedy.

    Without front matter: no fields, the whole text.
    """
    match = _FRONT_MATTER.match(text)
    if match is None:
        return {}, text, ""
    import yaml

    loader = _loader()
    try:
        if _is_yaml_too_deep(yaml.parse(match[1], loader)):
            return {}, text, f"it is nested more than {MAX_DEPTH} levels deep; flatten it"
        fields = yaml.load(match[1], loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return {}, text, f"it is not valid YAML ({_brief_yaml(error)}); repair it"
    if not isinstance(fields, dict):  # a line across the page
        return {}, text, ""
    return fields, text[match.end() :], ""


@cache
def _loader() -> Any:
    """A YAML loader that keeps values as they are written: a plain value is a number or truth value only where that is
    written back alike. Else `NO` would be false, `10:30` 630 and `012` 10, as YAML 1.1 has it.
    """
    import yaml

    loader: Any = type(
        "Loader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {"yaml_implicit_resolvers": {}}
    )
    for kind, pattern, first in (
        ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
        ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
        ("int", r"0|-?[1-9][0-9]{0,17}", list("-0123456789")),
        ("float", r"-?(?:0|[1-9][0-9]{0,7})\.[0-9]{0,7}[1-9]", list("-0123456789")),
        ("merge", r"<<", ["<"]),
    ):
        loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(f"^(?:{pattern})$"), first)
    return loader


def _is_yaml_too_deep(events: Iterable[Any]) -> bool:
    """Whether YAML is nested too deeply to be loaded: what loads it recurses in C, what parses it into events does
    not.
    """
    import yaml

    begin, end = yaml.CollectionStartEvent, yaml.CollectionEndEvent
    depths = accumulate(isinstance(event, begin) - isinstance(event, end) for event in events)
    return any(depth > MAX_DEPTH for depth in depths)


def _brief_yaml(error: Exception) -> str:
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    where = f" in line {mark.line + 2}" if mark is not None else ""
    return without_quotes(f"{problem or error}") + where
