"""SQLite for an index: its tables, its one writer, and files that only their owner may read."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tandem.retrieval import tables

VERSION = 2
APPLICATION_ID = 0x54616E64  # "Tand"
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600

_SCHEMA = (
    "CREATE TABLE manifest (body TEXT NOT NULL)",
    *tables.SCHEMA,
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
)
_WRITE_TIMEOUT_S = 0.3

KEY_BYTES = 16

_JOURNAL_PAGE_BYTES = 65_536
_JOURNAL_TIMEOUT_S = 10.0
_JOURNAL_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS embedder (name TEXT)",
    "CREATE TABLE IF NOT EXISTS batches (number INTEGER PRIMARY KEY, keys BLOB, vectors BLOB, crc INTEGER)",
)
_JOURNAL_CHECKS = ("PRAGMA quick_check(1)", "SELECT name FROM embedder")


def begin_writing(path: Path) -> sqlite3.Connection:
    """A connection to an index's database that holds its write lock, for one process at a time.

    The database is made if there is none, and replaced if it is damaged or not Tandem's. sqlite3.Error or OSError if
    another process writes, or when the disk refuses.
    """
    for _ in range(2):
        create_private(path)
        database = connect(path, _WRITE_TIMEOUT_S)
        try:
            if _begin(database):
                return database
        except BaseException:
            database.close()
            raise
        database.close()
        remove_database(path)
    raise OSError(errno.EIO, "the database cannot be replaced", str(path))


def is_damaged(error: sqlite3.Error) -> bool:
    """Whether an error says that a file is no sound database."""
    return _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_busy(error: sqlite3.Error) -> bool:
    """Whether an error says that another process holds the lock."""
    return _code(error) == sqlite3.SQLITE_BUSY


def flush(path: Path) -> None:
    """Waits until a file's or folder's content is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def create_private(path: Path) -> None:
    """Makes an empty file that only its owner may read, unless there is one already.

    An existing database is never opened here: closing it would free the locks that this process holds on it.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, PRIVATE_FILE))


def connect(path: Path, timeout_s: float) -> sqlite3.Connection:
    """A connection to an existing database whose transactions are begun and ended by hand."""
    name = f"{path.absolute().as_uri()}?mode=rw"
    if not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists():
        name += "&immutable=1"  # SQLite cannot note there who reads, and nobody can write
    return sqlite3.connect(name, timeout_s, isolation_level=None, check_same_thread=False, uri=True)


def remove_database(path: Path) -> None:
    """Deletes a database that is not open, and what SQLite keeps next to it."""
    for suffix in ("-journal", "-wal", "-shm", ""):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def identity(database: sqlite3.Connection) -> tuple[int, int]:
    """Which program's database it is, and of which version."""
    names = ("application_id", "user_version")
    application, version = (database.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    return application, version


def is_empty(database: sqlite3.Connection) -> bool:
    """Whether nothing was ever committed to a database."""
    return not database.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]


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
        self._database = _open_journal(path, f"{fingerprint} {dimension}")
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


def _open_journal(path: Path, embedder: str) -> sqlite3.Connection:
    """The database of this embedder's vectors alone; every statement is a transaction of its own."""
    try:
        return _connect_journal(path, embedder)
    except sqlite3.Error as error:
        if not is_damaged(error):
            raise
    remove_database(path)
    return _connect_journal(path, embedder)


def _connect_journal(path: Path, embedder: str) -> sqlite3.Connection:
    create_private(path)
    database = connect(path, _JOURNAL_TIMEOUT_S)
    try:
        database.execute(f"PRAGMA page_size = {_JOURNAL_PAGE_BYTES}")  # before the first table
        database.execute("PRAGMA journal_mode = WAL")  # one flush per batch
        database.execute("PRAGMA synchronous = FULL")
        for statement in _JOURNAL_SCHEMA:
            database.execute(statement)
        whole, names = (database.execute(query).fetchall() for query in _JOURNAL_CHECKS)
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


def _begin(database: sqlite3.Connection) -> bool:
    """Begins to write; False if the database must be replaced."""
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("PRAGMA secure_delete = ON")  # texts that were deleted leave the disk
        database.execute("BEGIN IMMEDIATE")
        application, version = identity(database)
        if is_empty(database) or (application == APPLICATION_ID and version != VERSION):
            _make_tables(database)
            return True
        is_whole = database.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok"
        return is_whole and application == APPLICATION_ID
    except UnicodeDecodeError:  # in an error that quotes a damaged table
        return False
    except sqlite3.Error as error:
        if is_damaged(error):
            return False
        raise


def _make_tables(database: sqlite3.Connection) -> None:
    """Empty tables in place of what another version of Tandem wrote."""
    names = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    for statement in [*(f'DROP TABLE "{name}"' for (name,) in names), *_SCHEMA]:
        database.execute(statement)


def _code(error: sqlite3.Error) -> int:
    """SQLite's error code without its details."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
