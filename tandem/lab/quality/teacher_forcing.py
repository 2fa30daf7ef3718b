"""Teacher forcing: how probable each row holds each token of a given answer, a whole answer in one pass per row.

It keeps no cache: no single-token decoding follows, so the bits may differ from an engine session's in their last
places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tandem.engine.engine import Engine
from tandem.engine.prompt import Prompt

MAX_LOGITS = 1 << 26
"""Logits of one pass, at most (256 MiB of float32); a single row may have more."""


def force_tokens(engine: Engine, prompt: Prompt, tokens: Sequence[int]) -> NDArray[np.float64]:
    """log p(x_t | row, x_<t) at temperature 1 of each of `tokens`, [rows, tokens]; opens no session.

    The softmax runs in float32 over the engine's vocabulary, as in `row_mixture.mix_rows`. GenerationError if a token
    is outside of it.
    """
    engine.check_tokens(tokens)
    size = engine.vocab_size
    rows = [[*document, *prompt.query_tokens, *tokens[:-1]] for document in prompt.document_tokens]
    at_once = max(1, MAX_LOGITS // (len(tokens) * size))
    parts = [
        _force_block(engine.model, rows[i : i + at_once], tokens, size) for i in range(0, len(rows), at_once)
    ]
    return np.concatenate(parts)


def _force_block(
    model: Any, rows: list[list[int]], tokens: Sequence[int], vocab_size: int
) -> NDArray[np.float64]:
    """Rows padded on the left, so that all end together; [rows, tokens]."""
    width = max(len(row) for row in rows)
    pads = torch.tensor([width - len(row) for row in rows], device=model.device)
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows], device=model.device)
    columns = torch.arange(width, device=model.device)
    mask = (columns[None, :] >= pads[:, None]).long()  # [rows, width]
    positions = (columns[None, :] - pads[:, None]).clamp_(min=0)  # [rows, width]
    with torch.inference_mode():
        output = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=False,
            logits_to_keep=len(tokens),
        )
        # [rows, tokens, vocab]; the first follows the prompt
        logits = output.logits[:, :, :vocab_size].float()
        targets = torch.tensor(list(tokens), device=model.device).expand(len(rows), -1)
        log_p = torch.log_softmax(logits, dim=-1).gather(2, targets[:, :, None])[:, :, 0]
    return np.asarray(log_p.double().cpu().numpy())
