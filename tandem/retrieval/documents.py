"""Documents, the chunks they are cut into, and the opaque names of chunks.

A document is LangChain's `Document` (page_content, metadata, id), so whatever is loaded here can be handed to LangChain
and back. `langchain-text-splitters` cuts at headings, paragraphs, lines and words, in this order of preference.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from langchain_core.documents import Document as Document

from tandem.errors import RetrievalError
from tandem.system.file_kinds import kind_of

if TYPE_CHECKING:
    from langchain_text_splitters import RecursiveCharacterTextSplitter

ID_BYTES = 10
"""Length of an id: 80 bits, written as 20 hexadecimal digits; 10^7 chunks collide with probability 4e-11."""

RESERVED = ("source", "chunk", "page", "line")
"""Metadata keys that Tandem sets itself; a file's own value under one of them is kept as `given_<key>`."""

_SEPARATORS = ("\n\n", "\n", "\u3002", "\uff01", "\uff1f", ". ", " ")
"""Where a text is cut that is longer than an embedder's window, the first that is there: it may have no spaces, and
full stops of its own."""

MAX_TOKEN_CHARS = 20
"""Hardly any token of a text is longer."""
_HEADING = re.compile(r"^(#{1,6}) .+$", re.MULTILINE)
_FENCE = re.compile(r"^(?:```|~~~)", re.MULTILINE)
_RULE = re.compile(r"\|(?:\s*:?-+:?\s*\|)+\s*")
"""What Markdown has below the first row of a table."""

MAX_DEPTH = 64
"""Objects and lists within each other that metadata may consist of; far less than Python's own limit, which ends what
stores or sends them.
"""


def chunk_id(text: str, source: str, occurrence: int = 0, key: bytes = b"") -> str:
    """Stable opaque id of a chunk: a hash of its text, its relative source path and the number of earlier chunks with
    the same two.

    key: up to 64 bytes that stay with the party that owns the chunk. Without one, anyone who sees the id can
    confirm a guess of a short text; with one, the id reveals nothing.
    """
    digest = blake2b(digest_size=ID_BYTES, key=key)
    digest.update(f"{source}\0{occurrence}\0{text}".encode("utf-8", "replace"))
    return digest.hexdigest()


def with_metadata(text: str, given: dict[str, object], **own: object) -> Document:
    """Document of `text` with the file's own metadata and Tandem's, which always wins."""
    renamed = {f"given_{name}" if name in RESERVED else name: value for name, value in given.items()}
    return Document(page_content=writable(text), metadata={**writable(renamed), **own})


def writable(value: Any) -> Any:
    """The value with everything in it that UTF-8 or JSON cannot hold replaced: half a surrogate pair becomes "?", keys
    of mappings become strings.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        in_order = sorted(
            value.items(), key=lambda item: isinstance(item[0], str)
        )  # a string key wins over others
        return {writable(str(key)): writable(item) for key, item in in_order}
    if isinstance(value, (list, tuple)):
        return [writable(item) for item in value]
    return value


def is_too_deep(value: object) -> bool:
    """Whether more than MAX_DEPTH mappings and lists lie within each other. value: as JSON gives it."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        nested = [item for item in level if isinstance(item, dict | list | tuple)]
        level = [part for item in nested for part in (item.values() if isinstance(item, dict) else item)]
    return bool(nested)


def describe_passage(document: Document) -> dict[str, Any]:
    """The details of a document that only its party knows, as JSON holds them."""
    metadata = json.loads(json.dumps(writable(document.metadata), default=str))  # a store's may hold anything
    page = metadata.get("page")
    return {
        "title": str(metadata.get("source", "")) or None,
        "text": document.page_content,
        "page": page if isinstance(page, int) else None,
        "metadata": metadata,
    }


def readable_name(name: str) -> str:
    """A file name as text that can be stored, printed and compared: composed as people type it (Unicode's NFC, which a
    Mac does not keep), and bytes that are not UTF-8 become `\\xff`."""
    try:
        text = os.fsencode(name).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # not from the file system
        text = name.encode("utf-8", "backslashreplace").decode()
    return unicodedata.normalize("NFC", text)


