"""Teacher forcing: how probable each row holds each token of a given answer, a whole answer in one pass per row.

Knows token rows and a model; nothing of weights between documents, sides or sessions. It keeps no cache: no
single-token decoding follows, so the bits may differ from those of `decoding` in their last places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tandem.engine.prompt import Prompt

MAX_LOGITS = 1 << 26
"""Logits of one pass, at most (256 MiB of float32); a single row may have more."""


def forced_log_probabilities(
    model: Any, prompt: Prompt, tokens: Sequence[int], vocab_size: int
) -> NDArray[np.float64]:
    """log p(x_t | row, x_<t) at temperature 1 of each of `tokens`, [rows, tokens].

    The softmax runs in float32 over the first `vocab_size` logits, as in `mixing.mix_rows`.
    """
    rows = [[*prefix, *prompt.query, *tokens[:-1]] for prefix in prompt.prefixes]
    at_once = max(1, MAX_LOGITS // (len(tokens) * vocab_size))
    parts = [_block(model, rows[i : i + at_once], tokens, vocab_size) for i in range(0, len(rows), at_once)]
    return np.concatenate(parts)


def _block(model: Any, rows: list[list[int]], tokens: Sequence[int], vocab_size: int) -> NDArray[np.float64]:
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
        logits = output.logits[
            :, :, :vocab_size
        ].float()  # [rows, tokens, vocab]; the first follows the prompt
        wanted = torch.tensor(list(tokens), device=model.device).expand(len(rows), -1)
        chosen = torch.log_softmax(logits, dim=-1).gather(2, wanted[:, :, None])[:, :, 0]
    return np.asarray(chosen.double().cpu().numpy())
