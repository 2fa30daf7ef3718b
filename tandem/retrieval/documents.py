"""What a document is, and the opaque name under which the other side may hear of it.

A document is LangChain's `Document` (page_content, metadata, id), so that what is loaded here can be handed
to LangChain and back. Knows nothing of files, chunks or vectors.
"""

from __future__ import annotations

from hashlib import blake2b

from langchain_core.documents import Document

ID_BYTES = 10
"""Length of an id: 80 bits, written as 20 hexadecimal digits; 10^7 chunks collide with chance 4e-11."""

RESERVED = ("source", "chunk", "page", "line")
"""Metadata keys that Tandem sets itself; a file's own value under one of them is kept as `given_<key>`."""

__all__ = ["ID_BYTES", "RESERVED", "Document", "chunk_id", "with_metadata"]


def chunk_id(text: str, source: str, occurrence: int = 0, key: bytes = b"") -> str:
    """Stable opaque id of a chunk: a hash of its text, its relative source path and how often both came
    before.

    key: up to 64 bytes that stay on the side that owns the chunk. Without one, whoever sees the id can
    confirm a guess of a short text; with one, the id says nothing.
    """
    digest = blake2b(digest_size=ID_BYTES, key=key)
    digest.update(f"{source}\0{occurrence}\0{text}".encode("utf-8", "replace"))
    return digest.hexdigest()


def with_metadata(text: str, given: dict[str, object], **own: object) -> Document:
    """Document of `text` with what the file gave and what Tandem adds, whose keys are never overwritten."""
    kept = {f"given_{name}" if name in RESERVED else name: value for name, value in given.items()}
    writable = text.encode("utf-8", "replace").decode()  # JSON may smuggle in half a surrogate pair
    return Document(page_content=writable, metadata={**kept, **own})
