"""The chunks beside the vectors: texts and metadata on disk, one JSON line a chunk, read when they are asked for.

`chunks.jsonl` holds {"id", "text", "metadata"} a line; `rows.npy` holds for each row its id and where its
line starts. Memory grows by 36 bytes a chunk, not by its text. Knows nothing of vectors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.errors import RetrievalError
from tandem.retrieval.documents import ID_BYTES, Document

TEXTS = "chunks.jsonl"
ROWS = "rows.npy"

_ROW = np.dtype([("id", f"S{2 * ID_BYTES}"), ("start", "<i8")])


def write(folder: Path, chunks: Iterable[Document]) -> None:
    """Writes both files. RetrievalError if a chunk has no id, or one that came before."""
    rows: list[tuple[bytes, int]] = []
    seen: set[str] = set()
    with (folder / TEXTS).open("wb") as file:
        for chunk in chunks:
            rows.append((_checked_id(chunk, seen), file.tell()))
            file.write(line(chunk))
    np.save(folder / ROWS, np.array(rows, _ROW), allow_pickle=False)


def line(chunk: Document) -> bytes:
    """A chunk as its line in the file: the same chunk always gives the same bytes."""
    body = {"id": chunk.id, "text": chunk.page_content, "metadata": chunk.metadata}
    return (
        json.dumps(body, ensure_ascii=False, sort_keys=True, default=str).encode("utf-8", "replace") + b"\n"
    )


class ChunkStore:
    """The chunks of an index, open for reading. Safe for several threads."""

    def __init__(self, folder: Path) -> None:
        """Opens both files; OSError or ValueError if they are not what `write` wrote."""
        rows: NDArray[np.void] = np.load(folder / ROWS, allow_pickle=False)
        if rows.dtype != _ROW or rows.ndim != 1 or not len(rows):
            raise ValueError(f"{ROWS} has the type {rows.dtype}")
        self._ids = np.ascontiguousarray(rows["id"])
        self._by_id = np.argsort(self._ids, kind="stable")
        # Row n lies from edge n to edge n + 1.
        self._edges = np.append(rows["start"], (folder / TEXTS).stat().st_size)
        if self._edges[0] != 0 or (np.diff(self._edges) <= 0).any():
            raise ValueError(f"{ROWS} does not fit {TEXTS}")
        # Stays valid after removal. Read rather than mapped: a first look at a page of a map costs ten reads.
        self._texts = (folder / TEXTS).open("rb", buffering=0)

    def __len__(self) -> int:
        """Number of chunks."""
        return len(self._ids)

    def documents(self, rows: NDArray[np.int64]) -> list[Document]:
        """The chunk of each row."""
        return [
            Document(page_content=body["text"], metadata=body["metadata"], id=body["id"])
            for body in self._bodies(rows)
        ]

    def metadata(self, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
        """The metadata of the chunk of each row."""
        return [body["metadata"] for body in self._bodies(rows)]

    def ids(self) -> list[str]:
        """The id of each row."""
        return [name.decode() for name in self._ids.tolist()]

    def rows(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """The row of each id, [len(ids)]; RetrievalError if one is not of this index."""
        wanted = np.array([name.encode("ascii", "replace") for name in ids], "S")
        places = np.searchsorted(self._ids, wanted, sorter=self._by_id)
        found = self._by_id[np.minimum(places, len(self) - 1)].astype(np.int64)
        for name, is_same in zip(ids, self._ids[found] == wanted, strict=True):
            if not is_same:
                raise RetrievalError(
                    f"The index holds no document with the id {name!r}; it may have been rebuilt: search "
                    "again."
                )
        return found

    def close(self) -> None:
        """Frees the file; the store cannot be read afterwards."""
        self._texts.close()

    def _bodies(self, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
        """The lines of the rows, parsed in one go."""
        edges = zip(self._edges[rows].tolist(), self._edges[rows + 1].tolist(), strict=True)
        file = self._texts.fileno()
        lines = b",".join([os.pread(file, end - start, start) for start, end in edges])
        bodies: list[dict[str, Any]] = json.loads(b"[" + lines + b"]")
        return bodies


def _checked_id(chunk: Document, seen: set[str]) -> bytes:
    if not chunk.id or len(chunk.id) > 2 * ID_BYTES or not chunk.id.isascii():
        raise RetrievalError(
            f"A chunk needs an id of 1 to {2 * ID_BYTES} ASCII characters, but one has {chunk.id!r}; "
            "let `split` set it."
        )
    if chunk.id in seen:
        raise RetrievalError(
            f"Each chunk needs an id of its own, but {chunk.id} comes twice; let `split` set them."
        )
    seen.add(chunk.id)
    return chunk.id.encode()
