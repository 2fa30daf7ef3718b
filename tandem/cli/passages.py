"""Passages for people: where each comes from, how well it fits, and what it says."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from tandem.cli.output import printable

WIDTH = 100
INDENT = "    "
PLACE_KEYS = ("source", "chunk", "page", "line")
"""Metadata that say where a passage is; its heading shows them."""


def describe_place(title: str | None, page: int | None, line: int | None) -> str:
    """A document's title, and its page or line if it has some."""
    name = printable(title or "a document without a source")
    places = (f", {key} {number}" for key, number in (("page", page), ("line", line)) if number is not None)
    return name + next(places, "")


def describe_score(score: float | None) -> str:
    """A score in four columns; nothing where it is not known."""
    return f"{score:4.2f}" if is_scored(score) else ""


def is_scored(score: float | None) -> TypeGuard[float]:
    """Whether a score is known: the other party's are not."""
    return score is not None and not math.isnan(score)


def text_lines(text: str, max_lines: int | None = None) -> Iterator[str]:
    """A text below its heading: indented, folded, without what would move a cursor; the first lines of it."""
    paragraphs = [" ".join(line.split()) for line in printable(text).splitlines()]
    lines = [line for paragraph in paragraphs for line in textwrap.wrap(paragraph, WIDTH - len(INDENT))]
    for line in lines[:max_lines]:
        yield INDENT + line
    if max_lines is not None and len(lines) > max_lines:
        yield f"{INDENT}..."


def metadata_line(metadata: Mapping[str, Any]) -> str:
    """The metadata that a file brought along, as one line; "" if there are none."""
    own = {key: value for key, value in metadata.items() if key not in PLACE_KEYS}
    return (
        INDENT + printable(", ".join(f"{key}={_value(value)}" for key, value in own.items())) if own else ""
    )


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
