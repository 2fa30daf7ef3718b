"""An index on disk: one SQLite database, and next to it the files of vectors that its manifest names.

    index/
      tandem-index.sqlite   manifest, chunks and their metadata
      vectors-7.faiss       the FAISS index of generation 7
      vectors-7.npy         the vectors themselves, for kinds that do not give them back exactly
      embedded.sqlite       while a build runs, or after it was interrupted: what it has embedded

A build holds SQLite's write lock from beginning to end, and one transaction replaces manifest and chunks: before it
the old index is whole, after it the new one. A reader holds a snapshot of the database (write-ahead log) and stays
whole while others write. Only their owner may read the files.
"""

from __future__ import annotations

import json
import re
import sqlite3
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from threading import Lock
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tandem.errors import RetrievalError
from tandem.retrieval import tables
from tandem.retrieval.database import (
    APPLICATION_ID,
    PRIVATE_FOLDER,
    VERSION,
    begin_writing,
    connect,
    create_private,
    flush,
    identity,
    is_busy,
    is_empty,
)
from tandem.retrieval.documents import Document
from tandem.retrieval.manifest import Manifest, damaged, parse_manifest, verify_file
from tandem.retrieval.tables import Filter

NAME = "tandem-index.sqlite"
"""The database that makes a folder an index."""

_VECTORS = re.compile(r"vectors-\d+\.(faiss|npy)")
_READ_TIMEOUT_S = 10.0
_READ_AT_ONCE = 4096


class NoIndexError(RetrievalError):
    """A folder holds no index of this format."""


