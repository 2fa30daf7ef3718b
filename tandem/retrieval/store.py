"""An index on disk: one SQLite database in a folder of its own.

    index/
      tandem-index.sqlite    manifest, chunks, their metadata, words and vectors, and what was seen of watched files
      vectors-1f0c....faiss  only for kinds that are trained: made of the vectors, and named by its checksum

One process at a time writes: it holds a lock on the folder. Vectors are committed while texts are embedded, each under
the text and embedder that it belongs to, so a build that was interrupted goes on where it was. Then one transaction
replaces manifest and chunks: before it the old index is whole, after it the new one. A reader holds a snapshot of the
database (write-ahead log) and stays whole while others write. Only their owner may read the files.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import sqlite3
import unicodedata
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import blake2b
from itertools import chain, count, zip_longest
from pathlib import Path
from sqlite3 import Connection
from threading import Lock
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter

from tandem.errors import FilterError, RetrievalError, did_you_mean
from tandem.retrieval import words
from tandem.retrieval.documents import ID_BYTES, Document, writable

NAME = "tandem-index.sqlite"
"""The database that makes a folder an index."""
VERSION = 4
APPLICATION_ID = 0x54616E64  # "Tand"
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
KEY_BYTES = 16

Filter = Mapping[str, Any]
"""{key: value or list of values}: a chunk fits if for every key its value is one of those."""

_VECTORS = (
    "CREATE TABLE IF NOT EXISTS vectors (number INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, vector BLOB NOT NULL, "
    "digest BLOB NOT NULL)"
)
_SCHEMA = (
    "CREATE TABLE manifest (body TEXT NOT NULL, written_ms INTEGER NOT NULL)",
    "INSERT INTO manifest VALUES ('', 0)",
    "CREATE TABLE chunks (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, text TEXT NOT NULL, metadata TEXT, "
    "words_row INTEGER NOT NULL UNIQUE, vector INTEGER NOT NULL)",
    "CREATE TABLE facts (key TEXT, value TEXT, rows BLOB NOT NULL, PRIMARY KEY (key, value)) WITHOUT ROWID",
    "CREATE TABLE watched (body TEXT NOT NULL)",
    *words.SCHEMA,
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
)
_CONTENT = (
    "SELECT row, id, text, metadata, words_row, vector FROM chunks ORDER BY row",
    "SELECT key, value, rows FROM facts ORDER BY key, value",
    *words.STORED,
)
"""All that a manifest's digest is of, besides its own values. A vector has a digest of its own."""
_NOW_MS = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
_MATCHING = "SELECT rows FROM facts WHERE key = ? AND value IN (SELECT value FROM json_each(?))"
_UNUSED = "FROM vectors WHERE number NOT IN (SELECT vector FROM chunks)"
_ROW = np.dtype("<u4")
_NO_ROWS = np.zeros(0, np.int64)
_HASH_BYTES, _VECTOR_HASH_BYTES = 32, 8
_READ_AT_ONCE = 4096
_TIMEOUT_S = 10.0
_JSON = json.JSONEncoder(sort_keys=True, ensure_ascii=False, default=str)


# ---- the manifest: what must fit before an index is used -----------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything that must fit before an index may be used."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    embedder: str  # name, for people
    embedder_fingerprint: str
    dimension: int
    count: int  # chunks
    factory: str  # kind of index
    id_key: str  # hexadecimal; keys the chunks' ids and never leaves this side
    roots: list[str]  # what it was built from: absolute paths, or `GIVEN`
    trained: str = ""  # the file of a trained kind's vectors, which can be made again
    digest: str = ""  # of all this, the chunks, their facts and words, hexadecimal


_MANIFEST = TypeAdapter(Manifest)  # each search reads one, and this takes longer to make than to use


class NoIndexError(RetrievalError):
    """A folder holds no index."""


class IndexBusyError(RetrievalError):
    """Another process builds an index, or has changed it meanwhile: it goes when that has ended."""


def damaged(directory: Path, what: str) -> RetrievalError:
    """The error for an index that cannot be trusted."""
    return RetrievalError(f"The index {directory} is damaged: {what}; build it again with `tandem index`.")


def has_index(directory: Path) -> bool:
    """Whether a folder holds an index, sound or not."""
    return (directory / NAME).is_file()


def read_manifest(directory: Path) -> Manifest:
    """The manifest of an index. RetrievalError if there is none."""
    with Snapshot(directory) as snapshot:
        return snapshot.manifest


