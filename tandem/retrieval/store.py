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

import errno
import json
import os
import re
import sqlite3
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import blake2b, sha256
from pathlib import Path
from sqlite3 import Connection
from threading import Lock
from typing import Any, Self
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tandem.errors import FilterError, RetrievalError, did_you_mean
from tandem.retrieval.documents import ID_BYTES, Document, writable

# ---- The tables of an index's database ---------------------------------------------------------------------


Filter = Mapping[str, Any]
"""{key: value or list of values}: a chunk fits if for every key its value is one of those."""

SCHEMA = (
    "CREATE TABLE chunks (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, text TEXT NOT NULL, metadata TEXT)",
    "CREATE TABLE facts (key TEXT, value TEXT, rows BLOB NOT NULL, PRIMARY KEY (key, value)) WITHOUT ROWID",
)

_ROW = np.dtype("<u4")
_HASH_BYTES = 32
_JSON = json.JSONEncoder(sort_keys=True, ensure_ascii=False, default=str)
_WANTED = "SELECT rows FROM facts WHERE key = ? AND value IN (SELECT value FROM json_each(?))"


def write_chunks(database: Connection, chunks: Sequence[Document]) -> None:
    """Fills both tables with the chunks, in place of those before. RetrievalError for a bad id."""
    for table in ("chunks", "facts"):
        database.execute(f"DELETE FROM {table}")
    facts: dict[tuple[str, str], list[int]] = {}
    rows = enumerate(_check_ids(_columns(chunk) for chunk in chunks))
    database.executemany("INSERT INTO chunks VALUES (?, ?, ?, ?)", _note_facts(rows, facts))
    blobs = ((key, value, np.array(facts[key, value], _ROW).tobytes()) for key, value in sorted(facts))
    database.executemany("INSERT INTO facts VALUES (?, ?, ?)", blobs)


def read_chunks(database: Connection, rows: Iterable[int] | NDArray[np.int64]) -> list[Document]:
    """The chunk of each row."""
    query = "SELECT id, text, metadata FROM chunks WHERE row = ?"
    return [_document(*database.execute(query, (int(row),)).fetchone()) for row in rows]


def find_ids(database: Connection, ids: Sequence[str]) -> NDArray[np.int64]:
    """The row of each id [len(ids)]; RetrievalError if one is unknown."""
    query = "SELECT row FROM chunks WHERE id = ?"
    rows = [database.execute(query, (writable(name),)).fetchone() for name in ids]
    for name, row in zip(ids, rows, strict=True):
        if row is None:
            raise RetrievalError(
                f"The index holds no document with the id {name!r}; it may have been rebuilt: search again."
            )
    return np.array([row for (row,) in rows], np.int64)


def hash_chunks(chunks: Iterable[Document]) -> str:
    """BLAKE2b of ids, texts and metadata in their order, hexadecimal."""
    return _hash(_columns(chunk) for chunk in chunks)


def hash_tables(database: Connection) -> tuple[str, str]:
    """BLAKE2b of the chunks, as `hash_chunks` gives it, and of the facts."""
    chunks = _hash(database.execute("SELECT id, text, metadata FROM chunks ORDER BY row"))
    return chunks, _hash(database.execute("SELECT key, value, rows FROM facts ORDER BY key, value"))


def select_rows(database: Connection, filter: Filter) -> NDArray[np.int64]:
    """The rows that fit, ascending. FilterError for a key that no chunk has."""
    columns = [_rows_of(database, key, values_of(wanted)) for key, wanted in filter.items()]
    fits = columns[0]
    for column in columns[1:]:
        fits = np.intersect1d(fits, column, assume_unique=True)
    return fits.astype(np.int64)


def values_of(wanted: Any) -> list[Any]:
    """The values that a filter lets through for one key."""
    return list(wanted) if isinstance(wanted, (list, tuple, set, frozenset)) else [wanted]


