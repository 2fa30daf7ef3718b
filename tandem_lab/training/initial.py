"""Initial weights that look names up: heads of the second layer find where a name stood before, and say what followed.

A reader must find, behind "Mira likes", what a document says behind Mira's name. From random weights that took more
steps than there is time for. So heads of the first layer begin as copies of what stands no, one, two and three tokens
before, by position alone, and heads of the second layer begin by comparing these copies and saying the token that is
found: induction heads (Olsson et al., In-context Learning and Induction Heads, 2022). Everything is trained from there.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from transformers import LlamaForCausalLM

OFFSETS = (0, 1, 2, 3)
"""How far before its own token each head of the first layer looks; "Mira likes" ends two syllables and a verb."""
POSITION_FREQUENCIES = 4
"""So many of the fastest rotations tell neighbours apart; slower ones hardly turn from one token to the next."""
POSITION_SCALE, VALUE_SCALE, MATCH_SCALE, SAY_SCALE = 10.0, 3.0, 2.0, 12.0
"""Of the biases that name a distance, what is copied, queries and keys that are compared, and what is said."""


def look_up_names(model: LlamaForCausalLM) -> None:
    """Set these heads' weights, drawn from torch's generator. The model needs biases of attention and four heads."""
    config = model.config
    heads = _Heads(config.hidden_size, config.num_attention_heads)
    first, second = (model.model.layers[index].self_attn for index in (0, 1))
    rotations = _rotations(config, heads.size)
    kept = torch.linalg.qr(torch.randn(heads.hidden, heads.size))[0].T  # of a token, in each copy
    # Where copies go; one head's do not overlap another's.
    places = torch.linalg.qr(torch.randn(heads.hidden, heads.hidden))[0]
    with torch.no_grad():
        for head, offset in enumerate(OFFSETS):
            rows = heads.rows(head)
            _attend_before(first, rows, offset, rotations)
            first.v_proj.weight[rows] = VALUE_SCALE * kept
            first.o_proj.weight[:, rows] = places[:, rows]
        # The last token asked about, one before, two before: each where the document had it one token earlier.
        for head, (asked, told) in enumerate(pairwise(range(len(OFFSETS)))):
            rows = heads.rows(head)
            _compare(second.q_proj, rows, places[:, heads.rows(asked)])
            _compare(second.k_proj, rows, places[:, heads.rows(told)])
            second.v_proj.weight[rows] = places[:, heads.rows(0)].T
            second.o_proj.weight[:, rows] = SAY_SCALE * kept.T


class _Heads:
    def __init__(self, hidden: int, num_heads: int) -> None:
        self.hidden, self.size = hidden, hidden // num_heads

    def rows(self, head: int) -> slice:
        return slice(head * self.size, (head + 1) * self.size)


def _rotations(config: Any, head_size: int) -> torch.Tensor:
    """Radians from one token to the next of each pair of dimensions, the fastest first (Su et al., RoPE)."""
    base = float(config.rope_parameters["rope_theta"])
    return torch.tensor(base) ** (-torch.arange(0, head_size, 2) / head_size)


def _attend_before(attention: Any, rows: slice, offset: int, rotations: torch.Tensor) -> None:
    """A head whose score is highest `offset` tokens before, whatever stands there: a key turned as far ahead."""
    half = len(rotations)
    fastest = torch.arange(POSITION_FREQUENCIES)
    angles = offset * rotations[:POSITION_FREQUENCIES]
    attention.q_proj.bias[rows][fastest] = POSITION_SCALE
    attention.k_proj.bias[rows][fastest] = POSITION_SCALE * torch.cos(angles)
    attention.k_proj.bias[rows][half + fastest] = POSITION_SCALE * torch.sin(angles)


def _compare(projection: Any, rows: slice, place: torch.Tensor) -> None:
    """Read a copy into the dimensions that turn slowly, so that distance matters little."""
    size = place.shape[1]
    slow = torch.tensor([i for i in range(size) if i % (size // 2) >= size // 4])
    projection.weight[rows] = 0.0
    projection.weight[rows][slow] = MATCH_SCALE * place.T[: len(slow)]
