"""The kinds of files that `tandem index` reads, and what becomes of each: one table for help, docs and readers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import PurePosixPath
from typing import NamedTuple

from tandem import plugins
from tandem.errors import EXTRA_OF, install_line


class FileKind(NamedTuple):
    """One row of the table."""

    endings: tuple[str, ...]  # lower case, with the dot
    reader: str  # MODULE:FUNCTION of what reads it, a `tandem.retrieval.readers.Reader`
    documents: str  # what one document is
    text: str  # where its text comes from
    metadata: str = "-"  # what its metadata holds besides `source` and `chunk`
    has_headings: bool = True  # as Markdown writes them: chunks follow them
    needs: str = ""  # the module of an extra that reads it

    @property
    def extra(self) -> str:
        """The extra that reads it, "" for none."""
        return EXTRA_OF[self.needs] if self.needs else ""

    def is_installed(self) -> bool:
        """Whether what reads it is here."""
        return not self.needs or find_spec(self.needs) is not None


CORE = (
    FileKind((".txt",), "tandem.retrieval.texts:read_text", "the file", "the file", has_headings=False),
    FileKind(
        (".md",),
        "tandem.retrieval.texts:read_markdown",
        "the file",
        "the file without its front matter",
        "fields of YAML front matter between two --- lines",
    ),
    FileKind(
        (".csv", ".tsv"),
        "tandem.retrieval.texts:read_csv",
        "the file",
        "a line per row, cells apart by tabs",
    ),
    FileKind(
        (".jsonl",),
        "tandem.retrieval.texts:read_jsonl",
        "a line",
        "its field text",
        "line, counted from 1; the fields of its object metadata; its other fields",
        has_headings=False,
    ),
)
"""What is read without a plugin."""

COMMON = (
    "Every chunk also has source, the file's path within the folder, and chunk, its number within its source. A field "
    "counts as metadata if its value is a text, number, truth value, date or list of these, kept as it is written; "
    "others are ignored and named once per file. A field called source, chunk, page or line is kept as given_source "
    "and so on. A file within a file has its path in it, as in letters.zip/2024/may.eml/plan.pdf."
)
"""What holds for all kinds."""


@cache
def file_kinds() -> tuple[FileKind, ...]:
    """Every kind of files: the core's, then those of plugins. ConfigError for a broken one of another package."""
    return (*CORE, *_of_plugins(plugins.names("reader")))


@cache
def own_kinds() -> tuple[FileKind, ...]:
    """Those that come with Tandem, for help and documentation."""
    return (*CORE, *_of_plugins(plugins.OWN["reader"]))


def _of_plugins(names: Iterable[str]) -> list[FileKind]:
    readers = [plugins.find("reader", name) for name in names]
    return [kind for each in readers for kind in ([each] if isinstance(each, FileKind) else each)]


@cache
def _by_ending() -> dict[str, FileKind]:
    """Where two plugins read an ending, the first has it."""
    return {ending: kind for kind in reversed(file_kinds()) for ending in kind.endings}


def ending_of(name: str) -> str:
    """The ending of a file's name, lower case, with its dot; "" for none."""
    return PurePosixPath(name).suffix.lower()


def kind_of(name: str) -> FileKind | None:
    """The kind of a file, by its name; None for one that is not read."""
    return _by_ending().get(ending_of(name))


def why_skipped(ending: str, count: int, where: str = "") -> str:
    """One sentence about the files of an ending that were not read. where: what they are in, if not in a folder."""
    was = f"file{'s' if count > 1 else ''} {f'ending in {ending}' if ending else 'without an ending'}{where} "
    was += "was left out" if count == 1 else "were left out"
    kind = _by_ending().get(ending)
    if kind is not None:
        return f"{count} {was}: {kind.needs} is not installed; run `{install_line(kind.extra)}`."
    return f"{count} {was}: only {endings()} are read; save what they say as text, if it matters."


def endings() -> str:
    """The first ending of each kind without its dot: "txt, md, ... and jsonl"."""
    *most, last = (kind.endings[0].removeprefix(".") for kind in file_kinds())
    return f"{', '.join(most)} and {last}"


def as_text() -> str:
    """The table for a terminal: two lines per kind."""
    rows = [(" ".join(kind.endings), kind) for kind in own_kinds()]
    width = max(len(name) for name, _ in rows)
    return "\n".join(
        f"{name:<{width}}  one document: {kind.documents}; text: {kind.text}\n{'':<{width}}  metadata: {kind.metadata}"
        for name, kind in rows
    )
