"""One session on the model: its rows, what of them is cached, and moving both along a prefix of answer tokens.

One row per document: the document, the question, the answer so far. A row's keys and values are a function of its own
tokens alone (`batch`), so documents come from the store or are computed, tokens are fed one by one or in
blocks, alone or with other sessions, and again after a rollback, with the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

from tandem.aggregation.document_weights import log_evidence, question_likelihood
from tandem.engine.batch import MAX_TOKENS, BatchModel, IsStale, Piece, RowCache
from tandem.engine.kv import DocumentCaches, split_prompt
from tandem.engine.prompt import Prompt

# ---- What an engine is given in one pass, and what a session was opened with -------------------------------


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


# ---- Keys and values of queries that have ended ------------------------------------------------------------


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


class Session:
    """The rows of one prompt. Nothing is computed before the first pass."""

    def __init__(
        self,
        prompt: Prompt,
        caches: DocumentCaches,
        vocab_size: int,
        device: torch.device,
        *,
        num_new_tokens: int = 0,
        num_stored: int | None = None,
        turns: TurnCaches | None = None,
        num_scored: int = 0,
    ) -> None:
        """num_new_tokens: expected of the answer. num_stored: rows whose cache goes to the store if their document is
        whole, the first ones; None: all. turns: rows of earlier turns, for a prompt that continues them. num_scored:
        the last tokens of the prompt, of which `likelihoods` tells.
        """
        self._caches, self._vocab_size, self._device = caches, vocab_size, device
        self._turns = turns
        self._documents, tails = split_prompt(prompt)
        self._prompts = [[*document, *tail] for document, tail in zip(self._documents, tails, strict=True)]
        self._is_stored = choose_stored(prompt, num_stored)
        self._cache = RowCache(len(self._prompts), max(map(len, self._prompts)) + num_new_tokens)
        self._lengths: list[int] | None = (
            None  # [rows]: columns that are cached; None: documents not yet looked up
        )
        self._unsaved: set[int] = set()  # rows whose document is computed and not yet kept
        self._tokens: tuple[int, ...] = ()  # of the answer; those that are cached come first
        self._logits = torch.empty(0)  # [rows, wanted, vocab], filled by passes
        self._num_scored = num_scored
        self._next_scored = [
            len(prompt) - num_scored for prompt in self._prompts
        ]  # column that tells of the next
        self._likelihoods = [0.0] * len(self._prompts)

    @property
    def likelihoods(self) -> tuple[float, ...]:
        """Of each row: `question_likelihood` of the last `num_scored` - 1 tokens of its prompt, once computed."""
        return tuple(question_likelihood(total, self._num_scored - 1) for total in self._likelihoods)

    @property
    def cache(self) -> RowCache:
        """Keys and values; read only."""
        return self._cache

    @property
    def num_cached(self) -> int:
        """Columns of the shortest row that are cached."""
        return min(self._lengths or [0])

    @property
    def computed(self) -> Rows:
        """Tokens of each row whose keys and values are cached."""
        return tuple(tuple(self._row(row, 0, length)) for row, length in enumerate(self._lengths or ()))

    def crop(self, num_tokens: int) -> None:
        """Forget all but the first `num_tokens` of the answer."""
        if num_tokens < len(self._tokens):
            self._tokens = self._tokens[:num_tokens]
            self._shorten(0)
            self._logits = torch.empty(0)

    def want(self, tokens: Sequence[int], num_logits: int) -> None:
        """Passes now compute the logits after the prompt and `tokens`, and after `num_logits` - 1 shorter prefixes."""
        tokens = tuple(tokens)
        is_known = tokens == self._tokens and self._logits.ndim == 3 and self._logits.shape[1] == num_logits
        self.crop(common_length(self._tokens, tokens))
        self._tokens = tokens
        if not is_known:
            self._shorten(num_logits)
            self._logits = torch.empty(
                (len(self._prompts), num_logits, self._vocab_size), device=self._device
            )

    def next_pieces(self, max_tokens: int) -> Iterator[Piece]:
        """What to compute next for the wanted logits, at most so many tokens; nothing once they are there."""
        lengths = self._look_up()
        pending = [
            len(prompt) + len(self._tokens) - length
            for prompt, length in zip(self._prompts, lengths, strict=True)
        ]
        for num_pending, group in groupby(range(len(pending)), key=pending.__getitem__):
            rows = list(group)
            while rows and num_pending and max_tokens > 0:
                some, rows = rows[:max_tokens], rows[max_tokens:]
                count = min(num_pending, max_tokens // len(some))
                yield self._piece(some, count, num_pending)
                max_tokens -= count * len(some)

    def finish(self, piece: Piece, logits: torch.Tensor) -> None:
        """A pass computed `piece`. logits: [rows, num_logits of the piece, vocab of the model]."""
        assert self._lengths is not None
        wanted = self._logits.shape[1]
        for row, start, row_logits in zip(
            range(piece.first_row, piece.first_row + piece.num_rows), piece.starts, logits, strict=True
        ):
            self._lengths[row] = end = start + piece.num_new
            computed = row_logits[:, : self._vocab_size].float()
            at = wanted - (len(self._prompts[row]) + len(self._tokens) - end)  # behind the last one computed
            if piece.num_logits and at > 0:
                num_kept = min(at, piece.num_logits)
                self._logits[row, at - num_kept : at] = computed[piece.num_logits - num_kept :]
            self._score(row, end - piece.num_logits, computed)
            if row in self._unsaved and end >= len(self._documents[row]):
                self._save(row)

    @property
    def logits(self) -> torch.Tensor:
        """[rows, wanted, vocab] float32: what was wanted, once `next_pieces` has nothing left."""
        return self._logits

    def _piece(self, rows: Sequence[int], count: int, num_pending: int) -> Piece:
        assert self._lengths is not None
        starts = [self._lengths[row] for row in rows]
        tokens = [self._row(row, start, start + count) for row, start in zip(rows, starts, strict=True)]
        left = num_pending - count
        wanted = max(self._logits.shape[1], 0 if self._tokens else self._num_scored)
        num_logits = min(count, max(0, wanted - left))
        return Piece(self._cache, rows[0], starts, tokens, num_logits)

    def _row(self, row: int, start: int, end: int) -> list[int]:
        """Tokens of a row from column `start` on."""
        prompt = self._prompts[row]
        answer = self._tokens[max(0, start - len(prompt)) : max(0, end - len(prompt))]
        return [*prompt[start:end], *answer]

    def _score(self, row: int, first: int, logits: torch.Tensor) -> None:
        """Add what columns from `first` on tell of the prompt's next tokens. logits: [columns, vocab]."""
        prompt, start = self._prompts[row], self._next_scored[row]
        stop = min(len(prompt) - 1, first + len(logits))
        if not self._num_scored or not first <= start < stop:
            return
        following = torch.tensor(prompt[start + 1 : stop + 1], device=logits.device)
        # Normalised row by row, so that the bits are the same however columns are grouped.
        probabilities = torch.softmax(logits[start - first : stop - first], dim=-1)
        for value in log_evidence(probabilities.gather(1, following[:, None])[:, 0].tolist()):
            self._likelihoods[row] += value
        self._next_scored[row] = stop

    def _shorten(self, num_logits: int) -> None:
        """Keep what the present tokens need, without the columns whose logits are wanted."""
        if self._lengths is not None:
            ends = (len(prompt) + len(self._tokens) - num_logits for prompt in self._prompts)
            self._lengths = [min(length, end) for length, end in zip(self._lengths, ends, strict=True)]

    def _look_up(self) -> list[int]:
        if self._lengths is None:
            self._lengths = [self._load(row, tokens) for row, tokens in enumerate(self._documents)]
            self._shorten(max(self._logits.shape[1], 0 if self._tokens else self._num_scored))
        return self._lengths

    def _load(self, row: int, tokens: tuple[int, ...]) -> int:
        """Columns of a row that an earlier turn or the store knew. tokens: of its document."""
        kept = None if self._turns is None else self._turns.find(self._prompts[row], len(tokens))
        if kept is not None:
            self._cache.copy(row, kept.cache, kept.row, kept.num_tokens)
            self._caches.num_hits += bool(tokens)
            return kept.num_tokens
        if not tokens:
            return 0
        cache = self._caches.find(tokens)
        if cache is None:
            self._unsaved.add(row)
            return 0
        self._cache.load(row, cache, self._device)
        return len(tokens)

    def _save(self, row: int) -> None:
        self._unsaved.remove(row)
        tokens = self._documents[row]
        self._caches.keep(tokens, lambda: self._cache.save(row, len(tokens)), is_stored=self._is_stored[row])


