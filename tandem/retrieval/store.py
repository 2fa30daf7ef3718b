"""An index on disk: one SQLite database, and next to it the files of vectors that its manifest names.

    index/
      tandem-index.sqlite   manifest, chunks, their metadata and their words
      vectors-7.faiss       the FAISS index of generation 7
      vectors-7.npy         the vectors themselves, for kinds that do not give them back exactly
      embedded.sqlite       while a build runs, or after it was interrupted: what it has embedded

A build holds SQLite's write lock from beginning to end, and one transaction replaces manifest and chunks: before it
the old index is whole, after it the new one. A reader holds a snapshot of the database (write-ahead log) and stays
whole while others write. Only their owner may read the files.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sqlite3
import unicodedata
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import blake2b, sha256
from itertools import chain, count
from pathlib import Path
from sqlite3 import Connection
from threading import Lock
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tandem.errors import FilterError, RetrievalError, did_you_mean
from tandem.retrieval import words
from tandem.retrieval.documents import ID_BYTES, Document, writable

NAME = "tandem-index.sqlite"
"""The database that makes a folder an index."""
VERSION = 3
APPLICATION_ID = 0x54616E64  # "Tand"
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
KEY_BYTES = 16

Filter = Mapping[str, Any]
"""{key: value or list of values}: a chunk fits if for every key its value is one of those."""

_SCHEMA = (
    "CREATE TABLE manifest (body TEXT NOT NULL)",
    "CREATE TABLE chunks (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, text TEXT NOT NULL, metadata TEXT, "
    "words_row INTEGER NOT NULL UNIQUE)",
    "CREATE TABLE facts (key TEXT, value TEXT, rows BLOB NOT NULL, PRIMARY KEY (key, value)) WITHOUT ROWID",
    *words.SCHEMA,
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
)
_EMBEDDED = (
    "CREATE TABLE IF NOT EXISTS embedded (row INTEGER PRIMARY KEY, key BLOB, vector BLOB, digest TEXT)"
)
_WANTED = "SELECT rows FROM facts WHERE key = ? AND value IN (SELECT value FROM json_each(?))"
_ROW = np.dtype("<u4")
_HASH_BYTES = 32
_READ_AT_ONCE = 4096
_READ_TIMEOUT_S, _WATCH_TIMEOUT_S, _WRITE_TIMEOUT_S, _JOURNAL_TIMEOUT_S = 10.0, 1.0, 0.3, 10.0
_JSON = json.JSONEncoder(sort_keys=True, ensure_ascii=False, default=str)
_VECTORS = re.compile(r"vectors-\d+\.(faiss|npy)")


# ---- the manifest: what must fit before an index is used -----------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Checksum:
    """Length and SHA-256 of one file."""

    num_bytes: int
    sha256: str  # hexadecimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything that must fit before an index may be used."""

    embedder: str  # name, for people
    embedder_fingerprint: str
    dimension: int
    count: int  # vectors, and chunks
    factory: str  # FAISS factory string
    id_key: str  # hexadecimal; keys the chunks' ids and never leaves this side
    files: dict[str, Checksum]  # of vectors, next to the database
    generation: int = 0  # builds of this index so far
    chunks_hash: str = ""  # of ids, texts and metadata, hexadecimal
    facts_hash: str = ""  # of the metadata that filters use, hexadecimal
    words_hash: str = ""  # of the words and of which chunk has them, hexadecimal
    roots: list[str] = field(default_factory=list)  # what it was built from: absolute paths, or `GIVEN`


class NoIndexError(RetrievalError):
    """A folder holds no index."""


class IndexBusyError(RetrievalError):
    """Another process builds an index, or has changed it meanwhile: it goes when that has ended."""


def damaged(directory: Path, what: str) -> RetrievalError:
    """The error for an index that cannot be trusted."""
    return RetrievalError(f"The index {directory} is damaged: {what}; build it again with `tandem index`.")


