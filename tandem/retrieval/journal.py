"""What a build has embedded so far, in a database that outlives the process: a killed build is taken up again.

One row per batch, with the hashes of its texts and their vectors: a batch is committed before it is reported done.
Large pages make this as fast as a flat file with one flush per batch.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tandem.retrieval.database import connect, create_private, is_damaged, remove_database

KEY_BYTES = 16

_PAGE_BYTES = 65_536
_TIMEOUT_S = 10.0
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS embedder (name TEXT)",
    "CREATE TABLE IF NOT EXISTS batches (number INTEGER PRIMARY KEY, keys BLOB, vectors BLOB, crc INTEGER)",
)
_CHECKS = ("PRAGMA quick_check(1)", "SELECT name FROM embedder")


def text_key(text: str) -> bytes:
    """The name of a text in the journal: equal for equal texts alone."""
    return blake2b(text.encode("utf-8", "replace"), digest_size=KEY_BYTES).digest()


class Journal:
    """Vectors by text, for one embedder and one process at a time (the lock on the index ensures that)."""

    def __init__(self, path: Path, fingerprint: str, dimension: int) -> None:
        """Opens the journal at `path`; that of another embedder, or what is none, is emptied.

        OSError or sqlite3.Error if the disk refuses.
        """
        self._dimension = dimension
        self._places: dict[bytes, tuple[int, int]] = {}  # number of the batch, place in it
        self._database = _open(path, f"{fingerprint} {dimension}")
        self._recover()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __contains__(self, key: bytes) -> bool:
        return key in self._places

    def __len__(self) -> int:
        """Number of texts whose vectors are kept."""
        return len(self._places)

    def close(self) -> None:
        """Frees the file; the journal cannot be used afterwards."""
        self._database.close()

    def append(self, keys: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
        """Keeps vectors [len(keys), d]; when this returns, they are on the disk."""
        data = np.ascontiguousarray(vectors, "<f4")
        if data.shape != (len(keys), self._dimension):
            raise ValueError(f"{len(keys)} texts were embedded to vectors of the shape {data.shape}")
        columns = (b"".join(keys), data.tobytes())
        query = "INSERT INTO batches (keys, vectors, crc) VALUES (?, ?, ?)"
        number = self._database.execute(query, (*columns, _crc(*columns))).lastrowid
        self._note(number or 0, keys)

    def add(self, batches: Iterable[tuple[Sequence[bytes], NDArray[np.float32]]]) -> None:
        """Keeps batches of another journal, unless their texts are here already."""
        for keys, vectors in batches:
            places = [place for place, key in enumerate(keys) if key not in self._places]
            if places:
                self.append([keys[place] for place in places], vectors[places])

    def vectors(self, keys: Sequence[bytes]) -> NDArray[np.float32]:
        """The vectors [len(keys), d] of texts that are kept."""
        places = np.array([self._places[key] for key in keys])
        block = np.empty((len(keys), self._dimension), np.float32)
        for number in np.unique(places[:, 0]).tolist():
            is_here = places[:, 0] == number
            block[is_here] = self._read(number)[places[is_here, 1]]
        return block

    def _read(self, number: int) -> NDArray[np.float32]:
        """The vectors of a batch."""
        data = self._database.execute("SELECT vectors FROM batches WHERE number = ?", (number,)).fetchone()[0]
        return np.frombuffer(data, "<f4").reshape(-1, self._dimension)

    def _recover(self) -> None:
        """Notes the sound batches of an earlier build and drops the others."""
        bad: list[tuple[int]] = []
        for number, keys, vectors, crc in self._database.execute("SELECT * FROM batches ORDER BY number"):
            if _crc(keys, vectors) == crc:
                self._note(
                    number, [keys[start : start + KEY_BYTES] for start in range(0, len(keys), KEY_BYTES)]
                )
            else:
                bad.append((number,))
        self._database.executemany("DELETE FROM batches WHERE number = ?", bad)

    def _note(self, number: int, keys: Sequence[bytes]) -> None:
        self._places.update((key, (number, place)) for place, key in enumerate(keys))


def _open(path: Path, embedder: str) -> sqlite3.Connection:
    """The database of this embedder's vectors alone; every statement is a transaction of its own."""
    try:
        return _connect(path, embedder)
    except sqlite3.Error as error:
        if not is_damaged(error):
            raise
    remove_database(path)
    return _connect(path, embedder)


def _connect(path: Path, embedder: str) -> sqlite3.Connection:
    create_private(path)
    database = connect(path, _TIMEOUT_S)
    try:
        database.execute(f"PRAGMA page_size = {_PAGE_BYTES}")  # before the first table
        database.execute("PRAGMA journal_mode = WAL")  # one flush per batch
        database.execute("PRAGMA synchronous = FULL")
        for statement in _SCHEMA:
            database.execute(statement)
        whole, names = (database.execute(query).fetchall() for query in _CHECKS)
        if whole != [("ok",)] or names != [(embedder,)]:
            _empty(database, embedder)
    except BaseException:
        database.close()
        raise
    return database


def _empty(database: sqlite3.Connection, embedder: str) -> None:
    """Starts a journal again, for an embedder."""
    database.execute("BEGIN")
    database.execute("DELETE FROM batches")
    database.execute("DELETE FROM embedder")
    database.execute("INSERT INTO embedder VALUES (?)", (embedder,))
    database.execute("COMMIT")


def _crc(keys: bytes, vectors: bytes) -> int:
    return crc32(vectors, crc32(keys))
