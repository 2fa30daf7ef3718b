"""Documents, the chunks they are cut into, and the opaque names of chunks.

A document is LangChain's `Document` (page_content, metadata, id), so whatever is loaded here can be handed to LangChain
and back. `langchain-text-splitters` cuts at headings, paragraphs, lines and words, in this order of preference.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from bisect import bisect, bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise, takewhile, zip_longest
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
MAX_HEADINGS = 4
"""A chunk that consists of headings may be so many times as long as others."""
_HEADING = re.compile(r"^(#{1,6}) .+$", re.MULTILINE)
_FENCE = re.compile(r"^(?:```|~~~)", re.MULTILINE)
_RULE = re.compile(r"\|(?:\s*:?-+:?\s*\|)+\s*")
"""What Markdown has below the first row of a table."""

_DIGIT = re.compile(r"\d")
MIN_COLUMNS = 3
"""Of a table whose rows are spelled; two are read as well as they stand."""
MAX_ROWS = 5_000
"""Of such a table: each is a chunk."""

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
        others_first = sorted(value.items(), key=lambda item: isinstance(item[0], str))
        return {writable(str(key)): writable(item) for key, item in others_first}
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


@dataclass(frozen=True, slots=True)
class Cutting:
    """How texts are cut into chunks."""

    chunk_chars: int  # of a chunk, at most
    overlap: int  # characters that neighbours share, at most

    @property
    def max_above(self) -> int:
        """Characters of what may stand above a chunk."""
        return self.chunk_chars // 2

    def __post_init__(self) -> None:
        """RetrievalError for lengths that make no sense."""
        if self.chunk_chars < 1:
            raise RetrievalError(
                f"A chunk needs at least 1 character, but chunk_chars is {self.chunk_chars}; raise it."
            )
        if not 0 <= self.overlap < self.chunk_chars:
            raise RetrievalError(
                f"The overlap must lie between 0 and chunk_chars - 1 = {self.chunk_chars - 1}, but it is "
                f"{self.overlap}; change it."
            )


class Table(NamedTuple):
    """A table in a text, from behind its first row to its end."""

    start: int
    end: int
    first_row: str  # with the rule below it in Markdown


class Outline(NamedTuple):
    """The headings and tables of a text, by places in it."""

    starts: Sequence[int] = ()  # of the headings
    paths: Sequence[Sequence[str]] = ((),)  # the headings that hold: before the first, then from each on
    tables: Sequence[Table] = ()

    def above(self, place: int, max_chars: int) -> list[str]:
        """The lines under which a chunk stands that begins at this place: headings, and the first row of a table that
        it begins within; where they are too long, the last of them.
        """
        number = bisect(self.starts, place)
        is_heading = number > 0 and self.starts[number - 1] == place
        lines = list(self.paths[number])[: -1 if is_heading else None]
        row = bisect(self.tables, place, key=lambda table: table.start) - 1
        if row >= 0 and self.tables[row].start < place < self.tables[row].end:
            lines += self.tables[row].first_row.splitlines()
        while lines and sum(map(len, lines)) + len(lines) > max_chars:
            del lines[0]
        return lines

    def within(self, start: int, end: int) -> Outline:
        """That of a part of the text."""
        first, last = bisect_left(self.starts, start), bisect_left(self.starts, end)
        begin = bisect(self.tables, start, key=lambda table: table.end)
        tables = self.tables[begin : bisect_left(self.tables, end, key=lambda table: table.start)]
        return Outline(
            [place - start for place in self.starts[first:last]],
            self.paths[first : last + 1],
            [Table(table.start - start, table.end - start, table.first_row) for table in tables],
        )


class Passage(NamedTuple):
    """A document, or a part of one that becomes a chunk if it fits the embedder's window."""

    text: str
    metadata: dict[str, Any]  # of its document
    outline: Outline = Outline()  # of its text, and what stands above it


