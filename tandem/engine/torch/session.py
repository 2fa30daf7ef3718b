"""One session on the model: its rows, what of them is cached, and moving both along a prefix of answer tokens.

One row per document: the document, the question, the answer so far. A row's keys and values are a function of its own
tokens alone (`batch`), so documents come from the store or are computed, tokens are fed one by one or in
blocks, alone or with other sessions, and again after a rollback, with the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from tandem.aggregation.document_weights import log_evidence, question_likelihood
from tandem.engine.kv import DocumentCaches, Rows, TurnCaches, common_length
from tandem.engine.port import IsStale, Row
from tandem.engine.torch.batch import MAX_TOKENS, BatchModel, Piece, PreemptibleModel, RowCache
from tandem.engine.torch.kv import DocumentCache


class QuestionScores:
    """The likelihood of the last tokens of each prompt, added up as passes reach them."""

    def __init__(self, prompts: Sequence[Sequence[int]], num_scored: int) -> None:
        """prompts: [rows] of tokens. num_scored: of each the last ones, of which the first is given."""
        self.num_scored = num_scored
        self._prompts = prompts
        self._next = [len(prompt) - num_scored for prompt in prompts]  # column that tells of the next
        self._totals = [0.0] * len(prompts)

    @property
    def likelihoods(self) -> tuple[float, ...]:
        """The `question_likelihood` of each row, once computed."""
        return tuple(question_likelihood(total, self.num_scored - 1) for total in self._totals)

    def add(self, row: int, first: int, logits: torch.Tensor) -> None:
        """Add what columns from `first` on tell of the prompt's next tokens. logits: [columns, vocab]."""
        prompt, start = self._prompts[row], self._next[row]
        stop = min(len(prompt) - 1, first + len(logits))
        if not self.num_scored or not first <= start < stop:
            return
        following = torch.tensor(prompt[start + 1 : stop + 1], device=logits.device)
        # Normalised row by row, so that the bits are the same however columns are grouped.
        probabilities = torch.softmax(logits[start - first : stop - first], dim=-1)
        for value in log_evidence(probabilities.gather(1, following[:, None])[:, 0].tolist()):
            self._totals[row] += value
        self._next[row] = stop


class Session:
    """The rows of one prompt. Nothing is computed before the first pass."""

    def __init__(
        self,
        rows: Sequence[Row],
        caches: DocumentCaches,
        vocab_size: int,
        device: torch.device,
        *,
        num_new_tokens: int = 0,
        turns: TurnCaches | None = None,
        num_scored: int = 0,
    ) -> None:
        """num_new_tokens: expected of the answer. turns: rows of earlier turns, for a prompt that continues them.
        num_scored: the last tokens of the prompt, of which `likelihoods` tells.
        """
        self._caches, self._vocab_size, self._device = caches, vocab_size, device
        self._turns = turns
        self._rows = rows
        self._prompts = [list(row.tokens) for row in rows]
        self._cache = RowCache(len(self._prompts), max(map(len, self._prompts)) + num_new_tokens)
        self._lengths: list[int] | None = (
            None  # [rows]: columns that are cached; None: documents not yet looked up
        )
        self._unsaved: set[int] = set()  # rows whose document is computed and not yet kept
        self._tokens: tuple[int, ...] = ()  # of the answer; those that are cached come first
        self._logits = torch.empty(0)  # [rows, wanted, vocab], filled by passes
        self._scores = QuestionScores(self._prompts, num_scored)

    @property
    def likelihoods(self) -> tuple[float, ...]:
        """The `question_likelihood` of each row, from the last `num_scored` - 1 tokens of its prompt, once computed."""
        return self._scores.likelihoods

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
        return tuple(tuple(self._tokens_of(row, 0, length)) for row, length in enumerate(self._lengths or ()))

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
        """The pieces to compute next for the wanted logits, at most so many tokens; none once they are there."""
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
            self._scores.add(row, end - piece.num_logits, computed)
            if row in self._unsaved and end >= len(self._rows[row].document):
                self._save(row)

    @property
    def logits(self) -> torch.Tensor:
        """[rows, wanted, vocab] float32: what was wanted, once `next_pieces` has nothing left."""
        return self._logits

    def _piece(self, rows: Sequence[int], count: int, num_pending: int) -> Piece:
        assert self._lengths is not None
        starts = [self._lengths[row] for row in rows]
        tokens = [self._tokens_of(row, start, start + count) for row, start in zip(rows, starts, strict=True)]
        left = num_pending - count
        num_logits = min(count, max(0, self._num_wanted - left))
        return Piece(self._cache, rows[0], starts, tokens, num_logits)

    @property
    def _num_wanted(self) -> int:
        """The last columns whose logits are of use."""
        return max(self._logits.shape[1], 0 if self._tokens else self._scores.num_scored)

    def _tokens_of(self, row: int, start: int, end: int) -> list[int]:
        """Tokens of a row from column `start` on."""
        prompt = self._prompts[row]
        answer = self._tokens[max(0, start - len(prompt)) : max(0, end - len(prompt))]
        return [*prompt[start:end], *answer]

    def _shorten(self, num_logits: int) -> None:
        """Keep what the present tokens need, without the columns whose logits are wanted."""
        if self._lengths is not None:
            ends = (len(prompt) + len(self._tokens) - num_logits for prompt in self._prompts)
            self._lengths = [min(length, end) for length, end in zip(self._lengths, ends, strict=True)]

    def _look_up(self) -> list[int]:
        if self._lengths is None:
            self._lengths = [self._load(number, row.document) for number, row in enumerate(self._rows)]
            self._shorten(self._num_wanted)
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
        tokens, is_stored = self._rows[row].document, self._rows[row].is_stored
        self._caches.keep(tokens, lambda: self._cache.save(row, len(tokens)), is_stored=is_stored)


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


