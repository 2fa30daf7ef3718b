"""Does this model, on this machine, give a row the same bits in any batch? Tried when a model is loaded.

A few random rows are computed in one pass, then again in other groupings, alone and with others, token by token and in
blocks. All logits must agree to the bit, and be those of an ordinary pass of the model to a tolerance.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from random import Random

import torch
from transformers import DynamicCache

from tandem.engine.batch import MAX_TOKENS, BatchModel, Piece, Unsupported
from tandem.engine.row_cache import RowCache

NUM_ROWS, LENGTH = 4, 24
MIN_TOKENS = (4, 16)
"""Sizes of the smallest pass that are tried."""
TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.2}
"""Largest difference from an ordinary pass, in standard deviations of its logits."""


def find_fault(batch: BatchModel, model: torch.nn.Module, vocab_size: int, context_length: int | None) -> str | None:
    """Why the model cannot be computed in batches here; None if it can. Sets the size of the smallest pass."""
    if "logits_to_keep" not in inspect.signature(model.forward).parameters:
        return "it does not say which logits it computes"
    draw = Random(1)
    length = min(LENGTH, context_length or LENGTH)
    rows = [[draw.randrange(vocab_size) for _ in range(length)] for _ in range(NUM_ROWS)]
    try:
        expected = _Rows(batch, rows).compute([(range(NUM_ROWS), length)])
        if (fault := _compare_with_plain(batch, model, rows[0], expected[0])) is not None:
            return fault
        for min_tokens in MIN_TOKENS:
            batch.min_tokens = min_tokens
            if _agree(batch, rows, expected, draw):
                return None
    except Unsupported as error:
        return str(error)
    except Exception as error:  # anything may come out of a model that was never run this way
        return f"it failed ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"
    return "the last bits of a row depend on what else is in the batch"


class _Rows:
    """Rows of random tokens, fed in pieces; all logits are kept."""

    def __init__(self, batch: BatchModel, rows: Sequence[Sequence[int]]) -> None:
        self._batch, self._rows = batch, rows
        self.cache = RowCache(len(rows), 1)
        self.lengths = [0] * len(rows)

    def piece(self, rows: range, count: int) -> Piece:
        """The next `count` tokens of neighbouring rows."""
        starts = [self.lengths[row] for row in rows]
        tokens = [self._rows[row][start : start + count] for row, start in zip(rows, starts, strict=True)]
        for row in rows:
            self.lengths[row] += count
        return Piece(self.cache, rows[0], starts, tokens, count)

    def compute(self, plan: Sequence[tuple[range, int]], company: Sequence[Piece] = ()) -> list[torch.Tensor]:
        """[length, vocab] of every row: one pass per step of the plan, each with `company` in front."""
        logits: list[list[torch.Tensor]] = [[] for _ in self._rows]
        for rows, count in plan:
            piece = self.piece(rows, count)
            result = self._batch([*company, piece])[-1]
            for row, row_logits in zip(rows, result, strict=True):
                logits[row].append(row_logits)
        return [torch.cat(parts) if parts else torch.empty(0) for parts in logits]


def _agree(batch: BatchModel, rows: list[list[int]], expected: list[torch.Tensor], draw: Random) -> bool:
    """Whether a few groupings of the same tokens give the expected bits."""
    length = len(rows[0])
    last, everyone = range(NUM_ROWS - 1, NUM_ROWS), range(NUM_ROWS)
    half = length // 2
    plans = [
        [(last, half), *[(last, 1)] * 3, (last, 2), (last, length - half - 5)],
        [(everyone, 1), (everyone, 2), (everyone, half), (everyone, length - half - 3)],
    ]
    for number, plan in enumerate(plans):
        company = [_junk(batch, draw, len(rows), length)] if number else []
        computed = _Rows(batch, rows).compute(plan, company)
        if not torch.equal(computed[-1], expected[-1]):
            return False
    full = MAX_TOKENS - (length // 4) * len(rows)
    junk = _junk(batch, draw, 1, full)
    computed = _Rows(batch, rows).compute([(everyone, length // 4)] * (length // (length // 4)), [junk])
    return torch.equal(computed[0], expected[0][: len(computed[0])])


def _junk(batch: BatchModel, draw: Random, num_rows: int, num_tokens: int) -> Piece:
    """Rows of other tokens, in a cache of their own."""
    count = max(1, min(num_tokens, MAX_TOKENS // 3) // num_rows) if num_rows > 1 else num_tokens
    tokens = [[draw.randrange(8) for _ in range(count)] for _ in range(num_rows)]
    return Piece(RowCache(num_rows, count), 0, [0] * num_rows, tokens, 1)


def _compare_with_plain(
    batch: BatchModel, model: torch.nn.Module, row: list[int], logits: torch.Tensor
) -> str | None:
    """The oracle: an ordinary pass, without cache, by the model's own attention. And its sliding windows, which a short
    row would not show."""
    with torch.inference_mode():
        plain = model(input_ids=torch.tensor([row], device=batch.device), use_cache=False).logits[0]
    limit = TOLERANCE.get(plain.dtype, 1e-3) * float(plain.float().std())
    difference = float((plain.float() - logits.float()).abs().max())
    if not difference <= limit:
        return f"its logits are off by {difference:.2g}"
    layers = DynamicCache(config=model.config).layers
    for index, layer in enumerate(layers):
        if batch.windows.get(index, -1) != getattr(layer, "sliding_window", None):
            return f"layer {index} does not say how far it sees"
    return None
