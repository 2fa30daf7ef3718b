"""The tables of an index's database: chunks, and which rows have which metadata.

chunks   row (as in FAISS), id, text, metadata as a JSON object
facts    metadata key, value, and the rows that have it as one blob of little-endian uint32
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from sqlite3 import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.errors import FilterError, RetrievalError, did_you_mean
from tandem.retrieval.documents import ID_BYTES, Document, writable

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
