"""Cuts documents into chunks that an embedder and a decoder row can take, and names each chunk.

Cuts at headings, paragraphs, lines and words in this order of preference (`langchain-text-splitters`). Knows
nothing of where documents come from or of vectors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tandem.errors import RetrievalError
from tandem.retrieval.documents import Document, chunk_id

if TYPE_CHECKING:
    from langchain_text_splitters import RecursiveCharacterTextSplitter

CHUNK_CHARS = 800
"""Default length: about 200 word pieces of English, below the 256 that all-MiniLM-L6-v2 reads."""

OVERLAP_CHARS = 80


def split(
    documents: Iterable[Document],
    chunk_chars: int = CHUNK_CHARS,
    overlap: int = OVERLAP_CHARS,
    key: bytes = b"",
) -> list[Document]:
    """Chunks of at most `chunk_chars` characters, neighbours sharing up to `overlap`, in the order of the
    documents.

    Each chunk keeps its document's metadata, gains `chunk` (its number within its source, from 0) and an id
    (see `chunk_id`; `key` as there). Raises RetrievalError for lengths that make no sense.
    """
    _check_lengths(chunk_chars, overlap)
    splitters = {is_markdown: _splitter(chunk_chars, overlap, is_markdown) for is_markdown in (False, True)}
    chunks: list[Document] = []
    numbers: Counter[str] = Counter()
    occurrences: Counter[tuple[str, str]] = Counter()
    for document in documents:
        source = str(document.metadata.get("source", ""))
        for text in splitters[source.lower().endswith(".md")].split_text(document.page_content):
            identity = chunk_id(text, source, occurrences[source, text], key)
            metadata = {**document.metadata, "chunk": numbers[source]}
            chunks.append(Document(page_content=text, metadata=metadata, id=identity))
            numbers[source] += 1
            occurrences[source, text] += 1
    return chunks


def _splitter(chunk_chars: int, overlap: int, is_markdown: bool) -> RecursiveCharacterTextSplitter:
    from langchain_text_splitters import Language, RecursiveCharacterTextSplitter

    if is_markdown:
        return RecursiveCharacterTextSplitter.from_language(
            Language.MARKDOWN, chunk_size=chunk_chars, chunk_overlap=overlap
        )
    return RecursiveCharacterTextSplitter(chunk_size=chunk_chars, chunk_overlap=overlap)


def _check_lengths(chunk_chars: int, overlap: int) -> None:
    if chunk_chars < 1:
        raise RetrievalError(
            f"A chunk needs at least 1 character, but chunk_chars is {chunk_chars}; raise it."
        )
    if not 0 <= overlap < chunk_chars:
        raise RetrievalError(
            f"The overlap must lie between 0 and chunk_chars - 1 = {chunk_chars - 1}, but it is {overlap}; "
            "change it."
        )
