"""The vectors of an index's chunks, as a file: taken from where they are already, embedded where they are not.

A vector is a function of text and embedder, so a text that the previous index or the journal of an interrupted
build knows is never embedded again, whichever file it now comes from. Knows nothing of FAISS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Protocol

import numpy as np
from numpy.typing import NDArray

from tandem.retrieval.documents import Document
from tandem.retrieval.embedding import TextEmbedder
from tandem.retrieval.journal import Journal, text_key

NAME = "embeddings.npy"
EMBED_AT_ONCE = 256
"""Chunks handed to the embedder, and kept on disk, between two calls of `progress`."""

_WRITE_AT_ONCE = 4096

Progress = Callable[[int, int], None]


class Stored(Protocol):
    """What is asked of the previous index."""

    def __len__(self) -> int:
        """Number of chunks."""

    def document(self, row: int) -> Document:
        """A chunk."""

    def vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The exact vectors [len(rows), d]."""


def write(
    path: Path,
    documents: Sequence[Document],
    embedder: TextEmbedder,
    previous: Stored | None,
    journal: Journal,
    progress: Progress | None = None,
) -> int:
    """Writes the unit vectors [len(documents), d] to `path` (NumPy's format) and says how many texts were
    embedded for it.

    previous: an index of this embedder that gives its vectors back exactly. progress(done, total) counts the
    texts to embed; what it was told is in the journal. OSError if the disk refuses.
    """
    keys = [text_key(document.page_content) for document in documents]
    rows = _rows(previous, set(keys))
    wanted = {key: document.page_content for key, document in zip(keys, documents, strict=True)}
    missing = [(key, text) for key, text in wanted.items() if key not in rows and key not in journal]
    _embed(missing, embedder, journal, progress)
    with path.open("wb") as file:
        _write_header(file, len(keys), embedder.dimension)
        for start in range(0, len(keys), _WRITE_AT_ONCE):
            block = _block(keys[start : start + _WRITE_AT_ONCE], embedder.dimension, rows, previous, journal)
            file.write(block.tobytes())
    return len(missing)


def blocks(vectors: NDArray[np.float32], at_once: int) -> Iterator[NDArray[np.float32]]:
    """The rows of [n, d], `at_once` at a time and in memory, whether or not `vectors` is."""
    for start in range(0, len(vectors), at_once):
        yield np.ascontiguousarray(vectors[start : start + at_once], np.float32)


def _rows(previous: Stored | None, wanted: set[bytes]) -> dict[bytes, int]:
    """Row of the previous index for each wanted text that it holds."""
    if previous is None:
        return {}
    keys = ((text_key(previous.document(row).page_content), row) for row in range(len(previous)))
    return {key: row for key, row in keys if key in wanted}


def _embed(
    missing: Sequence[tuple[bytes, str]],
    embedder: TextEmbedder,
    journal: Journal,
    progress: Progress | None,
) -> None:
    """Embeds texts into the journal, a few hundred at a time."""
    for start in range(0, len(missing), EMBED_AT_ONCE):
        if progress:
            progress(start, len(missing))
        some = missing[start : start + EMBED_AT_ONCE]
        journal.append([key for key, _ in some], embedder.embed([text for _, text in some]))
    if progress and missing:
        progress(len(missing), len(missing))


def _block(
    keys: Sequence[bytes],
    dimension: int,
    rows: dict[bytes, int],
    previous: Stored | None,
    journal: Journal,
) -> NDArray[np.float32]:
    """The vectors [len(keys), d] of a few texts."""
    block = np.empty((len(keys), dimension), "<f4")
    old = [place for place, key in enumerate(keys) if key in rows]
    new = [place for place, key in enumerate(keys) if key not in rows]
    if old and previous is not None:
        block[old] = previous.vectors(np.array([rows[keys[place]] for place in old], np.int64))
    if new:
        block[new] = journal.vectors([keys[place] for place in new])
    return block


def _write_header(file: IO[bytes], count: int, dimension: int) -> None:
    header = {"descr": "<f4", "fortran_order": False, "shape": (count, dimension)}
    np.lib.format.write_array_header_1_0(file, header)
