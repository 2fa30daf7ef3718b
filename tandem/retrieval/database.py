"""SQLite for an index: its tables, its one writer, and files that only their owner may read."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import suppress
from pathlib import Path

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