def checksum(path: Path) -> Checksum:
    """Length and SHA-256 of a file, read in pieces."""
    digest = sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
        return Checksum(num_bytes=file.tell(), sha256=digest.hexdigest())


def has_index(directory: Path) -> bool:
    """Whether a folder holds an index, sound or not."""
    return (directory / NAME).is_file()


def read_manifest(directory: Path) -> Manifest:
    """The manifest of an index. RetrievalError if there is none."""
    with Snapshot(directory) as snapshot:
        return snapshot.manifest


def verify_index(directory: Path) -> Manifest:
    """The manifest of an index whose content fits its checksums; its vectors are not loaded.

    RetrievalError, or OSError where something cannot be read.
    """
    with Snapshot(directory) as snapshot:
        snapshot.verify()
        return snapshot.manifest


def modified_ns(directory: Path) -> int:
    """The time when the index in a folder was written, in nanoseconds since 1970."""
    return max((directory / name).stat().st_mtime_ns for name in read_manifest(directory).files)


def vector_files(directory: Path) -> list[Path]:
    """The files of vectors in a folder, of whatever generation."""
    return sorted(path for path in directory.glob("vectors-*") if _VECTORS.fullmatch(path.name))


def _no_index(directory: Path) -> NoIndexError:
    return NoIndexError(
        f"An index must hold a {NAME}, but {directory} has none; build it with `tandem index`."
    )


def _read_manifest(database: Connection, directory: Path) -> Manifest:
    if _is_empty(database):
        raise _no_index(directory)  # a first build was interrupted
    application, version = _identity(database)
    if application != APPLICATION_ID:
        raise damaged(directory, f"{NAME} is not a database of Tandem's")
    if version != VERSION:
        raise RetrievalError(
            f"This Tandem reads index version {VERSION}, but {directory} has version {version}; "
            "build it again with `tandem index`, or use the Tandem that wrote it."
        )
    row = database.execute("SELECT body FROM manifest").fetchone()
    if row is None:
        raise _no_index(directory)
    try:
        body = json.loads(row[0])
    except (ValueError, RecursionError):
        raise damaged(directory, "its manifest is not readable JSON") from None
    return _parse_manifest(directory, body)


def _parse_manifest(directory: Path, body: Any) -> Manifest:
    """A manifest from its JSON object, every field of the right type; RetrievalError otherwise."""
    kinds = {"dimension": int, "count": int, "generation": int, "files": dict, "roots": list}
    names = [entry.name for entry in fields(Manifest)]
    for name in names:
        if not isinstance(body, dict) or type(body.get(name)) is not kinds.get(name, str):
            raise damaged(directory, f'its manifest lacks a proper "{name}"')
    try:
        files = {name: Checksum(**entry) for name, entry in body["files"].items()}
        bytes.fromhex(body["id_key"])
    except (TypeError, ValueError):
        raise damaged(directory, 'its manifest lacks a proper "files" or "id_key"') from None
    if not all(isinstance(root, str) for root in body["roots"]):
        raise damaged(directory, 'its manifest lacks a proper "roots"')
    return Manifest(**{**{name: body[name] for name in names}, "files": files})


# ---- SQLite --------------------------------------------------------------------------------------------------


def connect(path: Path, timeout_s: float) -> Connection:
    """A connection to an existing database whose transactions are begun and ended by hand."""
    name = f"{path.absolute().as_uri()}?mode=rw"
    if not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists():
        name += "&immutable=1"  # SQLite cannot note there who reads, and nobody can write
    return sqlite3.connect(name, timeout_s, isolation_level=None, check_same_thread=False, uri=True)


def remove_database(path: Path) -> None:
    """Deletes a database that is not open, and what SQLite keeps next to it."""
    for suffix in ("-journal", "-wal", "-shm", ""):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Waits until a file's or folder's content is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _connect_private(path: Path, timeout_s: float) -> Connection:
    """As `connect`; a database that is not there is made, for its owner's eyes only.

    One that is there is never opened as a file: closing it would free the locks that this process holds on it.
    """
    with suppress(FileExistsError):
        path.touch(PRIVATE_FILE, exist_ok=False)
    return connect(path, timeout_s)


