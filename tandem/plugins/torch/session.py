"""The fallback of models and devices that fail `find_fault`: a growing cache, one token of one session per pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from tandem.engine.kv import DocumentCaches, TurnCaches, common_length
from tandem.engine.port import IsStale, Row
from tandem.engine.session import QuestionScores
from tandem.plugins.torch.batch import DocumentCache, PreemptibleModel, probabilities


class GrowingSession:
    """The rows of one prompt. Nothing is computed before `logits_after`.

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
        self._model = model
        self._vocab_size = vocab_size
        self._caches = caches
        self._rows = rows
        self._width = max(len(row.document) for row in rows)  # columns of the documents part
        self.scores = QuestionScores([row.tokens for row in rows], num_scored, probabilities)
        self._ready: list[DocumentCache | None] = []  # of the first rows until all are there; None: no tokens
        self._cache = DynamicCache()
        self.num_cached = 0  # columns that every layer holds between two calls
        self._fed: list[int] = []  # the tokens after the query that these columns hold
        self._prompt_logits: torch.Tensor | None = None  # [rows, vocab]
        self._last_logits: torch.Tensor | None = None  # those after `_fed`, if known

    @property
    def layers(self) -> list[Any]:
        """The cache's layers, each with `keys` and `values` of [rows, heads, columns, size]; read only."""
        return list(self._cache.layers)

    def last_logits(self, tokens: Sequence[int], num_logits: int, is_stale: IsStale | None) -> torch.Tensor:
        """Logits [rows, num_logits, vocab] float32 after `tokens` and the prefixes before; may be Preempted."""
        ends = range(len(tokens) + 1 - num_logits, len(tokens) + 1)
        return torch.stack([self.logits_after(tokens[:end], is_stale) for end in ends], dim=1)

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

    def end(self, _turns: TurnCaches) -> None:
        """Nothing is kept for later turns."""

    def _prefill(self, is_stale: IsStale | None) -> torch.Tensor:
        """Compute the prompt in two parts: the documents, each a function of itself alone, then the query."""
        num_scored = self.scores.num_scored
        if self._prompt_logits is None:
            if self.num_cached < self._width:
                self._prefill_documents(is_stale)
            logits = self._forward([list(row.rest) for row in self._rows], is_stale, max(1, num_scored))
            self._prompt_logits = logits[:, -1]
            for number, row in enumerate(self._rows):
                self.scores.add(number, len(row.tokens) - num_scored, logits[number])
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
        self.num_cached -= len(self._fed) - num_tokens
        del self._fed[num_tokens:]
        self._last_logits = None
        self._crop()

    def _forward(self, rows: list[list[int]], is_stale: IsStale | None, num_logits: int = 1) -> torch.Tensor:
        """Logits [rows, num_logits, vocab] float32 after the last tokens of each row."""
        start, end = self.num_cached, self.num_cached + len(rows[0])
        device = self._model.device
        pads = [self._width - len(row.document) for row in self._rows]
        columns = torch.arange(end, device=device)
        places = columns[None, :] - torch.tensor(pads, device=device)[:, None]  # [rows, end]
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
