"""What an engine is given in one pass, and what a session was opened with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpenResult:
    """What a session was opened with."""

    num_rows: int  # at least 1: without documents there is one bare row
    num_prompt_tokens: tuple[int, ...]  # [rows]
    documents: tuple[int, ...]  # [rows]: index of each row's document; empty for a bare row
    truncated: tuple[int, ...]  # indices of documents whose end was cut off to fit the context
    dropped: tuple[int, ...]  # indices of documents that found no room and have no row

    @property
    def notes(self) -> list[str]:
        """Sentences for the user about documents of which not everything is read."""
        what = (
            (self.truncated, "documents were cut at their end to fit the model's context."),
            (self.dropped, "documents were left out: they do not fit the model's context."),
        )
        return [f"{len(which)} {happened}" for which, happened in what if which]


@dataclass(frozen=True, slots=True)
class Feed:
    """One session's part of a pass."""

    session: str
    tokens: Sequence[int]  # the whole answer so far; what of it was computed before is not computed again
    num_logits: int = 1
    """How many are wanted: after all tokens, and after so many shorter prefixes that there are this many."""


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many leading tokens two sequences share."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((position for position, (a, b) in pairs if a != b), min(len(first), len(second)))
