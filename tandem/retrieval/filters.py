"""Which chunks have the metadata that a search asks for.

The first search that names a key reads the metadata of every chunk once and keeps a number for each; later ones
compare numbers. Knows nothing of vectors or queries.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tandem.errors import FilterError

Filter = Mapping[str, Any]
"""{key: value or list of values}: a chunk fits if for every key its value is one of those."""

_ABSENT = -1
_AT_ONCE = 1024


class Chunks(Protocol):
    """What is asked of the chunk store."""

    def __len__(self) -> int:
        """Number of chunks."""

    def metadata(self, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
        """The metadata of the chunk of each row."""


class Metadata:
    """The metadata of all chunks, by key. Safe for several threads: at worst a key is read twice."""

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks
        self._columns: dict[str, tuple[dict[str, int], NDArray[np.int32]]] = {}
        self._known: set[str] = set()

    def rows(self, filter: Filter) -> NDArray[np.int64]:
        """The rows that fit, ascending. FilterError for a key that no chunk has."""
        self._read([key for key in filter if key not in self._columns])
        fits = np.ones(len(self._chunks), bool)
        for key, wanted in filter.items():
            numbers, column = self._columns[key]
            names = [_name(value) for value in values_of(wanted)]
            fits &= np.isin(column, [numbers[name] for name in names if name in numbers])
        return np.flatnonzero(fits).astype(np.int64)

    def _read(self, keys: list[str]) -> None:
        """Reads the columns of new keys, in one pass."""
        if not keys:
            return
        numbers: dict[str, dict[str, int]] = {key: {} for key in keys}
        columns = {key: np.full(len(self._chunks), _ABSENT, np.int32) for key in keys}
        for row, metadata in enumerate(self._all()):
            self._known.update(metadata)
            for key in keys:
                if key in metadata:
                    columns[key][row] = numbers[key].setdefault(_name(metadata[key]), len(numbers[key]))
        for key in keys:
            if key not in self._known:
                known = (
                    f"{', '.join(sorted(self._known))}; use one of these"
                    if self._known
                    else "none; leave it out"
                )
                raise FilterError(
                    f"A filter must name metadata that the documents have, but {key!r:.100} is none of {known}."
                )
            self._columns[key] = (numbers[key], columns[key])

    def _all(self) -> Iterator[dict[str, Any]]:
        for start in range(0, len(self._chunks), _AT_ONCE):
            yield from self._chunks.metadata(np.arange(start, min(start + _AT_ONCE, len(self._chunks))))


def values_of(wanted: Any) -> list[Any]:
    """The values that a filter lets through for one key."""
    return list(wanted) if isinstance(wanted, (list, tuple, set, frozenset)) else [wanted]


def _name(value: Any) -> str:
    """A value as a text that equals that of an equal value; 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
