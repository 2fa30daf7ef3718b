"""What several retrieval tests do: an index of given chunks, its content, and damage to its database."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tandem.retrieval.build import write_index
from tandem.retrieval.documents import Document
from tandem.retrieval.embedding import TextEmbedder
from tandem.retrieval.index import Index
from tandem.retrieval.store import NAME

CHUNK_CHARS, OVERLAP = 800, 100


def make_index(
    directory: Path, chunks: Sequence[Document], embedder: TextEmbedder, factory: str = "auto", **options: Any
) -> Index:
    """Writes the index of chunks and opens it."""
    write_index(directory, chunks, embedder, factory, **options)
    return Index.open(directory, embedder.fingerprint)


def content(directory: Path) -> dict[str, str]:
    """The checksum of every part of a sound index; the generation is left out of the names of files."""
    index = Index.open(directory)
    index.close()
    files = {Path(name).suffix: file.sha256 for name, file in index.manifest.files.items()}
    return {"chunks": index.manifest.chunks_hash, "facts": index.manifest.facts_hash, **files}


def edit(directory: Path, statement: str, *values: object) -> None:
    """Changes the database of an index behind Tandem's back."""
    database = sqlite3.connect(directory / NAME, isolation_level=None)
    database.execute(statement, values)
    database.close()