def verify_index(directory: Path) -> Manifest:
    """The manifest of an index after every byte of the database was checked. RetrievalError, or OSError where
    something cannot be read.
    """
    with Snapshot(directory) as snapshot:
        snapshot.verify()
        snapshot.stored_vectors()
        return snapshot.manifest


def modified_ns(directory: Path) -> int:
    """The time when the chunks of an index were written, in nanoseconds since 1970."""
    with Snapshot(directory) as snapshot:
        return snapshot.written_ms * 1_000_000


def _no_index(directory: Path) -> NoIndexError:
    return NoIndexError(
        f"An index must hold a {NAME}, but {directory} has none; build it with `tandem index`."
    )


def _read_manifest(database: Connection, directory: Path) -> tuple[Manifest, int]:
    """The manifest, and when the chunks were written, in milliseconds since 1970."""
    if _is_empty(database):
        raise _no_index(directory)  # a first build was interrupted
    application, version = _identity(database)
    if application != APPLICATION_ID:
        raise damaged(directory, f"{NAME} is not a database of Tandem's")
    if version != VERSION:
        age = "an earlier" if version < VERSION else "a later"
        raise RetrievalError(
            f"The index {directory} was written by {age} version of Tandem; run `tandem index` again."
        )
    row = database.execute("SELECT body, written_ms FROM manifest").fetchone()
    try:
        body, written_ms = row
        manifest = _MANIFEST.validate_json(body)
        bytes.fromhex(manifest.id_key)
    except (ValueError, TypeError):
        raise damaged(directory, "its manifest cannot be read") from None
    return manifest, written_ms


# ---- SQLite --------------------------------------------------------------------------------------------------


def connect(path: Path) -> Connection:
    """A connection to an existing database whose transactions are begun and ended by hand."""
    name = f"{path.absolute().as_uri()}?mode=rw"
    if not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists():
        name += "&immutable=1"  # SQLite cannot note there who reads, and nobody can write
    return sqlite3.connect(name, _TIMEOUT_S, isolation_level=None, check_same_thread=False, uri=True)


def _code(error: Exception) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _reason(error: Exception) -> str:
    """The reason of an error of SQLite. Python's own, of a text that is not UTF-8, quotes that text, which is
    private."""
    return "a text in it is not UTF-8" if _code(error) is None else str(error)