def _code(error: Exception) -> int | None:
    """SQLite's error code without its details; None for an error that is not SQLite's own."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _is_damaged(error: sqlite3.Error) -> bool:
    """Whether an error says that a file is no sound database."""
    return _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _reason(error: Exception) -> str:
    """The reason of an error of SQLite. Python's own, of a text that is not UTF-8, quotes that text, which is
    private."""
    return "a text in it is not UTF-8" if _code(error) is None else str(error)


def _identity(database: Connection) -> tuple[int, int]:
    """The application id and version of a database."""
    names = ("application_id", "user_version")
    application, version = (database.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    return application, version


def _is_empty(database: Connection) -> bool:
    """Whether nothing was ever committed to a database."""
    return not database.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]


# ---- chunks and what filters ask of their metadata -----------------------------------------------------------


def hash_chunks(chunks: Iterable[Document]) -> str:
    """BLAKE2b of ids, texts and metadata in their order, hexadecimal."""
    return _hash(_columns(chunk) for chunk in chunks)


def hash_tables(database: Connection) -> dict[str, Any]:
    """BLAKE2b of the chunks, as `hash_chunks` gives it, of the facts and of the words: fields of the manifest."""
    stored = ("SELECT row, words_row FROM chunks ORDER BY row", *words.STORED)
    return {
        "chunks_hash": _hash(database.execute("SELECT id, text, metadata FROM chunks ORDER BY row")),
        "facts_hash": _hash(database.execute("SELECT key, value, rows FROM facts ORDER BY key, value")),
        "words_hash": _hash(chain.from_iterable(map(database.execute, stored))),
    }


def _fits(manifest: Manifest, sums: Mapping[str, str]) -> bool:
    """Whether a manifest has these checksums of tables."""
    return all(getattr(manifest, name) == value for name, value in sums.items())


def values_of(wanted: Any) -> list[Any]:
    """The values that a filter lets through for one key."""
    return list(wanted) if isinstance(wanted, (list, tuple, set, frozenset)) else [wanted]


def canonical(value: Any) -> str:
    """A value as a text that equals that of an equal value; 1 and 1.0 are equal, 1 and true are not. Texts are compared
    in one normal form of Unicode.
    """
    if isinstance(value, str):
        value = unicodedata.normalize("NFC", value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return _JSON.encode(value)


def _rows_of(database: Connection, key: str, wanted: Any) -> NDArray[np.uint32]:
    """The rows whose `key` has one of the wanted values, ascending. FilterError for a key that no chunk has."""
    names = json.dumps(sorted({canonical(value) for value in values_of(wanted)}))
    blobs = [blob for (blob,) in database.execute(_WANTED, (key, names))]
    if not blobs and not database.execute("SELECT 1 FROM facts WHERE key = ? LIMIT 1", (key,)).fetchone():
        known = [name for (name,) in database.execute("SELECT DISTINCT key FROM facts ORDER BY key")]
        hint = did_you_mean(str(key), known)
        hint = hint if "?" in hint else "use one of these."
        named = f"{', '.join(known)}; {hint}" if known else "none; leave it out."
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
        digest.update(ascii(row).encode())
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
            self._database = connect(directory / NAME, _READ_TIMEOUT_S)
            # A connection is in a cycle with its statements, so forgetting the snapshot would not close it at once.
            self.close = weakref.finalize(self, self._database.close)
            self._database.execute("PRAGMA query_only = ON")
            self._database.execute("BEGIN")
            self.manifest = _read_manifest(self._database, directory)
        self._words = words.WordSearch(self._database)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def verify(self) -> None:
        """Checks every byte that matters: FileNotFoundError if a file is missing, RetrievalError if one differs."""
        for name, expected in self.manifest.files.items():
            path = self.directory / name
            if (num_bytes := path.stat().st_size) != expected.num_bytes:
                raise damaged(self.directory, f"{name} has {num_bytes} bytes instead of {expected.num_bytes}")
            if checksum(path) != expected:
                raise damaged(self.directory, f"{name} does not match its checksum")
        try:
            with self._reading():
                is_whole = self._database.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok"
                sums = hash_tables(self._database)
        except RetrievalError:
            deque(self.chunks(), maxlen=0)  # which row it is, if it is one
            raise
        if not is_whole or not _fits(self.manifest, sums):
            raise damaged(self.directory, f"{NAME} does not match its checksum")

    def documents(self, rows: Iterable[int] | NDArray[np.int64]) -> list[Document]:
        """The chunk of each row."""
        with self._reading():
            return [self._document(int(row)) for row in rows]

    def _document(self, row: int) -> Document:
        query = "SELECT id, text, metadata FROM chunks WHERE row = ?"
        try:
            identity, text, metadata = self._database.execute(query, (row,)).fetchone()
            return Document(page_content=text, metadata=json.loads(metadata), id=identity)
        except (
            sqlite3.Error,
            ValueError,
            TypeError,
        ) as error:  # whatever it says of the row's text stays here
            why = _reason(error) if isinstance(error, sqlite3.Error) else "it is not what was written"
            raise damaged(self.directory, f"row {row} of {NAME} cannot be read ({why})") from None

    def chunks(self) -> Iterator[Document]:
        """All chunks, by row."""
        for start in range(0, self.manifest.count, _READ_AT_ONCE):
            yield from self.documents(range(start, min(start + _READ_AT_ONCE, self.manifest.count)))

    def ids(self) -> list[str]:
        """The id of each row."""
        with self._reading():
            return [name for (name,) in self._database.execute("SELECT id FROM chunks ORDER BY row")]

    def sources(self) -> dict[str, NDArray[np.int64]]:
        """The rows of each source, ascending."""
        with self._reading():
            facts = self._database.execute("SELECT value, rows FROM facts WHERE key = 'source'").fetchall()
        return {json.loads(value): np.frombuffer(rows, _ROW).astype(np.int64) for value, rows in facts}

    def sizes(self) -> dict[str, int]:
        """Bytes of the texts that are held of each source."""
        query = (
            "SELECT json_extract(metadata, '$.source') AS source, sum(length(CAST(text AS BLOB))) FROM chunks "
            "GROUP BY source"
        )
        with self._reading():
            return {str(source or ""): size for source, size in self._database.execute(query)}

    def digests(self, sources: Collection[str] | None = None) -> dict[str, str]:
        """A digest of what is held of each source, or of some: equal for equal chunks and metadata, whatever their
        rows.
        """
        query = "SELECT id, metadata FROM chunks"
        wanted: list[tuple[int, ...]] = [()]
        if sources is not None:
            query += " WHERE row = ?"
            rows = self.sources()
            wanted = [(row,) for source in rows.keys() & set(sources) for row in rows[source].tolist()]
        chunks: dict[str, list[tuple[str, str]]] = {}
        with self._reading():
            for name, metadata in chain.from_iterable(self._database.execute(query, row) for row in wanted):
                chunks.setdefault(json.loads(metadata).get("source", ""), []).append((name, metadata))
        return {source: _hash(sorted(held)) for source, held in chunks.items()}

    def known(self, ids: Iterable[str]) -> set[str]:
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
            first, *others = (_rows_of(self._database, key, wanted) for key, wanted in filter.items())
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
        wanted = words.codes(words.terms(query)) if only_codes else words.terms(query)
        with self._reading():
            return np.array(self._words.rows(wanted, k, among), np.int64)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """One thread at a time; RetrievalError where the database is damaged."""
        with self._lock:
            try:
                yield
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise damaged(self.directory, f"{NAME} cannot be read ({_reason(error)})") from None


class Watch:
    """Says cheaply whether an index's database may have been written or replaced.

    The time and size of the files would not do: a commit writes its log first and shows itself later.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._inode = 0
        self.close = weakref.finalize(self, lambda: None)

    def state(self) -> tuple[int, int] | None:
        """Differs from the last one if something was committed, or if the file is another one; None without a file.

        An open file's inode is not used again.
        """
        try:
            inode = self._path.stat().st_ino
            if inode != self._inode:
                self.close()
                self._database = database = connect(self._path, _WATCH_TIMEOUT_S)
                self.close = weakref.finalize(self, database.close)
                self._inode = inode
            return inode, self._database.execute("PRAGMA data_version").fetchone()[0]
        except (OSError, sqlite3.Error):
            return None


