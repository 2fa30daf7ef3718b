"""The kinds of files that `tandem index` reads, and what becomes of each: one table for help, docs and readers."""

from __future__ import annotations

from typing import NamedTuple


class FileKind(NamedTuple):
    """One row of the table."""

    endings: tuple[str, ...]  # lower case, with the dot
    documents: str  # what one document is
    text: str  # where its text comes from
    metadata: str  # what its metadata holds besides `source` and `chunk`


FILE_KINDS = (
    FileKind((".txt",), "the file", "the file", "-"),
    FileKind(
        (".md",),
        "the file",
        "the file without its front matter",
        "fields of YAML front matter between two --- lines",
    ),
    FileKind(
        (".html", ".htm"), "the file", "what a browser shows, cells apart by tabs", "title, from <title>"
    ),
    FileKind(
        (".pdf",),
        "a page that has text",
        "the page, and what is filled into its form",
        "page, counted from 1",
    ),
    FileKind(
        (".jsonl",),
        "a line",
        "its field text",
        "line, counted from 1; the fields of its object metadata; its other fields",
    ),
)

COMMON = (
    "Every chunk also has source, the file's path within the folder, and chunk, its number within its source. A field "
    "counts as metadata if its value is a text, number, truth value, date or list of these, kept as it is written; "
    "others are ignored and named once per file. A field called source, chunk, page or line is kept as given_source "
    "and so on."
)
"""What holds for all kinds."""

HEADINGS = ("files", "one document is", "its text", "its metadata")


def endings() -> str:
    """The first ending of each kind without its dot: "txt, md, ... and jsonl"."""
    *most, last = (kind.endings[0].removeprefix(".") for kind in FILE_KINDS)
    return f"{', '.join(most)} and {last}"


def as_rows() -> list[tuple[str, ...]]:
    """The cells of the table, its headings first."""
    return [
        HEADINGS,
        *((" ".join(kind.endings), kind.documents, kind.text, kind.metadata) for kind in FILE_KINDS),
    ]


def as_text() -> str:
    """The table for a terminal: two lines per kind."""
    rows = [(" ".join(kind.endings), kind) for kind in FILE_KINDS]
    width = max(len(name) for name, _ in rows)
    return "\n".join(
        f"{name:<{width}}  one document: {kind.documents}; text: {kind.text}\n{'':<{width}}  metadata: {kind.metadata}"
        for name, kind in rows
    )


def as_markdown() -> str:
    """The table for a page of the documentation."""
    heading, *rows = as_rows()
    lines = [heading, tuple("---" for _ in heading), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('<', '`<').replace('>', '>`') for cell in row)} |" for row in lines
    )
