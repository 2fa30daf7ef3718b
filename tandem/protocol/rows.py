"""The rows of one party: how its retrieved documents stand before its model."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.messages import RetrieveResult

JOINT = "\n\n"
"""Between the documents of one row."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a party's model."""

    text: str  # empty: without document
    ids: tuple[str, ...]  # of the documents in it
    score: float  # how well they fit the question

    @property
    def is_stored(self) -> bool:
        """Whether its cache is worth storing: others hardly ever come again, or take no time."""
        return len(self.ids) == 1


def arrange_rows(retrieved: RetrieveResult, layout: str) -> tuple[Row, ...]:
    """The rows of what was retrieved, those that are stored first; none without documents.

    layout: "rows" (each document its own), "joined" (one of all), "both" (these and one without any).

    A row of several documents has them best first, for what does not fit is cut off at its end, and the score of the
    best; the row without any has that of the worst.
    """
    documents = zip(retrieved.texts, retrieved.ids, retrieved.scores, strict=True)
    rows = tuple(Row(text, (name,), score) for text, name, score in documents)
    if layout == "rows" or not rows:
        return rows
    ranked = sorted(rows, key=lambda row: -row.score)
    joined = rows[0]
    if len(rows) > 1:
        joined = Row(JOINT.join(row.text for row in ranked), retrieved.ids, ranked[0].score)
    if layout == "joined":
        return (joined,)
    bare = Row("", (), ranked[-1].score)
    return (*rows, bare) if len(rows) == 1 else (*rows, joined, bare)