# ---- the one writer ------------------------------------------------------------------------------------------


@contextmanager
def writing(directory: Path) -> Iterator[Writer]:
    """The right to write an index, for one process at a time; without `commit` nothing changes.

    Raises RetrievalError if another process builds there, or when the disk refuses; what was indexed before is then
    untouched. What is no database of Tandem's any more is replaced.
    """
    is_file = directory.exists() and not directory.is_dir()
    if is_file or (directory / "manifest.json").exists():
        what = "is a file" if is_file else "holds a manifest.json, which no index of this version has"
        raise RetrievalError(
            f"An index needs a folder of its own, but {directory} {what}; choose another folder."
        )
    try:
        directory.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        with closing(_begin_writing(directory / NAME)) as database:
            yield Writer(directory, database)
    except OSError as error:
        raise _refused(directory, error.strerror or str(error)) from error
    except sqlite3.Error as error:
        if _code(error) == sqlite3.SQLITE_BUSY:
            raise IndexBusyError(
                f"One process at a time may build an index, and another is building {directory}; wait for it."
            ) from None
        raise _refused(directory, _reason(error)) from None


class Writer:
    """The one build of an index that is under way; `writing` makes it."""

    def __init__(self, directory: Path, database: Connection) -> None:
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
        path.touch(PRIVATE_FILE, exist_ok=False)
        return path

    def replace_chunks(self, chunks: Sequence[Document]) -> None:
        """Writes the chunks in place of those before. RetrievalError for an id that is not proper or comes twice."""
        kept = self._keep_words(chunks)
        first = 1 + max(kept.values(), default=-1)  # of the rows of new words
        for table in ("chunks", "facts"):
            self._database.execute(f"DELETE FROM {table}")
        facts: dict[tuple[str, str], list[int]] = {}
        rows = _checked_rows(enumerate(chunks), facts, kept, count(first))
        self._database.executemany("INSERT INTO chunks VALUES (?, ?, ?, ?, ?)", rows)
        blobs = ((key, value, np.array(facts[key, value], _ROW).tobytes()) for key, value in sorted(facts))
        self._database.executemany("INSERT INTO facts VALUES (?, ?, ?)", blobs)
        words.add_words(self._database, first)
        self._sums = hash_tables(self._database)

    def _keep_words(self, chunks: Sequence[Document]) -> dict[str, int]:
        """Removes the words of other chunks than these, and everything if it is not sound any more; returns the row of
        each one's words by its id.
        """
        try:
            if self.manifest is not None and _fits(self.manifest, hash_tables(self._database)):
                texts = {chunk.id or "": writable(chunk.page_content) for chunk in chunks}
                return words.keep_words(self._database, texts)
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            pass
        _make_tables(self._database)
        return {}

    def edit_chunks(self, gone: Collection[int], placed: Mapping[int, Document]) -> None:
        """Empties some rows and gives some a chunk, in place of what they had; all others stay as they are."""
        before: dict[tuple[str, str], list[int]] = {}
        after: dict[tuple[str, str], list[int]] = {}
        had: dict[str, tuple[str, int]] = {}
        (last,) = self._database.execute("SELECT max(words_row) FROM chunks").fetchone()
        query = "SELECT id, text, metadata, words_row FROM chunks WHERE row = ?"
        for row in {*gone, *placed}:
            for name, text, metadata, words_row in self._database.execute(query, (row,)):
                _note_facts(row, metadata, before)
                had[name] = text, words_row
            self._database.execute("DELETE FROM chunks WHERE row = ?", (row,))
        texts = {chunk.id: writable(chunk.page_content) for chunk in placed.values()}
        same = {name: row for name, (text, row) in had.items() if texts.get(name) == text}
        words.remove_words(
            self._database, [(row, text) for name, (text, row) in had.items() if name not in same]
        )
        rows = _checked_rows(placed.items(), after, same, count(last + 1))
        self._database.executemany("INSERT INTO chunks VALUES (?, ?, ?, ?, ?)", rows)
        for fact in {*before, *after}:
            held = self._database.execute(
                "SELECT rows FROM facts WHERE key = ? AND value = ?", fact
            ).fetchone()
            known = np.frombuffer(held[0] if held else b"", _ROW)
            kept = np.setdiff1d(known, np.array(before.get(fact, ()), _ROW), assume_unique=True)
            wanted = np.union1d(kept, np.array(after.get(fact, ()), _ROW)).astype(_ROW)
            self._database.execute("DELETE FROM facts WHERE key = ? AND value = ?", fact)
            if len(wanted):
                self._database.execute("INSERT INTO facts VALUES (?, ?, ?)", (*fact, wanted.tobytes()))
        words.add_words(self._database, last + 1)
        self._sums = hash_tables(self._database)

    def commit(self, manifest: Manifest) -> None:
        """Makes what was written the index; the manifest's generation and checksums of tables are set here."""
        manifest = replace(manifest, generation=self.generation, **self._sums)
        for name in manifest.files:
            flush(self.directory / name)
        flush(self.directory)
        self.write_manifest(manifest)

    def write_manifest(self, manifest: Manifest) -> None:
        """Makes this the manifest of what was written, or of what is there."""
        self._database.execute("DELETE FROM manifest")
        self._database.execute("INSERT INTO manifest VALUES (?)", (json.dumps(asdict(manifest)),))
        self._database.execute("COMMIT")