def canonical(value: Any) -> str:
    """A value as a text that equals that of an equal value; 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return _JSON.encode(value)


def _rows_of(database: Connection, key: str, values: list[Any]) -> NDArray[np.uint32]:
    """The rows whose `key` has one of the values, ascending."""
    names = json.dumps(sorted({canonical(value) for value in values}))
    blobs = [blob for (blob,) in database.execute(_WANTED, (key, names))]
    if not blobs and not database.execute("SELECT 1 FROM facts WHERE key = ? LIMIT 1", (key,)).fetchone():
        raise FilterError(
            _unknown(key, [name for (name,) in database.execute("SELECT DISTINCT key FROM facts")])
        )
    rows: NDArray[np.uint32] = np.frombuffer(b"".join(blobs), _ROW)
    return rows if len(blobs) == 1 else np.sort(rows)


def _unknown(key: str, known: list[str]) -> str:
    hint = did_you_mean(str(key), known)
    hint = hint if "?" in hint else "use one of these."
    names = f"{', '.join(sorted(known))}; {hint}" if known else "none; leave it out."
    return f"A filter must name metadata that the documents have, but {key!r:.100} is none of {names}"


def _columns(chunk: Document) -> tuple[str, str, str]:
    """Id, text and metadata of a chunk; the same chunk always gives the same ones."""
    try:
        metadata = _JSON.encode(chunk.metadata)
        metadata.encode()
    except (TypeError, UnicodeEncodeError):
        metadata = _JSON.encode(writable(chunk.metadata))
    return chunk.id or "", writable(chunk.page_content), metadata


def _document(identity: str, text: str, metadata: str) -> Document:
    return Document(page_content=text, metadata=json.loads(metadata), id=identity)


def _check_ids(rows: Iterable[tuple[str, str, str]]) -> Iterator[tuple[str, str, str]]:
    """The rows; RetrievalError where an id is not proper or came before."""
    seen: set[str] = set()
    for columns in rows:
        name = columns[0]
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
        yield columns


def _note_facts(
    rows: Iterable[tuple[int, tuple[str, str, str]]], facts: dict[tuple[str, str], list[int]]
) -> Iterator[tuple[int, str, str, str]]:
    """The rows, whose metadata go to `facts`."""
    for row, columns in rows:
        for key, value in json.loads(columns[2]).items():
            facts.setdefault((key, canonical(value)), []).append(row)
        yield row, *columns


def _hash(rows: Iterable[tuple[Any, ...]]) -> str:
    """BLAKE2b of rows; `ascii` shows types and where columns end, in the same way in every version of Python."""
    digest = blake2b(digest_size=_HASH_BYTES)
    for row in rows:
        digest.update(ascii(row).encode())
    return digest.hexdigest()


# ---- SQLite for an index: its tables, its one writer -------------------------------------------------------


VERSION = 2
APPLICATION_ID = 0x54616E64  # "Tand"
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600

_SCHEMA = (
    "CREATE TABLE manifest (body TEXT NOT NULL)",
    *SCHEMA,
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


# ---- The manifest of an index: what must fit before it is used ---------------------------------------------


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
    roots: list[str] = field(
        default_factory=list
    )  # what it was built from (`tandem.retrieval.roots`); []: unknown


def damaged(directory: Path, what: str) -> RetrievalError:
    """The error for an index that cannot be trusted."""
    return RetrievalError(f"The index {directory} is damaged: {what}; build it again with `tandem index`.")


def parse_manifest(directory: Path, where: str, body: Any) -> Manifest:
    """A manifest from its JSON object, every field of the right type; RetrievalError otherwise."""
    kinds = {"dimension": int, "count": int, "generation": int, "files": dict, "roots": list}
    if isinstance(body, dict):
        body = {"roots": [], **body}  # earlier versions wrote none
    names = [entry.name for entry in fields(Manifest)]
    for name in names:
        if not isinstance(body, dict) or type(body.get(name)) is not kinds.get(name, str):
            raise damaged(directory, f'{where} lacks a proper "{name}"')
    try:
        files = {name: Checksum(**entry) for name, entry in body["files"].items()}
        bytes.fromhex(body["id_key"])
    except (TypeError, ValueError):
        raise damaged(directory, f'{where} lacks a proper "files" or "id_key"') from None
    if not all(isinstance(root, str) for root in body["roots"]):
        raise damaged(directory, f'{where} lacks a proper "roots"')
    return Manifest(**{**{name: body[name] for name in names}, "files": files})


def checksum(path: Path) -> Checksum:
    """Length and SHA-256 of a file, read in pieces."""
    digest = sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
        return Checksum(num_bytes=file.tell(), sha256=digest.hexdigest())


def verify_file(directory: Path, path: Path, expected: Checksum) -> None:
    """FileNotFoundError if a file of an index is missing, RetrievalError if it differs."""
    num_bytes = path.stat().st_size
    if num_bytes != expected.num_bytes:
        raise damaged(directory, f"{path.name} has {num_bytes} bytes instead of {expected.num_bytes}")
    if checksum(path) != expected:
        raise damaged(directory, f"{path.name} does not match its checksum")


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
            sums = hash_tables(self._database)
        if not is_whole or sums != (self.manifest.chunks_hash, self.manifest.facts_hash):
            raise damaged(self.directory, f"{NAME} does not match its checksum")

    def documents(self, rows: Iterable[int] | NDArray[np.int64]) -> list[Document]:
        """The chunk of each row."""
        with self._reading():
            return read_chunks(self._database, rows)

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
            return find_ids(self._database, ids)

    def select_rows(self, filter: Filter) -> NDArray[np.int64]:
        """The rows whose metadata fit, ascending. FilterError for a key that no chunk has."""
        with self._reading():
            return select_rows(self._database, filter)

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
        write_chunks(self._database, chunks)
        self._sums = hash_tables(self._database)

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