def choose_stored(prompt: Prompt, num_stored: int | None) -> list[bool]:
    """Of each row, whether its document's cache goes to the store: of the first `num_stored` those that are whole."""
    whole = [document not in prompt.truncated for document in prompt.documents] or [True]
    return [is_whole and (num_stored is None or row < num_stored) for row, is_whole in enumerate(whole)]


def compute(model: BatchModel, sessions: Sequence[Session], is_stale: IsStale | None = None) -> None:
    """Compute the wanted logits of all sessions, in passes that they share; Preempted if is_stale() turns True."""
    while pieces := list(_next_pieces(sessions)):
        computed = model([piece for _, piece in pieces], is_stale)
        for (session, piece), logits in zip(pieces, computed, strict=True):
            session.finish(piece, logits)


def compute_row(model: BatchModel, tokens: Sequence[int]) -> RowCache:
    """The cache of one row."""
    cache = RowCache(1, len(tokens))
    for start in range(0, len(tokens), MAX_TOKENS):
        model([Piece(cache, 0, [start], [tokens[start : start + MAX_TOKENS]], 0)])
    return cache


def _next_pieces(sessions: Sequence[Session]) -> Iterator[tuple[Session, Piece]]:
    left = MAX_TOKENS
    for session in sessions:
        for piece in session.next_pieces(left):
            yield session, piece
            left -= piece.num_tokens