def _checked_rows(
    chunks: Iterable[tuple[int, Document]],
    facts: dict[tuple[str, str], list[int]],
    kept: Mapping[str, int],
    free: Iterator[int],
) -> Iterator[tuple[int, str, str, str, int]]:
    """The rows of chunks, whose metadata go to `facts`; RetrievalError for an id that is not proper or came before.

    kept: the row of the words of chunks that had them before, by id. free: those of the others.
    """
    seen: set[str] = set()
    for row, chunk in chunks:
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
        yield row, name, text, metadata, kept[name] if name in kept else next(free)


def _note_facts(row: int, metadata: str, facts: dict[tuple[str, str], list[int]]) -> None:
    """Adds a row to the facts that its metadata hold."""
    for key, value in json.loads(metadata).items():
        items = value if isinstance(value, list) else ()  # each is a fact, as the whole list is
        for fact in sorted({canonical(item) for item in (value, *items)}):
            facts.setdefault((key, fact), []).append(row)


def _begin_writing(path: Path) -> Connection:
    """A connection to an index's database that holds its write lock, for one process at a time.

    The database is made if there is none, and replaced if it is damaged or not Tandem's. sqlite3.Error or OSError if
    another process writes, or when the disk refuses.
    """
    for _ in range(2):
        database = _connect_private(path, _WRITE_TIMEOUT_S)
        try:
            if _begin(database):
                return database
        except BaseException:
            database.close()
            raise
        database.close()
        remove_database(path)
    raise OSError(errno.EIO, "the database cannot be replaced", str(path))


