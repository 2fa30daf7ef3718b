"""What several retrieval tests do: an index of given chunks, its content, and damage to its database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandem.errors import RetrievalError
from tandem.retrieval.build import write_index
from tandem.retrieval.documents import Document, Passage
from tandem.retrieval.embedding import TextEmbedder
from tandem.retrieval.index import Index
from tandem.retrieval.loaders import ReaderProcess
from tandem.retrieval.store import NAME

CHUNK_CHARS, OVERLAP = 800, 100


@contextmanager
def refused(sentence: str) -> Iterator[None]:
    """What is done meanwhile is refused with this very sentence."""
    with pytest.raises(RetrievalError) as caught:
        yield
    assert str(caught.value) == sentence


def read_with(reader: ReaderProcess, path: Path) -> tuple[list[Passage], list[str]]:
    """What a reader process gives of a file, uncut."""
    with path.open("rb") as file:
        return reader.read(file.fileno(), path.name, path.name)


def make_index(
    directory: Path, chunks: Sequence[Document], embedder: TextEmbedder, factory: str = "auto", **options: Any
) -> Index:
    """Writes the index of chunks and opens it."""
    write_index(directory, chunks, embedder, factory, **options)
    return Index.open(directory, embedder.fingerprint)


def content(directory: Path) -> dict[str, Any]:
    """All that a sound index holds, whatever was there before."""
    with Index.open(directory) as index:
        chunks, vectors = list(index.chunks()), index.vectors(np.arange(len(index)))
        trained = index.manifest.trained
    with closing(sqlite3.connect(directory / NAME)) as database:
        facts = database.execute("SELECT key, value, rows FROM facts ORDER BY key, value").fetchall()
    words = words_of(directory)
    return {
        "chunks": chunks,
        "facts": facts,
        "vectors": vectors.tobytes(),
        "trained": trained,
        "words": words,
    }


def names(directory: Path) -> list[str]:
    """The files of an index."""
    return sorted(path.name for path in directory.iterdir())


def num_vectors(directory: Path) -> int:
    """Vectors that an index keeps, also of an unfinished build."""
    with closing(sqlite3.connect(directory / NAME)) as database:
        number: int = database.execute("SELECT count(*) FROM vectors").fetchone()[0]
        return number


def words_of(directory: Path) -> list[tuple[str, int, str, int]]:
    """Each word of an index: itself, the row of its chunk, the column that it is in, and its place there."""
    with closing(sqlite3.connect(directory / NAME)) as database:
        database.execute("CREATE VIRTUAL TABLE temp.places USING fts5vocab(main, words, instance)")
        query = "SELECT term, row, col, offset FROM places JOIN chunks ON doc = words_row ORDER BY 1, 2, 3, 4"
        return database.execute(query).fetchall()


def edit(directory: Path, statement: str, *values: object) -> None:
    """Changes the database of an index behind Tandem's back."""
    database = sqlite3.connect(directory / NAME, isolation_level=None)
    database.execute(statement, values)
    database.close()