class Window(NamedTuple):
    """The part of a text that an embedder reads."""

    max_tokens: int
    count_tokens: Callable[[str], int]


def split(
    documents: Iterable[Document],
    chunk_chars: int,
    overlap: int,
    key: bytes = b"",
    window: Window | None = None,
) -> list[Document]:
    """Chunks of at most `chunk_chars` characters, neighbours sharing up to `overlap`, in the order of the documents.

    A heading of Markdown is no chunk of its own, which would be found and say nothing: it stands before the text below
    it. A chunk of a longer section begins with the headings that it is under, one that begins within a table with the
    table's first row; it may then be longer by these. A chunk with more tokens than the embedder's window (digits,
    Chinese) is cut further, so that no part of it is beyond what search sees. Each chunk keeps its document's metadata,
    gains `chunk` (its number within its source, from 0) and an id (see `chunk_id`; `key` as there). Raises
    RetrievalError for lengths that make no sense.
    """
    if chunk_chars < 1:
        raise RetrievalError(
            f"A chunk needs at least 1 character, but chunk_chars is {chunk_chars}; raise it."
        )
    if not 0 <= overlap < chunk_chars:
        raise RetrievalError(
            f"The overlap must lie between 0 and chunk_chars - 1 = {chunk_chars - 1}, but it is {overlap}; "
            "change it."
        )
    splitters = {
        has_headings: _splitter(chunk_chars, overlap, has_headings) for has_headings in (False, True)
    }
    chunks: list[Document] = []
    numbers: Counter[str] = Counter()
    occurrences: Counter[tuple[str, str]] = Counter()
    for document in documents:
        source = str(document.metadata.get("source", ""))
        kind = kind_of(source)
        has_headings = kind is not None and kind.has_headings
        text = document.page_content
        outline = _Outline(text if has_headings else "", chunk_chars // 2)
        spans = _spans(splitters[has_headings], text)
        for span in _join_headings(text, spans) if has_headings else spans:
            for part in _cut(text, span, outline, window):
                identity = chunk_id(part, source, occurrences[source, part], key)
                metadata = {**document.metadata, "chunk": numbers[source]}
                chunks.append(Document(page_content=part, metadata=metadata, id=identity))
                numbers[source] += 1
                occurrences[source, part] += 1
    return chunks


def _spans(splitter: RecursiveCharacterTextSplitter, text: str) -> Iterator[tuple[int, int]]:
    """Where the chunks of a text begin and end."""
    for piece in splitter.create_documents([text]):
        start = piece.metadata["start_index"]
        yield start, start + len(piece.page_content)


def _join_headings(text: str, spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The spans, those that consist of headings alone joined to the next one."""
    first, end = None, 0
    for start, end in spans:
        first = start if first is None else first
        if not all(line.startswith("#") for line in text[start:end].splitlines() if line.strip()):
            yield first, end
            first = None
    if first is not None:
        yield first, end


class _Outline:
    """The headings and tables of a text."""

    def __init__(self, text: str, max_chars: int) -> None:
        """max_chars: of what may stand before a chunk."""
        fences = [match.start() for match in _FENCE.finditer(text)]
        found = [
            match
            for match in _HEADING.finditer(text)
            if bisect(fences, match.start()) % 2 == 0  # within a listing it is a comment
        ]
        self._starts = [match.start() for match in found]
        self._paths: list[tuple[tuple[int, str], ...]] = [
            ()
        ]  # before the first heading, from each of them on
        for match in found:
            level = len(match[1])
            self._paths.append((*(it for it in self._paths[-1] if it[0] < level), (level, match[0])))
        self._tables = _tables(text)
        self._max_chars = max_chars

    def above(self, place: int) -> list[str]:
        """The lines under which a chunk stands that begins at this place: headings, and the first row of a table that
        it begins within; where they are too long, the last of them.
        """
        number = bisect(self._starts, place)
        if number and self._starts[number - 1] == place:
            lines = [line for _, line in self._paths[number][:-1]]
        else:
            lines = [line for _, line in self._paths[number]]
        lines += _first_row(self._tables, place).splitlines()
        while lines and sum(map(len, lines)) + len(lines) > self._max_chars:
            del lines[0]
        return lines


class _Table(NamedTuple):
    """Where a table is in a text, and its first row, with the rule below it in Markdown."""

    start: int
    end: int
    first_row: str


def _tables(text: str) -> list[_Table]:
    """Every table of at least two rows, in their order."""
    tables: list[_Table] = []
    lines: list[str] = []
    end = 0
    for line in [*text.split("\n"), ""]:
        if lines and _width(line) != _width(lines[0]):
            if len(lines) > 1:
                first_row = "\n".join(lines[: 2 if _RULE.fullmatch(lines[1]) else 1])
                tables.append(_Table(end - sum(map(len, lines)) - len(lines), end, first_row))
            lines = []
        if _width(line):
            lines.append(line)
        end += len(line) + 1
    return tables


def _first_row(tables: Sequence[_Table], place: int) -> str:
    """The first row of the table that a place is within, behind that row; else ""."""
    number = bisect(tables, place, key=lambda table: table.start) - 1
    table = tables[number] if number >= 0 else _Table(0, 0, "")
    return table.first_row if table.start + len(table.first_row) < place < table.end else ""


def _line(text: str, start: int) -> str:
    end = text.find("\n", start)
    return text[start : end if end >= 0 else None]


def _width(line: str) -> int:
    """The columns of a row of a table, less one; 0 for a line of none. Rows may lack their last cells."""
    return line.count("|") if line.startswith("|") else int("\t" in line.strip())


def _cut(text: str, span: tuple[int, int], outline: _Outline, window: Window | None) -> Iterator[str]:
    """The chunk of a span, under what stands above it; in parts that fit the window if it does not."""
    start, limit = span
    chunk = "\n".join([*outline.above(start), text[start:limit]])
    if window is None or window.count_tokens(chunk) <= window.max_tokens:
        yield chunk
        return
    while start < limit:
        lines = outline.above(start)
        while lines and window.count_tokens("\n".join(lines)) > window.max_tokens // 2:
            del lines[0]
        head = "".join(f"{line}\n" for line in lines)
        end = _end(head, text, (start, limit), window)
        yield head + text[start:end].rstrip()
        again = max(start + 1, end - (end - start) // 10)
        shared = (text.rfind(sign, again, end - 1) + 1 for sign in "\n ")
        start = end if end == limit else next(filter(None, shared), end)
        while start < limit and text[start].isspace():
            start += 1


def _end(head: str, text: str, span: tuple[int, int], window: Window) -> int:
    """Where the first part of a span ends that fits the window behind `head`; one character does."""
    start, limit = span
    high = end = min(limit, start + MAX_TOKEN_CHARS * window.max_tokens)
    while high > start + 1:
        num_tokens = window.count_tokens(head + text[start:high])
        if num_tokens <= window.max_tokens:
            break
        high = max(start + 1, start + int((high - start) * max(0.3, 0.98 * window.max_tokens / num_tokens)))
    if high == end == limit:
        return limit
    row = text.rfind("\n", start, high) + 1
    if row > start and _width(_line(text, row)):
        return row
    half = start + (high - start) // 2
    ends = (place + len(sign) for sign in _SEPARATORS if (place := text.rfind(sign, half, high)) > 0)
    return next(ends, high)


def _splitter(chunk_chars: int, overlap: int, has_headings: bool) -> RecursiveCharacterTextSplitter:
    from langchain_text_splitters import Language, RecursiveCharacterTextSplitter

    if has_headings:
        return RecursiveCharacterTextSplitter.from_language(
            Language.MARKDOWN, chunk_size=chunk_chars, chunk_overlap=overlap, add_start_index=True
        )
    return RecursiveCharacterTextSplitter(chunk_size=chunk_chars, chunk_overlap=overlap, add_start_index=True)