def _begin(database: Connection) -> bool:
    """Begins to write; False if the database must be replaced."""
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("PRAGMA secure_delete = ON")  # texts that were deleted leave the disk
        database.execute("BEGIN IMMEDIATE")
        if not database.execute("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'").fetchone():
            raise OSError(errno.ENOSYS, "the SQLite of this Python has no FTS5")
        application, version = _identity(database)
        if _is_empty(database) or (application == APPLICATION_ID and version != VERSION):
            _make_tables(database)
            return True
        is_whole = database.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok"
        return is_whole and application == APPLICATION_ID and words.can_open(database)
    except UnicodeDecodeError:  # in an error that quotes a damaged table
        return False
    except sqlite3.Error as error:
        if _is_damaged(error):
            return False
        raise


def _make_tables(database: Connection) -> None:
    """Empty tables in place of what another version of Tandem wrote."""
    query = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY sql NOT LIKE 'CREATE VIRTUAL%'"
    names = database.execute(query).fetchall()  # with a virtual table go those that store it
    for statement in [*(f'DROP TABLE IF EXISTS "{name}"' for (name,) in names), *_SCHEMA]:
        database.execute(statement)


def _refused(directory: Path, why: str) -> RetrievalError:
    return RetrievalError(
        f"The index {directory} could not be written ({why}); what it held before is kept: "
        "free space or check its rights, then build again."
    )