def _identity(database: Connection) -> tuple[int, int]:
    names = ("application_id", "user_version")
    application, version = (database.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    return application, version


def _is_empty(database: Connection) -> bool:
    return not database.execute("SELECT 1 FROM sqlite_schema WHERE tbl_name != 'vectors' LIMIT 1").fetchone()


# ---- chunks and what filters ask of their metadata -----------------------------------------------------------


def content_digest(database: Connection, manifest: Manifest) -> str:
    """BLAKE2b of an index but for its vectors, hexadecimal."""
    values = asdict(replace(manifest, digest=""))
    return _hash(chain([(values,)], chain.from_iterable(map(database.execute, _CONTENT))))


def text_key(text: str) -> bytes:
    """Equal for equal texts alone."""
    return blake2b(text.encode("utf-8", "replace"), digest_size=KEY_BYTES).digest()


def vector_key(manifest: Manifest, text: str) -> bytes:
    """The name of a text's vector: equal for equal texts and embedders alone."""
    return text_key(f"{manifest.embedder_fingerprint} {manifest.dimension} {text}")


def vector_digest(key: bytes, vector: bytes) -> bytes:
    """What tells that a vector is the one that was written under a key."""
    return blake2b(key + vector, digest_size=_VECTOR_HASH_BYTES).digest()


def stored_vectors(database: Connection, manifest: Manifest, directory: Path) -> NDArray[np.float32]:
    """The vectors of all chunks [n, d]. RetrievalError if one is not what was written."""
    vectors = np.empty((manifest.count, manifest.dimension), np.float32)
    query = "SELECT row, key, vectors.vector, digest FROM chunks JOIN vectors ON number = chunks.vector ORDER BY row"
    place = 0
    for row, key, vector, digest in database.execute(query):
        if row != place or vector_digest(key, vector) != digest:
            break
        vectors[place] = np.frombuffer(vector, "<f4")
        place += 1
    if place < manifest.count:
        raise damaged(directory, f"the vector of row {place} of {NAME} is not what was written")
    return vectors


def values_of(condition: Any) -> list[Any]:
    """The values that a filter lets through for one key."""
    return list(condition) if isinstance(condition, (list, tuple, set, frozenset)) else [condition]


def canonical(value: Any) -> str:
    """A value as a text that equals that of an equal value; 1 and 1.0 are equal, 1 and true are not. Texts are compared
    in one normal form of Unicode.
    """
    if isinstance(value, str):
        value = unicodedata.normalize("NFC", value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return _JSON.encode(value)


def _rows_of(database: Connection, key: str, condition: Any) -> NDArray[np.uint32]:
    """The rows whose `key` has one of the values, ascending. FilterError for a key that no chunk has."""
    names = json.dumps(sorted({canonical(value) for value in values_of(condition)}))
    blobs = [blob for (blob,) in database.execute(_MATCHING, (key, names))]
    if not blobs and not database.execute("SELECT 1 FROM facts WHERE key = ? LIMIT 1", (key,)).fetchone():
        keys = [name for (name,) in database.execute("SELECT DISTINCT key FROM facts ORDER BY key")]
        hint = did_you_mean(str(key), keys)
        hint = hint if "?" in hint else "use one of these."
        named = f"{', '.join(keys)}; {hint}" if keys else "none; leave it out."
        raise FilterError(
            f"A filter must name metadata that the documents have, but {key!r:.100} is none of {named}"
        )
    rows: NDArray[np.uint32] = np.frombuffer(b"".join(blobs), _ROW)
    return rows if len(blobs) == 1 else np.unique(rows)


def _columns(chunk: Document) -> tuple[str, str, str]:
    """Id, text and metadata of a chunk; the same chunk always gives the same ones."""
    try:
        metadata = _JSON.encode(chunk.metadata)
        metadata.encode()
    except (TypeError, UnicodeEncodeError):
        metadata = _JSON.encode(writable(chunk.metadata))
    return chunk.id or "", writable(chunk.page_content), metadata


def _hash(rows: Iterable[tuple[Any, ...]]) -> str:
    """BLAKE2b of rows; `ascii` shows types and where columns end, in the same way in every version of Python."""
    digest = blake2b(digest_size=_HASH_BYTES)
    for row in rows:
        blobs = [value for value in row if isinstance(value, bytes)]
        shown = [bytes if isinstance(value, bytes) else value for value in row] if blobs else row
        digest.update(ascii((*shown, *map(len, blobs))).encode())
        for blob in blobs:  # shown, they would take most of the time
            digest.update(blob)
    return digest.hexdigest()


# ---- readers -------------------------------------------------------------------------------------------------


class Snapshot:
    """The database as it was when opened, whatever is written to it meanwhile. Safe for several threads."""

    def __init__(self, directory: Path) -> None:
        """NoIndexError if there is none, RetrievalError if this Tandem does not understand it."""
        if not has_index(directory):
            raise _no_index(directory)
        self.directory = directory
        self._lock = Lock()
        with self._reading():
            self._database = connect(directory / NAME)
        # A connection is in a cycle with its statements, so forgetting the snapshot would not close it at once.
        self.close = weakref.finalize(self, self._database.close)
        try:
            with self._reading():
                self._database.execute("PRAGMA query_only = ON")
                self._database.execute("BEGIN")
                self.manifest, self.written_ms = _read_manifest(self._database, directory)
        except BaseException:
            self.close()
            raise
        self._words = words.WordSearch(self._database)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def verify(self) -> None:
        """Checks all but the vectors. RetrievalError if something differs from what was written."""
        try:
            with self._reading():
                is_whole = self._database.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok"
                digest = content_digest(self._database, self.manifest)
        except RetrievalError:
            deque(self.chunks(), maxlen=0)  # which row it is, if it is one
            raise
        if not is_whole or digest != self.manifest.digest:
            raise damaged(self.directory, f"{NAME} does not match its checksum")

    def stored_vectors(self) -> NDArray[np.float32]:
        """The vectors of all chunks [n, d], after `verify`. RetrievalError if one is not what was written."""
        with self._reading():
            return stored_vectors(self._database, self.manifest, self.directory)

    def has_unused_vectors(self) -> bool:
        """Whether it keeps vectors of texts that no chunk has."""
        return bool(self._query(f"SELECT 1 {_UNUSED} LIMIT 1"))

    def is_of(self, chunks: Iterable[Document]) -> bool:
        """Whether it holds just these chunks, in their order."""
        query = "SELECT id, text, metadata FROM chunks ORDER BY row"
        with self._reading():
            rows = self._database.execute(query)
            return all(row == other for row, other in zip_longest(rows, map(_columns, chunks)))

    def watched(self) -> str | None:
        """What was kept of the files that are watched."""
        return next((str(body) for (body,) in self._query("SELECT body FROM watched")), None)

    def marks(self, texts: Iterable[str]) -> bytes:
        """Marks of the words of some texts (`words.mark_of`), which say whether few chunks or files have them."""
        ((num_files,),) = self._query("SELECT count(*) FROM facts WHERE key = 'source'")
        with self._reading():
            return self._words.marks(texts, self.manifest.count, num_files)

    def documents(self, rows: Iterable[int] | NDArray[np.int64]) -> list[Document]:
        """The chunk of each row."""
        with self._reading():
            return [self._document(int(row)) for row in rows]

    def _document(self, row: int) -> Document:
        query = "SELECT id, text, metadata FROM chunks WHERE row = ?"
        try:
            identity, text, metadata = self._database.execute(query, (row,)).fetchone()
            return Document(page_content=text, metadata=json.loads(metadata), id=identity)
        except (sqlite3.Error, ValueError, TypeError) as error:  # what it says of the row's text stays here
            why = _reason(error) if isinstance(error, sqlite3.Error) else "it is not what was written"
            raise damaged(self.directory, f"row {row} of {NAME} cannot be read ({why})") from None

    def chunks(self) -> Iterator[Document]:
        """All chunks, by row."""
        for start in range(0, self.manifest.count, _READ_AT_ONCE):
            yield from self.documents(range(start, min(start + _READ_AT_ONCE, self.manifest.count)))

    def sources(self) -> dict[str, NDArray[np.int64]]:
        """The rows of each source, ascending."""
        facts = self._query("SELECT value, rows FROM facts WHERE key = 'source'")
        return {json.loads(value): np.frombuffer(rows, _ROW).astype(np.int64) for value, rows in facts}

    def sizes(self) -> dict[str, int]:
        """Bytes of the texts that are held of each source."""
        query = (
            "SELECT json_extract(metadata, '$.source') AS source, sum(length(CAST(text AS BLOB))) FROM chunks "
            "GROUP BY source"
        )
        return {str(source or ""): size for source, size in self._query(query)}

    def digests(self, sources: Collection[str] | None = None) -> dict[str, str]:
        """A digest of what is held of each source, or of some: equal for equal chunks and metadata, whatever their
        rows.
        """
        query, places = "SELECT id, metadata FROM chunks", list[tuple[int, ...]]([()])
        if sources is not None:
            query += " WHERE row = ?"
            rows = self.sources()
            places = [(row,) for source in rows.keys() & set(sources) for row in rows[source].tolist()]
        chunks: dict[str, list[tuple[str, str]]] = {}
        with self._reading():
            for name, metadata in chain.from_iterable(self._database.execute(query, row) for row in places):
                chunks.setdefault(json.loads(metadata).get("source", ""), []).append((name, metadata))
        return {source: _hash(sorted(rows)) for source, rows in chunks.items()}

    def find_ids(self, ids: Iterable[str]) -> set[str]:
        """Those ids that it holds."""
        query = "SELECT 1 FROM chunks WHERE id = ?"
        with self._reading():
            return {name for name in ids if self._database.execute(query, (name,)).fetchone()}

    def rows(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """The row of each id [len(ids)]; RetrievalError if one is unknown."""
        query = "SELECT row FROM chunks WHERE id = ?"
        with self._reading():
            rows = [self._database.execute(query, (writable(name),)).fetchone() for name in ids]
        for name, row in zip(ids, rows, strict=True):
            if row is None:
                raise RetrievalError(
                    f"The index holds no document with the id {name!r}; it may have been rebuilt: search again."
                )
        return np.array([row for (row,) in rows], np.int64)

    def select_rows(self, filter: Filter) -> NDArray[np.int64]:
        """The rows whose metadata fit, ascending. FilterError for a key that no chunk has."""
        with self._reading():
            first, *others = (_rows_of(self._database, key, condition) for key, condition in filter.items())
        for rows in others:
            first = np.intersect1d(first, rows, assume_unique=True)
        return first.astype(np.int64)

    def search_words(
        self, query: str, k: int, filter: Filter | None = None, *, only_codes: bool = False
    ) -> NDArray[np.int64]:
        """Rows [<= k] of the chunks that fit a query best by its words, best first; fewer if fewer have one of them.

        filter: metadata that each must have. only_codes: leaves all words but numbers and codes out. FilterError for a
        key that no chunk has.
        """
        among = self.select_rows(filter).tolist() if filter else None
        terms = words.codes(words.terms(query)) if only_codes else words.terms(query)
        with self._reading():
            return np.array(self._words.rows(terms, k, among), np.int64)

    def search_names(
        self, query: str, filter: Filter | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows of the files whose names a query gives, and how many parts of its name it gives of each row's file.
        filter: as above."""
        sources = self._sources
        given = self._names.given(query)
        rows = np.concatenate([_NO_ROWS, *(sources[source] for source in given)])
        counts = np.repeat([*given.values()], [len(sources[source]) for source in given]).astype(np.int64)
        if filter:
            is_among = np.isin(rows, self.select_rows(filter))
            rows, counts = rows[is_among], counts[is_among]
        return rows, counts

    @cached_property
    def _sources(self) -> dict[str, NDArray[np.int64]]:
        return self.sources()

    @cached_property
    def _names(self) -> words.Names:
        return words.Names(self._sources)

    def _query(self, query: str) -> list[Any]:
        with self._reading():
            return self._database.execute(query).fetchall()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """One thread at a time; RetrievalError where the database is damaged."""
        with self._lock:
            try:
                yield
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise damaged(self.directory, f"{NAME} cannot be read ({_reason(error)})") from None


# ---- the one writer ------------------------------------------------------------------------------------------


@contextmanager
def writing(directory: Path, previous: Manifest | None) -> Iterator[Writer]:
    """The right to change an index that was read and is sound, or to write a first one, for one process at a time;
    without `commit` it stays as it is.

    Raises IndexBusyError if another process builds there or has changed it since, and RetrievalError when the disk
    refuses. What is damaged, or no database of this version, is replaced.
    """
    is_file = directory.exists() and not directory.is_dir()
    if is_file or (directory / "manifest.json").exists():
        what = "is a file" if is_file else "holds a manifest.json, which no index of this version has"
        raise RetrievalError(
            f"An index needs a folder of its own, but {directory} {what}; choose another folder."
        )
    try:
        directory.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        busy = f"One process at a time may build an index, and another is building {directory}; wait for it."
        with locked(directory, os.O_RDONLY, busy):
            _check_is(directory, previous)
            with closing(_open_to_write(directory / NAME, previous is not None)) as database:
                yield Writer(database, previous is not None)
    except OSError as error:
        raise _refused(directory, error.strerror or str(error)) from error
    except sqlite3.Error as error:
        raise _refused(directory, _reason(error)) from None


@contextmanager
def locked(path: Path, flags: int, busy: str) -> Iterator[int]:
    """The descriptor of a file or folder that one process at a time may lock. IndexBusyError, which says `busy`."""
    descriptor = os.open(path, flags, PRIVATE_FILE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    except BlockingIOError:
        raise IndexBusyError(busy) from None
    finally:
        os.close(descriptor)


def _check_is(directory: Path, previous: Manifest | None) -> None:
    """Raises IndexBusyError if a sound index is there and not the one that was read."""
    current = None
    with suppress(RetrievalError):
        current = verify_index(directory) if previous is None else read_manifest(directory)
    if current != previous:
        raise IndexBusyError(
            f"An update must start from the index that is there, but {directory} was changed by another process "
            "meanwhile; run the update again."
        )


def _open_to_write(path: Path, is_sound: bool) -> Connection:
    """A connection to the database of an index, which is made if there is none, and anew if it is beyond repair.
    sqlite3.Error or OSError when the disk refuses.
    """
    for _ in range(2):
        with suppress(FileExistsError):
            path.touch(PRIVATE_FILE, exist_ok=False)
        # One that is there is never opened as a file: closing it would free the locks that this process holds on it.
        database = connect(path)
        try:
            if _prepare(database, is_sound):
                return database
        except BaseException:
            database.close()
            raise
        database.close()
        for suffix in ("-journal", "-wal", "-shm", ""):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
    raise OSError(errno.EIO, "the database cannot be replaced", str(path))


def _prepare(database: Connection, is_sound: bool) -> bool:
    """Makes a database ready for vectors; False if it must be replaced."""
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("PRAGMA secure_delete = ON")  # texts that were deleted leave the disk
        if not database.execute("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'").fetchone():
            raise OSError(errno.ENOSYS, "the SQLite of this Python has no FTS5")
        if not is_sound:
            is_whole = database.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok"
            is_own = _is_empty(database) or _identity(database)[0] == APPLICATION_ID
            if not (is_whole and is_own and words.can_open(database)):
                return False
        database.execute(_VECTORS)
    except UnicodeDecodeError:  # in an error that quotes a damaged table
        return False
    except sqlite3.Error as error:
        if _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return False
        raise
    return True


def _make_tables(database: Connection) -> None:
    query = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY sql NOT LIKE 'CREATE VIRTUAL%'"
    names = database.execute(query).fetchall()  # with a virtual table go those that store it
    old = (f'DROP TABLE IF EXISTS "{name}"' for (name,) in names if name != "vectors")
    for statement in (*old, *_SCHEMA):
        database.execute(statement)


class Writer:
    """The one build of an index that is under way; `writing` makes it."""

    def __init__(self, database: Connection, is_sound: bool) -> None:
        """is_sound: what is there can be changed; else it is replaced."""
        self.database = database
        self._is_sound = is_sound

    def lacks_vector(self, key: bytes) -> bool:
        """Whether no vector is kept under a key, or one that is not what was written."""
        row = self.database.execute("SELECT vector, digest FROM vectors WHERE key = ?", (key,)).fetchone()
        return row is None or vector_digest(key, row[0]) != row[1]

    def keep_vectors(self, keys: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
        """Keeps vectors [len(keys), d]; when this returns, they are on the disk."""
        rows = [row.tobytes() for row in np.ascontiguousarray(vectors, "<f4")]
        query = (
            "INSERT INTO vectors (key, vector, digest) VALUES (?, ?, ?) "
            "ON CONFLICT (key) DO UPDATE SET vector = excluded.vector, digest = excluded.digest"
        )
        self.database.execute("BEGIN IMMEDIATE")
        values = ((key, row, vector_digest(key, row)) for key, row in zip(keys, rows, strict=True))
        self.database.executemany(query, values)
        self.database.execute("COMMIT")

    def drop_unused_vectors(self) -> None:
        """Drops the vectors of texts that no chunk has."""
        self.database.execute(f"DELETE {_UNUSED}")

    def write_watched(self, body: str) -> None:
        """Keeps what was seen of the files that are watched."""
        self.database.execute("BEGIN IMMEDIATE")
        self.database.execute("DELETE FROM watched")
        self.database.execute("INSERT INTO watched VALUES (?)", (body,))
        self.database.execute("COMMIT")

    def write_chunks(self, placed: Mapping[int, Document], manifest: Manifest) -> None:
        """Gives rows a chunk, in place of what they had, and drops those from `manifest.count` on; all others stay.

        Their vectors are kept already. RetrievalError for an id that is not proper or comes twice.
        """
        self.database.execute("BEGIN IMMEDIATE")
        if not self._is_sound:
            _make_tables(self.database)
        query = (
            "SELECT row, id, text, metadata, words_row FROM chunks "
            "WHERE row >= ? OR row IN (SELECT value FROM json_each(?))"
        )
        old = self.database.execute(query, (manifest.count, json.dumps(list(placed)))).fetchall()
        (last,) = self.database.execute("SELECT ifnull(max(words_row), -1) FROM chunks").fetchone()
        self.database.executemany("DELETE FROM chunks WHERE row = ?", ((row,) for row, *_ in old))
        texts = {chunk.id: writable(chunk.page_content) for chunk in placed.values()}
        kept = {name: words_row for _, name, text, _, words_row in old if texts.get(name) == text}
        if kept or self.database.execute("SELECT 1 FROM chunks LIMIT 1").fetchone():
            gone = ((words_row, text) for _, name, text, _, words_row in old if name not in kept)
            words.remove_words(self.database, gone)
        else:
            words.clear_words(self.database)
        before: dict[tuple[str, str], list[int]] = {}
        after: dict[tuple[str, str], list[int]] = {}
        for row, _, _, metadata, _ in old:
            _note_facts(row, metadata, before)
        query = "INSERT INTO chunks VALUES (?, ?, ?, ?, ?, (SELECT number FROM vectors WHERE key = ?))"
        rows = _checked_rows(placed, after, kept, count(last + 1), manifest)
        self.database.executemany(query, rows)
        self._write_facts(before, after)
        words.add_words(self.database, last + 1)
        self.drop_unused_vectors()

    def _write_facts(
        self, before: Mapping[tuple[str, str], list[int]], after: Mapping[tuple[str, str], list[int]]
    ) -> None:
        for fact in {*before, *after}:
            row = self.database.execute("SELECT rows FROM facts WHERE key = ? AND value = ?", fact).fetchone()
            rows = np.frombuffer(row[0] if row else b"", _ROW)
            rows = np.setdiff1d(rows, np.array(before.get(fact, ()), _ROW), assume_unique=True)
            rows = np.union1d(rows, np.array(after.get(fact, ()), _ROW)).astype(_ROW)
            self.database.execute("DELETE FROM facts WHERE key = ? AND value = ?", fact)
            if len(rows):
                self.database.execute("INSERT INTO facts VALUES (?, ?, ?)", (*fact, rows.tobytes()))

    def commit(self, manifest: Manifest, written_ms: str = _NOW_MS) -> Manifest:
        """Makes what was written the index, of this manifest, whose digest is set here."""
        manifest = replace(manifest, digest=content_digest(self.database, manifest))
        body = json.dumps(asdict(manifest))
        self.database.execute(f"UPDATE manifest SET body = ?, written_ms = {written_ms}", (body,))
        self.database.execute("COMMIT")
        return manifest

    def write_roots(self, manifest: Manifest) -> Manifest:
        """Replaces the manifest by one of other roots; the rest is as old as it was."""
        self.database.execute("BEGIN IMMEDIATE")
        return self.commit(manifest, "written_ms")


def _checked_rows(
    chunks: Mapping[int, Document],
    facts: dict[tuple[str, str], list[int]],
    kept: Mapping[str, int],
    free: Iterator[int],
    manifest: Manifest,
) -> Iterator[tuple[int, str, str, str, int, bytes]]:
    """The rows of chunks, whose metadata go to `facts`; RetrievalError for an id that is not proper or came before.

    kept: the row of the words of chunks that had them before, by id. free: those of the others.
    """
    seen: set[str] = set()
    for row, chunk in chunks.items():
        name, text, metadata = _columns(chunk)
        if not name or len(name) > 2 * ID_BYTES or not name.isascii():
            raise RetrievalError(
                f"A chunk needs an id of 1 to {2 * ID_BYTES} ASCII characters, but one has {name!r}; "
                "let `split` set it."
            )
        if name in seen:
            raise RetrievalError(
                f"Each chunk needs an id of its own, but {name} comes twice; let `split` set them."
            )
        seen.add(name)
        _note_facts(row, metadata, facts)
        words_row = kept[name] if name in kept else next(free)
        yield row, name, text, metadata, words_row, vector_key(manifest, chunk.page_content)


def _note_facts(row: int, metadata: str, facts: dict[tuple[str, str], list[int]]) -> None:
    for key, value in json.loads(metadata).items():
        items = value if isinstance(value, list) else ()  # each is a fact, as the whole list is
        for fact in sorted({canonical(item) for item in (value, *items)}):
            facts.setdefault((key, fact), []).append(row)


def _refused(directory: Path, why: str) -> RetrievalError:
    return RetrievalError(
        f"The index {directory} could not be written ({why}); what it held before is kept: "
        "free space or check its rights, then build again."
    )


# ---- the process that watches the folders of an index ---------------------------------------------------------

LOCK = "watch.lock"
BUSY_S = 0.5
"""When to try again while another process builds the index."""
NICENESS = 10
"""Of a process that embeds next to the one that answers."""


def claimed(directory: Path) -> AbstractContextManager[int]:
    """The right to follow the folders of an index, for one process at a time, as the descriptor of a file whose time is
    that of the last look. Raises IndexBusyError."""
    busy = (
        f"One process at a time may watch the folders of an index, and another does for {directory}; end that one, or "
        "leave it to it."
    )
    return locked(directory / LOCK, os.O_RDWR | os.O_CREAT, busy)


def watched_since(directory: Path) -> float | None:
    """When the folders of an index were last looked at, as Unix time, if a process watches them; else None."""
    with suppress(OSError), (directory / LOCK).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.fstat(file.fileno()).st_mtime
    return None