def split(
    documents: Iterable[Document],
    chunk_chars: int,
    overlap: int,
    key: bytes = b"",
    window: Window | None = None,
) -> list[Document]:
    """Chunks of at most `chunk_chars` characters, neighbours sharing up to `overlap`, in the order of the documents.

    A heading of Markdown is no chunk of its own, which would be found and say nothing: it stands before the text below
    it. A row of a table whose columns have names is a chunk that names them. A chunk of a longer section begins with
    the headings that it is under, one that begins within another table with the table's first row; it may then be
    longer by these. A chunk with more tokens than the embedder's window (digits, Chinese) is cut further, so that no
    part of it is beyond what search sees. Each chunk keeps its document's metadata, gains `chunk` (its number within
    its source, from 0) and an id (see `chunk_id`; `key` as there). Raises RetrievalError for lengths that make no
    sense.
    """
    cutting = Cutting(chunk_chars, overlap)
    return number_chunks(cut(documents, cutting), cutting, key, window)


def cut(documents: Iterable[Document], cutting: Cutting) -> Iterator[Passage]:
    """The passages of documents; the first half of `split`, which needs no embedder."""
    splitters = {has_headings: _splitter(cutting, has_headings) for has_headings in (False, True)}
    for document in documents:
        text, bounds = document.page_content, list[int]()
        kind = kind_of(str(document.metadata.get("source", "")))
        has_headings = kind is not None and kind.has_headings
        if has_headings:
            text, bounds = _spell_rows(text, cutting.max_above)
        pieces = [
            (first + piece.metadata["start_index"], len(piece.page_content))
            for first, last in pairwise([0, *bounds, len(text)])
            for piece in splitters[has_headings].create_documents([text[first:last]])
        ]
        spans = [(start, start + num_chars) for start, num_chars in pieces]
        if not has_headings:
            yield from (Passage(text[start:end], document.metadata) for start, end in spans)
            continue
        outline = _outline(text, cutting.max_above)
        for start, end in _join_headings(text, spans, cutting.chunk_chars):
            yield Passage(text[start:end], document.metadata, outline.within(start, end))


def number_chunks(
    passages: Iterable[Passage], cutting: Cutting, key: bytes = b"", window: Window | None = None
) -> list[Document]:
    """The chunks of passages that `cut` gave; the second half of `split`."""
    chunks: list[Document] = []
    numbers: Counter[str] = Counter()
    occurrences: Counter[tuple[str, str]] = Counter()
    for passage in passages:
        source = str(passage.metadata.get("source", ""))
        for text in _fit(passage, cutting, window):
            identity = chunk_id(text, source, occurrences[source, text], key)
            metadata = {**passage.metadata, "chunk": numbers[source]}
            chunks.append(Document(page_content=text, metadata=metadata, id=identity))
            numbers[source] += 1
            occurrences[source, text] += 1
    return chunks


def _join_headings(
    text: str, spans: Iterable[tuple[int, int]], chunk_chars: int
) -> Iterator[tuple[int, int]]:
    """The spans, those that consist of headings alone joined to the next one; of a text of headings as many as
    make a chunk MAX_HEADINGS times as long as others."""
    first, end = None, 0
    for start, end in spans:
        first = start if first is None else first
        is_full = end - first > MAX_HEADINGS * chunk_chars
        if is_full or not all(line.startswith("#") for line in text[start:end].splitlines() if line.strip()):
            yield first, end
            first = None
    if first is not None:
        yield first, end


def _outline(text: str, max_chars: int) -> Outline:
    """The outline of a text. Of a line that is too long to stand above a chunk the beginning is kept."""
    fences = [match.start() for match in _FENCE.finditer(text)]
    starts: list[int] = []
    paths: list[tuple[str, ...]] = [()]
    levels: list[int] = []
    for match in _HEADING.finditer(text):
        if bisect(fences, match.start()) % 2 == 0:  # within a listing it is a comment
            num_kept = bisect_left(levels, len(match[1]))
            levels[num_kept:] = [len(match[1])]
            starts.append(match.start())
            paths.append((*paths[-1][:num_kept], match[0][: max_chars + 1]))
    return Outline(starts, paths, _tables(text, max_chars))


def _tables(text: str, max_chars: int) -> list[Table]:
    tables: list[Table] = []
    end = 0
    for lines in _blocks(text):
        start, end = end, end + sum(map(len, lines)) + len(lines)
        if len(lines) > 1:
            first_row = "\n".join(lines[: 2 if _RULE.fullmatch(lines[1]) else 1])
            tables.append(Table(start + len(first_row), end, first_row[: max_chars + 1]))
    return tables


