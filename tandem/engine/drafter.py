"""From the logits of a forward pass to a draft: mix the rows, restrict, compress, draw.

Whatever changes the distribution happens before a token is drawn, and the token is drawn from the very bytes that are
sent, so that every party sees the distribution that the draft came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.restriction import restrict
from tandem.aggregation.rules import draft_rule
from tandem.codecs import Codec, CodecStates
from tandem.codecs.base import MAX_VOCAB, ROOT
from tandem.engine.row_mixture import mix_rows
from tandem.sampling import SamplingParams
from tandem.topology import Party

if TYPE_CHECKING:
    import torch


class DraftResult(NamedTuple):
    """One draft and the distribution that it was drawn from."""

    token: int
    payload: bytes  # q, encoded: what is sent, and what `token` was drawn from
    dense: NDArray[np.float64]  # q before the codec, [vocab]


class Drafter:
    """One party's way from logits to drafts in one session, with the state of its codec."""

    def __init__(
        self, codec: Codec, sampling: SamplingParams, rule: str, vocab_size: int = MAX_VOCAB
    ) -> None:
        """rule: of drafting, "coupled" or "algorithm1". Raises ConfigError if there is no such rule."""
        self._vocab_size = vocab_size
        self._codec = codec
        self._states = CodecStates(codec)
        self._sampling = sampling
        self._rule = draft_rule(rule, sampling.temperature)

    def draft(
        self,
        logits: torch.Tensor,
        log_weights: Sequence[float],
        *,
        seed: int,
        step: int,
        party: Party,
        lineage: Sequence[bytes] = ROOT,
    ) -> DraftResult:
        """A draft for one step.

        logits: [rows, vocab]; log_weights: [rows], of the rows' documents (Eq. 1). lineage: digests of the beginnings
        of its prefix, as in `tandem.protocol.prefix`; a codec's state is a function of them.
        """
        payload, dense = self.encode(logits, log_weights, lineage)
        return DraftResult(self.draw(payload, seed=seed, step=step, party=party), payload, dense)

    def encode(
        self, logits: torch.Tensor, log_weights: Sequence[float], lineage: Sequence[bytes] = ROOT
    ) -> tuple[bytes, NDArray[np.float64]]:
        """The party's distribution q for one step, encoded and dense [vocab]."""
        dense = restrict(mix_rows(logits, log_weights, self._sampling.temperature), self._sampling)
        return self._states.encode(dense, lineage), dense

    def draw(self, payload: bytes, *, seed: int, step: int, party: Party) -> int:
        """The token that `party` drafts from an encoded distribution. Raises ProtocolError if it is malformed."""
        distribution = self._codec.decode(payload, self._vocab_size)
        return self._rule.draft(distribution, seed=seed, step=step, party=party)
