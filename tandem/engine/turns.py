"""Keys and values of queries that have ended, kept for the next turn of their conversation.

A row is a document, the turns so far, the question and its answer. The next turn's row with the same document begins
with the same tokens, and a row's keys and values are a function of its own tokens alone (`batch`): those that both
share are copied instead of computed, with the same bits. With another document in front, or none, nothing is shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.engine.feed import common_length
from tandem.engine.row_cache import RowCache

Rows = tuple[tuple[int, ...], ...]
"""The tokens of each row."""


@dataclass(frozen=True, slots=True)
class KeptPrefix:
    """The beginning of a kept row."""

    cache: RowCache
    row: int
    num_tokens: int


class TurnCaches:
    """The rows of ended queries, in memory; those that were used least recently are evicted first.

    Invariants: they take at most `max_bytes`, and none is there whose rows all begin rows of a later one.
    """

    def __init__(self) -> None:
        self.max_bytes = 0  # to be set; 0 keeps nothing
        self.num_bytes = 0
        self.num_reused = 0  # tokens behind the documents, of all rows, that were not computed again
        self._kept: dict[Rows, RowCache] = {}  # least recently used first

    def keep(self, rows: Rows, cache: RowCache) -> None:
        """A query has ended. cache: its rows, of which these tokens are computed; it is not changed afterwards."""
        if cache.num_bytes > self.max_bytes:
            return
        for other in [other for other in self._kept if _is_continued(other, rows)]:
            self._drop(other)
        self._kept[rows] = cache
        self.num_bytes += cache.num_bytes
        while self.num_bytes > self.max_bytes:
            self._drop(next(iter(self._kept)))

    def find(self, tokens: Sequence[int], num_document: int) -> KeptPrefix | None:
        """The longest beginning of these tokens that a kept row has; None if it has not their document.

        num_document: tokens of the document, with which they begin; it may be 0.
        """
        tokens, least = tuple(tokens), num_document
        best: tuple[Rows, KeptPrefix] | None = None
        for rows, cache in self._kept.items():
            for number, row in enumerate(rows):
                if row[:least] == tokens[:least] and (length := common_length(row, tokens)) >= max(1, least):
                    best = rows, KeptPrefix(cache, number, length)
                    least = length + 1
        if best is None:
            return None
        rows, prefix = best
        self._kept[rows] = self._kept.pop(rows)  # now the last to be evicted
        self.num_reused += prefix.num_tokens - num_document
        return prefix

    def statistics(self) -> dict[str, float]:
        """Tokens behind the documents that were not computed again, counted in each row, and the bytes held."""
        return {"turn_tokens": self.num_reused, "turn_bytes": self.num_bytes}

    def _drop(self, rows: Rows) -> None:
        self.num_bytes -= self._kept.pop(rows).num_bytes


def _is_continued(rows: Rows, later: Rows) -> bool:
    return all(any(longer[: len(row)] == row for longer in later) for row in rows)