class Snapshot:
    """The database as it was when opened, whatever is written to it meanwhile. Safe for several threads."""

    def __init__(self, directory: Path) -> None:
        """NoIndexError if there is none, RetrievalError if this Tandem does not understand it."""
        if not (directory / NAME).is_file():
            raise no_index(directory)
        self.directory = directory
        self._lock = Lock()
        with self._reading():
            self._database = connect(directory / NAME, _READ_TIMEOUT_S)
            # A connection is in a cycle with its statements, so forgetting the snapshot would not close it at once.
            self.close = weakref.finalize(self, self._database.close)
            self._database.execute("PRAGMA query_only = ON")
            self._database.execute("BEGIN")
            self.manifest = _read_manifest(self._database, directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def verify(self) -> None:
        """Checks every byte that matters: FileNotFoundError if a file is missing, RetrievalError if one differs."""
        for name, expected in self.manifest.files.items():
            verify_file(self.directory, self.directory / name, expected)
        with self._reading():
            is_whole = self._database.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok"
            sums = tables.hash_tables(self._database)
        if not is_whole or sums != (self.manifest.chunks_hash, self.manifest.facts_hash):
            raise damaged(self.directory, f"{NAME} does not match its checksum")

    def documents(self, rows: Iterable[int] | NDArray[np.int64]) -> list[Document]:
        """The chunk of each row."""
        with self._reading():
            return tables.read_chunks(self._database, rows)

    def chunks(self) -> Iterator[Document]:
        """All chunks, by row."""
        for start in range(0, self.manifest.count, _READ_AT_ONCE):
            yield from self.documents(range(start, min(start + _READ_AT_ONCE, self.manifest.count)))

    def ids(self) -> list[str]:
        """The id of each row."""
        with self._reading():
            return [name for (name,) in self._database.execute("SELECT id FROM chunks ORDER BY row")]

    def rows(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """The row of each id [len(ids)]; RetrievalError if one is unknown."""
        with self._reading():
            return tables.find_ids(self._database, ids)

    def select_rows(self, filter: Filter) -> NDArray[np.int64]:
        """The rows whose metadata fit, ascending. FilterError for a key that no chunk has."""
        with self._reading():
            return tables.select_rows(self._database, filter)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """One thread at a time; RetrievalError where the database is damaged."""
        with self._lock:
            try:
                yield
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise damaged(self.directory, f"{NAME} cannot be read ({error})") from None


class Writer:
    """The one build of an index that is under way; `writing` makes it."""

    def __init__(self, directory: Path, database: sqlite3.Connection) -> None:
        self.directory = directory
        self._database = database
        try:
            self.manifest: Manifest | None = _read_manifest(database, directory)
        except RetrievalError:  # none, or a damaged one, which is replaced
            self.manifest = None

    @property
    def generation(self) -> int:
        """Number of the index that is being written."""
        return 1 + (self.manifest.generation if self.manifest else 0)

    def make_file(self, suffix: str) -> Path:
        """An empty file of vectors for this generation, in place of what a killed build left under its name."""
        path = self.directory / f"vectors-{self.generation}.{suffix}"
        path.unlink(missing_ok=True)  # a reader of the same name keeps its own
        create_private(path)
        return path

    def replace_chunks(self, chunks: Sequence[Document]) -> None:
        """Writes the chunks in place of those before. RetrievalError for a bad id."""
        tables.write_chunks(self._database, chunks)
        self._sums = tables.hash_tables(self._database)

    def commit(self, manifest: Manifest) -> None:
        """Makes what was written the index; the manifest's generation and checksums of tables are set here."""
        chunks_hash, facts_hash = self._sums
        manifest = replace(
            manifest, generation=self.generation, chunks_hash=chunks_hash, facts_hash=facts_hash
        )
        for name in manifest.files:
            flush(self.directory / name)
        flush(self.directory)
        self.write_manifest(manifest)

    def write_manifest(self, manifest: Manifest) -> None:
        """Makes this the manifest of what was written, or of what is there."""
        self._database.execute("DELETE FROM manifest")
        self._database.execute("INSERT INTO manifest VALUES (?)", (json.dumps(asdict(manifest)),))
        self._database.execute("COMMIT")


@contextmanager
def writing(directory: Path) -> Iterator[Writer]:
    """The right to write an index, for one process at a time; without `commit` nothing changes.

    Raises RetrievalError if another process builds there, or when the disk refuses; what was indexed before is then
    untouched. What is no database of Tandem's any more is replaced.
    """
    try:
        directory.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        with closing(begin_writing(directory / NAME)) as database:
            yield Writer(directory, database)
    except OSError as error:
        raise _refused(directory, error.strerror or str(error)) from error
    except sqlite3.Error as error:
        if is_busy(error):
            raise RetrievalError(
                f"One process at a time may build an index, and another is building {directory}; wait for it."
            ) from None
        raise _refused(directory, str(error)) from error


def has_index(directory: Path) -> bool:
    """Whether a folder holds an index of this format, sound or not."""
    return (directory / NAME).is_file()


def modified_ns(directory: Path) -> int:
    """When the index in a folder was written, in nanoseconds since 1970."""
    with Snapshot(directory) as snapshot:
        return max((directory / name).stat().st_mtime_ns for name in snapshot.manifest.files)


def vector_files(directory: Path) -> list[Path]:
    """The files of vectors in a folder, of whatever generation."""
    return sorted(path for path in directory.glob("vectors-*") if _VECTORS.fullmatch(path.name))


def no_index(directory: Path) -> NoIndexError:
    """The error for a folder without an index."""
    return NoIndexError(
        f"An index must hold a {NAME}, but {directory} has none; build it with `tandem index`."
    )


def _read_manifest(database: sqlite3.Connection, directory: Path) -> Manifest:
    if is_empty(database):
        raise no_index(directory)  # a first build was interrupted
    application, version = identity(database)
    if application != APPLICATION_ID:
        raise damaged(directory, f"{NAME} is not a database of Tandem's")
    if version != VERSION:
        raise RetrievalError(
            f"This Tandem reads index version {VERSION}, but {directory} has version {version}; "
            "build it again with `tandem index`, or use the Tandem that wrote it."
        )
    row = database.execute("SELECT body FROM manifest").fetchone()
    if row is None:
        raise no_index(directory)
    try:
        body = json.loads(row[0])
    except (ValueError, RecursionError):
        raise damaged(directory, "its manifest is not readable JSON") from None
    return parse_manifest(directory, "its manifest", body)


def _refused(directory: Path, why: str) -> RetrievalError:
    return RetrievalError(
        f"The index {directory} could not be written ({why}); what it held before is kept: "
        "free space or check its rights, then build again."
    )
