"""Does this model, on this machine, give a row the same bits in any batch? Tried when a model is loaded.

A few random rows are computed in one pass, then again in other groupings, alone and with others, token by token and in
blocks. All logits must agree to the bit, and be those of an ordinary pass of the model to a tolerance.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from tandem.engine.batch import (
    BLOCK,
    MAX_COLUMNS,
    MAX_TOKENS,
    VALUE_BLOCK,
    BatchModel,
    Piece,
    RowCache,
    Unsupported,
    weigh,
)

NUM_ROWS, LENGTH = 4, 24
SIZES = ((4, 2), (16, 2), (4, 4), (16, 4), (16, 8))
"""What is tried, cheapest first: tokens to whose multiples passes are padded, and least query columns of attention."""
BLOCKS = (1, 2, 3, 5, 7, 6)
COMPANY = (0, 3, 10, 33, 61, MAX_TOKENS - 24)
"""How a row is fed, and how many tokens of others are computed with each block."""
TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.2}
"""Largest difference from an ordinary pass, in standard deviations of its logits."""


def find_fault(batch: BatchModel, model: Any, vocab_size: int, context_length: int | None) -> str | None:
    """Why the model cannot be computed in batches here; None if it can. Sets what passes are padded to."""
    if "logits_to_keep" not in inspect.signature(model.forward).parameters:
        return "it does not say which logits it computes"
    length = min(LENGTH, context_length or LENGTH)
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(vocab_size, (NUM_ROWS, length), generator=generator).tolist()
    if not _sums_ignore_the_width(model.dtype, batch.device, generator):
        return "the last bits of attention depend on the width of the cache"
    try:
        for batch.multiple, batch.min_columns in SIZES:
            expected = _Rows(batch, rows).compute([(range(NUM_ROWS), length)])
            if (fault := _compare_with_plain(batch, model, rows[0], expected[0])) is not None:
                return fault
            if _agree(batch, rows, expected):
                return None
    except Unsupported as error:
        return str(error)
    except Exception as error:  # anything may come out of a model that was never run this way
        return f"it failed ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"
    return "the last bits of a row depend on what else is in the batch"


def _sums_ignore_the_width(dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> bool:
    """Whether what attention adds up for a token is the same however far the cache reaches beyond it."""
    weights = torch.rand(1, 2, MAX_COLUMNS, 2 * VALUE_BLOCK, generator=generator).to(device, dtype)
    values = torch.randn(1, 2, 2 * VALUE_BLOCK, MAX_COLUMNS, generator=generator).to(device, dtype)
    for live in range(BLOCK, 2 * VALUE_BLOCK, BLOCK):
        seen = weights.clone()
        seen[..., live - 3 :] = 0
        widths = range(live, 2 * VALUE_BLOCK + 1, BLOCK)
        sums = [weigh(seen[..., :width], values[:, :, :width]) for width in widths]
        if not all(torch.equal(each, sums[0]) for each in sums):
            return False
    return True


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

    def compute(self, plan: Sequence[tuple[range, int]], company: Sequence[int] = ()) -> list[torch.Tensor]:
        """[tokens, vocab] of every row: one pass per step of the plan, with so many tokens of others in front."""
        logits: list[list[torch.Tensor]] = [[] for _ in self._rows]
        for step, (rows, count) in enumerate(plan):
            junk = _junk(company[step]) if step < len(company) else []
            result = self._batch([*junk, self.piece(rows, count)])[-1]
            for row, row_logits in zip(rows, result, strict=True):
                logits[row].append(row_logits)
        return [torch.cat(parts) if parts else torch.empty(0) for parts in logits]


def _agree(batch: BatchModel, rows: list[list[int]], expected: list[torch.Tensor]) -> bool:
    """Whether a few groupings of the same tokens give the expected bits."""
    last, everyone = range(NUM_ROWS - 1, NUM_ROWS), range(NUM_ROWS)
    length = len(rows[0])
    blocks = [min(block, length) for block in BLOCKS] if length < sum(BLOCKS) else list(BLOCKS)
    while sum(blocks) > length:
        blocks.pop()
    plans = [
        ([(last, block) for block in blocks], COMPANY[::-1]),
        ([(last, block) for block in blocks[::-1]], COMPANY),
        ([(everyone, block) for block in blocks], ()),
    ]
    for plan, company in plans:
        computed = _Rows(batch, rows).compute(plan, company)[-1]
        if not torch.equal(computed, expected[-1][: len(computed)]):
            return False
    return True


def describe_fallback(name: str, fault: str) -> str:
    """A sentence on the model of that name, which has this fault."""
    return (
        f"The model {name!r} computes one token of one query at a time, because {fault} "
        "(on this machine, in this precision); answers are the same, many queries at once are slower."
    )


def _junk(num_tokens: int) -> list[Piece]:
    """Rows of other tokens, in a cache of their own."""
    if num_tokens < 1:
        return []
    num_rows = 3 if num_tokens % 3 == 0 else 1
    tokens = [[(row + column) % 7 for column in range(num_tokens // num_rows)] for row in range(num_rows)]
    return [Piece(RowCache(num_rows, num_tokens), 0, [0] * num_rows, tokens, 1)]


def _compare_with_plain(batch: BatchModel, model: Any, row: list[int], logits: torch.Tensor) -> str | None:
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