def _blocks(text: str) -> Iterator[list[str]]:
    """The lines of a text, those of a table together."""
    lines: list[str] = []
    for line in text.split("\n"):
        if lines and not 0 < _width(line) == _width(lines[0]):
            yield lines
            lines = []
        lines.append(line)
    yield lines


def _spell_rows(text: str, max_chars: int) -> tuple[str, list[int]]:
    """A text with a line "part: hub; stock: 3" for each row of its tables, and where these lines begin and end: small
    models often read another row or column of a table."""
    lines: list[str] = []
    bounds: list[int] = []
    end = 0
    for block in _blocks(text):
        rows = _spelled(block, max_chars)
        for line in rows or block:
            bounds += [end, end + len(line)] if rows else []
            lines.append(line)
            end += len(line) + 1
    return "\n".join(lines), bounds


def _spelled(table: list[str], max_chars: int) -> list[str]:
    """A line for each row; none of what has no names of columns: Markdown says where they are, and elsewhere they have
    no digits, unlike what is below."""
    has_rule = len(table) > 1 and _RULE.fullmatch(table[1]) is not None
    names, rows = _cells(table[0]), table[2 if has_rule else 1 :]
    is_named = has_rule or (not _DIGIT.search(table[0]) and any(map(_DIGIT.search, rows)))
    is_short = len(rows) <= MAX_ROWS and len(table[0]) <= max_chars
    if len(names) < MIN_COLUMNS or not (all(names) and is_named and is_short):
        return []
    pairs = [zip_longest(names, _cells(row), fillvalue="") for row in rows]
    return ["; ".join(f"{name}: {cell}" if name else cell for name, cell in row if cell) for row in pairs]


def _cells(row: str) -> list[str]:
    cells = row[1:].rstrip().removesuffix("|").split("|") if row.startswith("|") else row.split("\t")
    return [cell.strip() for cell in cells]


def _line(text: str, start: int) -> str:
    end = text.find("\n", start)
    return text[start : end if end >= 0 else None]


def join_texts(first: str, second: str) -> str | None:
    """Two chunks that share at least two words, as one, with what stands above both once; None: the second goes on with
    nothing of the first, so that it was not cut off within a paragraph."""
    held, lines = first.splitlines(), second.splitlines(keepends=True)
    above = list(takewhile(lambda line: line.rstrip("\n") in held, lines))
    for num_above in range(len(above), -1, -1):
        rest = "".join(lines[num_above:])
        for start in range(max(1, len(first) - len(rest)), len(first)):
            shared, after = first[start:], rest[len(first) - start :]
            is_whole = first[start - 1].isspace() and not after[:1].strip()
            if is_whole and len(shared.split()) > 1 and rest.startswith(shared):
                return first[:start] + rest
    return None


def _width(line: str) -> int:
    """The columns of a row of a table, less one; 0 for a line of none. Rows may lack their last cells."""
    return line.count("|") if line.startswith("|") else int("\t" in line.strip())


def _fit(passage: Passage, cutting: Cutting, window: Window | None) -> Iterator[str]:
    """The chunk of a passage, under what stands above it; in parts that fit the window if it does not."""
    text, _, outline = passage
    chunk = "\n".join([*outline.above(0, cutting.max_above), text])
    if window is None or window.count_tokens(chunk) <= window.max_tokens:
        yield chunk
        return
    start, limit = 0, len(text)
    while start < limit:
        lines = outline.above(start, cutting.max_above)
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


def _splitter(cutting: Cutting, has_headings: bool) -> RecursiveCharacterTextSplitter:
    from langchain_text_splitters import Language, RecursiveCharacterTextSplitter

    options: dict[str, Any] = {"chunk_size": cutting.chunk_chars, "chunk_overlap": cutting.overlap}
    options["add_start_index"] = True
    if has_headings:
        return RecursiveCharacterTextSplitter.from_language(Language.MARKDOWN, **options)
    return RecursiveCharacterTextSplitter(**options)
