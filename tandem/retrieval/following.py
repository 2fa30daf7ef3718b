"""A retriever's index, opened again when it changed on disk, with what earlier queries found in the one before.

A query is cheap to serve: SQLite counts what other connections committed, and the file's inode says whether it was
replaced. If so, the manifest is read, and the index opened again if it is another one. Whoever holds the old index goes
on with it; it is freed when the last one is done.
"""

from __future__ import annotations

import logging
import sqlite3
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from tandem.errors import RetrievalError
from tandem.retrieval.database import connect
from tandem.retrieval.index import Index, read_manifest
from tandem.retrieval.store import NAME

MAX_REMEMBERED = 4096
"""Documents that stay known after their index was replaced, at most: the found ones of hundreds of queries."""

_TIMEOUT_S = 1.0

_log = logging.getLogger("tandem")

State = tuple[int, int]
"""Number of the connection, and of what SQLite counted since it was opened."""


class Watch:
    """Says cheaply whether a database may have been written or replaced. Safe for several threads.

    The time and size of the files would not do: a commit writes its log first and shows itself later.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = self._number = 0
        self._database: sqlite3.Connection | None = None
        self._lock = Lock()
        self.close = weakref.finalize(self, lambda: None)

    def state(self) -> State:
        """Differs from the last one if something was committed, or if the file is another one."""
        with self._lock:
            try:
                self._connect()
                assert self._database is not None
                return self._number, self._database.execute("PRAGMA data_version").fetchone()[0]
            except (OSError, sqlite3.Error):
                return self._number, -1

    def _connect(self) -> None:
        """Opens the file that is there now, unless it is open. An open file's inode is not used again."""
        inode = self._path.stat().st_ino
        if inode == self._inode and self._database is not None:
            return
        self.close()
        self._number += 1
        self._database = database = connect(self._path, _TIMEOUT_S)
        self.close = weakref.finalize(self, database.close)
        self._inode = inode


class FollowedIndex:
    """An index and what became of it on disk. Safe for several threads."""

    def __init__(self, index: Index, embedder_fingerprint: str, num_threads: int = 1) -> None:
        """index: as it was opened. num_threads: for searches in those that are opened later."""
        self.current = index
        self._fingerprint = embedder_fingerprint
        self._num_threads = num_threads
        self._watch = Watch(index.directory / NAME)
        self._state: State | None = None  # of the database when it was last looked at
        self._found: OrderedDict[str, None] = OrderedDict()  # ids, the most recent one last
        self._kept: dict[
            str, tuple[str, NDArray[np.float32]]
        ] = {}  # text and vector of what an earlier one held
        self._refreshing, self._noting = Lock(), Lock()

    def refresh(self) -> Index:
        """The index that is on disk now. What was open before is kept, with a warning, if that cannot be opened."""
        state = self._watch.state()
        if state != self._state and self._refreshing.acquire(blocking=False):
            try:
                self._state = state
                self._reopen()
            except (RetrievalError, OSError) as error:
                _log.warning(
                    "The index %s changed and cannot be opened again, so searches use it as it was: %s",
                    self.current.directory,
                    error,
                )
            finally:
                self._refreshing.release()
        return self.current

    def close(self) -> None:
        """Frees the files."""
        self._watch.close()
        self.current.close()

    def note(self, ids: Sequence[str]) -> None:
        """These documents were found: their scores will be asked for, whatever becomes of the index."""
        with self._noting:
            for name in ids:
                self._found[name] = None
                self._found.move_to_end(name)
            while len(self._found) > MAX_REMEMBERED:
                self._found.popitem(last=False)

    def texts(self, ids: Sequence[str]) -> list[str]:
        """The text of each document. RetrievalError if an id is of no index that was open here."""
        index, kept = self.current, self._kept
        fresh = index.documents(index.rows([name for name in ids if name not in kept]))
        texts = iter([document.page_content for document in fresh])
        return [kept[name][0] if name in kept else next(texts) for name in ids]

    def vectors(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """The vectors [len(ids), d], as they were when the documents were found. Errors: as `texts`."""
        index, kept = self.current, self._kept
        fresh = index.vectors(index.rows([name for name in ids if name not in kept]))
        if len(fresh) == len(ids):
            return fresh
        vectors = iter(fresh)
        return np.stack([kept[name][1] if name in kept else next(vectors) for name in ids])

    def _reopen(self) -> None:
        """Opens the index again if it is another one now. Raises RetrievalError or OSError."""
        previous = self.current
        if read_manifest(previous.directory) == previous.manifest:
            return
        index = Index.open(previous.directory, self._fingerprint, num_threads=self._num_threads)
        if index.dimension != previous.dimension:
            raise RetrievalError(
                f"its vectors have the length {index.dimension} instead of {previous.dimension}."
            )
        self._kept = self._remembered(previous)  # before anybody sees the new one
        self.current = index
        _log.info("The index %s changed and was opened again: %d chunks.", index.directory, len(index))

    def _remembered(self, previous: Index) -> dict[str, tuple[str, NDArray[np.float32]]]:
        """What was found lately, in the index that is left or in one before it."""
        with self._noting:
            ids = list(self._found)
        return (
            dict(zip(ids, zip(self.texts(ids), self.vectors(ids), strict=True), strict=True)) if ids else {}
        )