# ---- The fallback: a growing cache, one token of one session per pass ----------------------------------------


class GrowingSession:
    """The rows of one prompt, for models and devices that fail `find_fault`. Nothing is computed before `logits_after`.

    One batch row per document, padded on the left so that all rows end together; the positions of each row start at 0
    at its first real token.

    Bit for bit: documents are computed one by one (`kv`), so that the result does not show which of them were stored.
    After the query, tokens are fed one at a time in one batch shape. A row's keys and values are then a function of the
    tokens before them alone, so what is decoded again after a rollback, or after a forward pass that was abandoned
    between two layers, equals what was never interrupted. A block of tokens in one pass does not.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        model: PreemptibleModel,
        caches: DocumentCaches,
        vocab_size: int,
        *,
        num_scored: int = 0,
    ) -> None:
        """num_scored: as of `Session`."""
        self._model = model
        self._vocab_size = vocab_size
        self._caches = caches
        self._rows = rows
        self._scores = QuestionScores([row.tokens for row in rows], num_scored)
        self._ready: list[DocumentCache | None] = []  # of the first rows until all are there; None: no tokens
        self._cache = DynamicCache()
        self.num_cached = 0  # columns that every layer holds between two calls
        self._fed: list[int] = []  # the tokens after the query that these columns hold
        self._prompt_logits: torch.Tensor | None = None  # [rows, vocab]
        self._last_logits: torch.Tensor | None = None  # those after `_fed`, if known

    @property
    def likelihoods(self) -> tuple[float, ...]:
        """As of `Session`."""
        return self._scores.likelihoods

    @property
    def _width(self) -> int:
        """Columns of the documents part."""
        return max(len(row.document) for row in self._rows)

    @property
    def layers(self) -> list[Any]:
        """The cache's layers, each with `keys` and `values` of [rows, heads, columns, size]; read only."""
        return list(self._cache.layers)

    def logits_after(self, tokens: Sequence[int], is_stale: IsStale | None) -> torch.Tensor:
        """Logits [rows, vocab] float32 after the query and `tokens`; Preempted if is_stale() turns True."""
        prompt_logits = self._prefill(is_stale)
        if not tokens:
            return prompt_logits
        shared = common_length(self._fed, tokens)
        if shared < len(self._fed) or self._last_logits is None:
            # The logits of an inner position are not kept: its token is fed once more, with the same result.
            self._rollback(min(shared, len(tokens) - 1))
        for token in tokens[len(self._fed) :]:
            self._feed(token, is_stale)
        assert self._last_logits is not None  # the last pass fed tokens[-1]
        return self._last_logits

    def crop(self, num_tokens: int) -> None:
        """Forget all but the first `num_tokens` of the answer."""
        if num_tokens < len(self._fed):
            self._rollback(num_tokens)

    def _prefill(self, is_stale: IsStale | None) -> torch.Tensor:
        """The cache of the prompt in two parts: the documents (a function of each alone), then the query."""
        num_scored = self._scores.num_scored
        if self._prompt_logits is None:
            if self.num_cached < self._width:
                self._prefill_documents(is_stale)
            logits = self._forward([list(row.rest) for row in self._rows], is_stale, max(1, num_scored))
            self._prompt_logits = logits[:, -1]
            for number, row in enumerate(self._rows):
                self._scores.add(number, len(row.tokens) - num_scored, logits[number])
        return self._prompt_logits

    def _prefill_documents(self, is_stale: IsStale | None) -> None:
        """Whole documents that a preempted call computed are kept for the next."""
        for row in self._rows[len(self._ready) :]:
            self._ready.append(self._get(row, is_stale) if row.document else None)
        self._cache = stack_rows(self._ready, self._width, self._model.device)
        self.num_cached = self._width
        self._ready = []

    def _get(self, row: Row, is_stale: IsStale | None) -> DocumentCache:
        cache = self._caches.find(row.document)
        if cache is None:
            cache = computed = compute_document(self._model, row.document, is_stale)
            self._caches.keep(row.document, lambda: computed, is_stored=row.is_stored)
        return cache

    def _feed(self, token: int, is_stale: IsStale | None) -> None:
        self._last_logits = self._forward([[token]] * len(self._rows), is_stale)[:, -1]
        self._fed.append(token)

    def _rollback(self, num_tokens: int) -> None:
        """Forget all but the first `num_tokens` fed."""
        self.num_cached -= len(self._fed) - num_tokens
        del self._fed[num_tokens:]
        self._last_logits = None
        self._crop()

    def _forward(self, rows: list[list[int]], is_stale: IsStale | None, num_logits: int = 1) -> torch.Tensor:
        """Logits [rows, num_logits, vocab] float32 after the last tokens of each row."""
        start, end = self.num_cached, self.num_cached + len(rows[0])
        device = self._model.device
        pads = [self._width - len(row.document) for row in self._rows]
        places = (
            torch.arange(end, device=device)[None, :] - torch.tensor(pads, device=device)[:, None]
        )  # [rows, end]
        mask, positions = (places >= 0).long(), places[:, start:].clamp(min=0)
        ids = torch.tensor(rows, device=device)
        try:
            logits = self._model(ids, mask, positions, self._cache, is_stale, num_logits)
        except BaseException:  # Preempted, or an interruption: some layers hold more than others
            self._crop()
            raise
        self.num_cached = end
        return logits[:, :, : self._vocab_size].float()

    def _crop(self) -> None:
        """Cut every layer to `num_cached` columns; `crop` takes minus the number of columns to remove."""
        layers: list[Any] = self._cache.layers
        for layer in layers:
            excess = layer.get_seq_length() - self.num_cached
            if excess > 0:
                layer.crop(-excess)