# ---- what an unfinished build has embedded -------------------------------------------------------------------


def text_key(text: str) -> bytes:
    """The name of a text in the journal: equal for equal texts alone."""
    return blake2b(text.encode("utf-8", "replace"), digest_size=KEY_BYTES).digest()


class Journal:
    """Vectors by text, for one embedder and one process at a time (the lock on the index ensures that)."""

    def __init__(self, path: Path, fingerprint: str, dimension: int) -> None:
        """Opens the journal at `path`; what is none is emptied, and what another embedder gave is not found in it.

        OSError or sqlite3.Error if the disk refuses.
        """
        self._embedder, self._dimension = f"{fingerprint} {dimension}".encode(), dimension
        self._rows: dict[bytes, int] = {}
        try:
            self._open(path)
        except sqlite3.Error as error:
            if not _is_damaged(error):
                raise
            remove_database(path)
            self._rows.clear()
            self._open(path)

    def _open(self, path: Path) -> None:
        self._database = database = _connect_private(path, _JOURNAL_TIMEOUT_S)
        try:
            database.execute("PRAGMA journal_mode = WAL")  # one flush per batch
            database.execute("PRAGMA synchronous = FULL")
            database.execute(_EMBEDDED)
            for row, key, vector, digest in database.execute("SELECT row, key, vector, digest FROM embedded"):
                if self._digest(key, vector) == digest:
                    self._rows[key] = row
        except BaseException:
            database.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def __contains__(self, key: bytes) -> bool:
        return key in self._rows

    def __len__(self) -> int:
        """Number of texts whose vectors are kept."""
        return len(self._rows)

    def append(self, keys: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
        """Keeps vectors [len(keys), d]; when this returns, they are on the disk."""
        if vectors.shape != (len(keys), self._dimension):
            raise ValueError(f"{len(keys)} texts were embedded to vectors of the shape {vectors.shape}")
        self._database.execute("BEGIN")
        for key, row in zip(keys, np.ascontiguousarray(vectors, "<f4"), strict=True):
            columns = (key, row.tobytes())
            query = "INSERT INTO embedded (key, vector, digest) VALUES (?, ?, ?)"
            number = self._database.execute(query, (*columns, self._digest(*columns))).lastrowid
            self._rows[key] = number or 0
        self._database.execute("COMMIT")

    def vectors(self, keys: Sequence[bytes]) -> NDArray[np.float32]:
        """The vectors [len(keys), d] of texts that are kept."""
        query = "SELECT vector FROM embedded WHERE row = ?"
        data = b"".join(self._database.execute(query, (self._rows[key],)).fetchone()[0] for key in keys)
        return np.frombuffer(data, "<f4").reshape(len(keys), self._dimension).astype(np.float32)

    def _digest(self, key: bytes, vector: bytes) -> str:
        """Fits only what this embedder gave; a damaged file may hold values of any type."""
        return _hash([(self._embedder, key, vector)])
