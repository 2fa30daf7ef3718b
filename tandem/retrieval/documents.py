"""Documents, the chunks they are cut into, and the opaque names of chunks.

A document is LangChain's `Document` (page_content, metadata, id), so whatever is loaded here can be handed to LangChain
and back. `langchain-text-splitters` cuts at headings, paragraphs, lines and words, in this order of preference.
"""

from __future__ import annotations

import json
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from langchain_core.documents import Document as Document

from tandem.errors import RetrievalError

if TYPE_CHECKING:
    from langchain_text_splitters import RecursiveCharacterTextSplitter

ID_BYTES = 10
"""Length of an id: 80 bits, written as 20 hexadecimal digits; 10^7 chunks collide with probability 4e-11."""

RESERVED = ("source", "chunk", "page", "line")
"""Metadata keys that Tandem sets itself; a file's own value under one of them is kept as `given_<key>`."""

_SEPARATORS = ["\n\n", "\n", "\u3002", "\uff01", "\uff1f", ". ", " ", ""]
"""Where a text is cut that is longer than an embedder's window, the first that is there: it may have no spaces, and
full stops of its own."""

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
    it, which may then be longer by it. A chunk with more tokens than the embedder's window (digits, Chinese) is cut
    further, so that no part of it is beyond what search sees. Each chunk keeps its document's metadata, gains `chunk`
    (its number within its source, from 0) and an id (see `chunk_id`; `key` as there). Raises RetrievalError for lengths
    that make no sense.
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
    splitters = {is_markdown: _splitter(chunk_chars, overlap, is_markdown) for is_markdown in (False, True)}
    chunks: list[Document] = []
    numbers: Counter[str] = Counter()
    occurrences: Counter[tuple[str, str]] = Counter()
    for document in documents:
        source = str(document.metadata.get("source", ""))
        is_markdown = source.lower().endswith(".md")
        texts = splitters[is_markdown].split_text(document.page_content)
        for text in _cut(_join_headings(texts) if is_markdown else texts, window):
            identity = chunk_id(text, source, occurrences[source, text], key)
            metadata = {**document.metadata, "chunk": numbers[source]}
            chunks.append(Document(page_content=text, metadata=metadata, id=identity))
            numbers[source] += 1
            occurrences[source, text] += 1
    return chunks


def _cut(texts: Iterable[str], window: Window | None) -> Iterator[str]:
    """The texts, each that is longer than the window in parts that fit it."""
    from langchain_text_splitters import RecursiveCharacterTextSplitter

    for text in texts:
        if window is None or window.count_tokens(text) <= window.max_tokens:
            yield text
        else:
            yield from RecursiveCharacterTextSplitter(
                chunk_size=window.max_tokens,
                chunk_overlap=window.max_tokens // 10,
                length_function=window.count_tokens,
                separators=_SEPARATORS,
                keep_separator="end",
            ).split_text(text)


def _join_headings(texts: Iterable[str]) -> list[str]:
    """Chunks of Markdown, those that consist of headings alone joined to the next one."""
    joined: list[str] = []
    headings: list[str] = []
    for text in texts:
        headings.append(text)
        if not all(line.startswith("#") for line in text.splitlines() if line.strip()):
            joined.append("\n\n".join(headings))
            headings = []
    return [*joined, "\n\n".join(headings)] if headings else joined


def _splitter(chunk_chars: int, overlap: int, is_markdown: bool) -> RecursiveCharacterTextSplitter:
    from langchain_text_splitters import Language, RecursiveCharacterTextSplitter

    if is_markdown:
        return RecursiveCharacterTextSplitter.from_language(
            Language.MARKDOWN, chunk_size=chunk_chars, chunk_overlap=overlap
        )
    return RecursiveCharacterTextSplitter(chunk_size=chunk_chars, chunk_overlap=overlap)