def stack_rows(rows: Sequence[DocumentCache | None], num_columns: int, device: torch.device) -> DynamicCache:
    """One batch of documents, each padded on its left with zeros to `num_columns`, as a model's cache on `device`.

    None is a row without any token; at least one row has some. Without the model's configuration every layer keeps all
    positions, sliding windows become masks, and any position can be rolled back.
    """
    batch = DynamicCache()
    num_layers = max(len(row.keys) for row in rows if row is not None)
    for index in range(num_layers):
        layer = DynamicLayer()
        keys = pad_left([row.keys[index] if row else None for row in rows], num_columns, device)
        values = pad_left([row.values[index] if row else None for row in rows], num_columns, device)
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values  # update() would copy them once more
        batch.layers.append(layer)
    return batch


def pad_left(rows: Sequence[torch.Tensor | None], num_columns: int, device: torch.device) -> torch.Tensor:
    """[rows] of [heads, tokens, size] -> [rows, heads, columns, size], zeros on the left.

    Zeros, because a masked column weighs 0, and 0 times uninitialised memory may be NaN.
    """
    filled = [(row, tensor) for row, tensor in enumerate(rows) if tensor is not None]
    heads, _, size = filled[0][1].shape
    batch = torch.zeros((len(rows), heads, num_columns, size), dtype=filled[0][1].dtype, device=device)
    for row, tensor in filled:
        batch[row, :, num_columns - tensor.shape[1] :] = tensor
    return batch


def compute_document(
    model: PreemptibleModel, tokens: Sequence[int], is_stale: IsStale | None
) -> DocumentCache:
    """One forward pass over one document, its cache moved to the CPU."""
    cache = DynamicCache()
    ids = torch.tensor([list(tokens)], device=model.device)  # [1, tokens]
    positions = torch.arange(len(tokens), device=model.device)[None]
    model(ids, torch.ones_like(ids), positions, cache, is_stale)
    layers: list[Any] = cache.layers
    return DocumentCache(
        keys=tuple(_take_row(layer.keys) for layer in layers),
        values=tuple(_take_row(layer.values) for layer in layers),
    )


def _take_row(batch: torch.Tensor | None) -> torch.Tensor:
    """[1, heads, tokens, size] -> [heads, tokens, size], contiguous on the CPU."""
    assert batch is not None  # the pass filled every layer
    return batch[0].cpu().contiguous()
