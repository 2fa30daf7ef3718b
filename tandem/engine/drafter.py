"""From the logits of a forward pass to a draft: mix the rows, restrict, compress, draw.

Whatever changes the distribution happens before a token is drawn, and the token is drawn from the very bytes that are
sent, so that every party sees the distribution that the draft came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.distributions import Distribution
from tandem.aggregation.log_probabilities import log_probabilities
from tandem.aggregation.proposals import Proposed, proposal_rule
from tandem.aggregation.restriction import restrict
from tandem.aggregation.rules import DRAFT_RULES, draft_rule
from tandem.codecs import Codec, CodecStates
from tandem.codecs.base import MAX_VOCAB, ROOT
from tandem.codecs.token import write_token
from tandem.config.sampling import SamplingParams
from tandem.engine.row_mixture import mix_and_keep
from tandem.errors import ProtocolError
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

    num_malformed = 0
    """Proposals whose distribution a `TokenVoter` could not decode, or that excludes its token; they count as none."""

    def __init__(
        self, codec: Codec, sampling: SamplingParams, rule: str, vocab_size: int = MAX_VOCAB
    ) -> None:
        """rule: of drafting, "coupled" or "algorithm1". Raises ConfigError if there is no such rule."""
        self._vocab_size = vocab_size
        self._codec = codec
        self._states = CodecStates(codec)
        self._sampling = sampling
        self.rows: NDArray[np.float32] | None = (
            None  # of the last step, [rows, vocab] at temperature 1, if known
        )
        self.dense: NDArray[np.float64] | None = None  # of the last step, q before the codec, [vocab]
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
        proposed: Proposed | None = None,
    ) -> DraftResult:
        """A draft for one step.

        logits: [rows, vocab]; log_weights: [rows], of the rows' documents (Eq. 1). lineage: digests of the beginnings
        of its prefix, as in `tandem.protocol.prefix`; a codec's state is a function of them. proposed: by another
        party, which matters to a `TokenVoter` only.
        """
        payload, dense = self.encode(logits, log_weights, lineage)
        return DraftResult(self.draw(payload, seed=seed, step=step, party=party), payload, dense)

    def encode(
        self, logits: torch.Tensor, log_weights: Sequence[float], lineage: Sequence[bytes] = ROOT
    ) -> tuple[bytes, NDArray[np.float64]]:
        """The party's distribution q for one step, encoded and dense [vocab]."""
        dense = self.distribution(logits, log_weights)
        return self._states.encode(dense, lineage), dense

    def distribution(self, logits: torch.Tensor, log_weights: Sequence[float]) -> NDArray[np.float64]:
        """The party's distribution q [vocab] for one step, over the tokens that all parties have."""
        temperature = self._sampling.temperature
        mixed, rows = mix_and_keep(logits[:, : self._vocab_size], log_weights, temperature)
        self.rows = rows if temperature in (0.0, 1.0) else None
        self.dense = restrict(mixed, self._sampling)
        return self.dense

    def draw(self, payload: bytes, *, seed: int, step: int, party: Party) -> int:
        """The token that `party` drafts from an encoded distribution. Raises ProtocolError if it is malformed."""
        distribution = self._codec.decode(payload, self._vocab_size)
        return self._rule.draft(distribution, seed=seed, step=step, party=party)


class TokenDrafter(Drafter):
    """Drafts of a party without a vote, and of one that answers alone in their mode: the token is all that is needed.

    Nothing is compressed, unless the drafts' distributions must travel.
    """

    def __init__(
        self,
        codec: Codec,
        sampling: SamplingParams,
        rule: str,
        vocab_size: int,
        *,
        sends_drafts: bool,
        num_logprobs: int | None = None,
    ) -> None:
        """codec: of the distributions that travel. rule: of proposals, "coupled" or "rejection". num_logprobs: how many
        likeliest tokens a payload names beside its token, each with its log probability; None: no log probabilities.
        Raises ConfigError.
        """
        super().__init__(codec, sampling, DRAFT_RULES[0], vocab_size)
        self._proposals = proposal_rule(rule, sampling.temperature)
        self._sends_drafts = sends_drafts
        self._num_logprobs = num_logprobs

    def draft(
        self,
        logits: torch.Tensor,
        log_weights: Sequence[float],
        *,
        seed: int,
        step: int,
        party: Party,
        lineage: Sequence[bytes] = ROOT,
        proposed: Proposed | None = None,
    ) -> DraftResult:
        """As the base class. The payload is the distribution where that travels, else the token."""
        if self._sends_drafts:
            payload, dense = self.encode(logits, log_weights, lineage)
            drawn_from = self._codec.decode(payload, self._vocab_size)
            return DraftResult(self._proposals.draft(drawn_from, seed=seed, step=step), payload, dense)
        dense = self.distribution(logits, log_weights)
        return self._name(self._proposals.draft(_whole(dense), seed=seed, step=step), dense)

    def _name(self, token: int, dense: NDArray[np.float64]) -> DraftResult:
        """A token as its payload, with log probabilities where they are asked for."""
        if self._num_logprobs is None or not dense[token]:
            return DraftResult(token, write_token(token), dense)
        known = log_probabilities(_whole(dense), token, self._num_logprobs)
        return DraftResult(token, write_token(token, known), dense)


class TokenVoter(TokenDrafter):
    """Votes of the only voter: the token that the rule chooses from its distribution and what was proposed."""

    def draft(
        self,
        logits: torch.Tensor,
        log_weights: Sequence[float],
        *,
        seed: int,
        step: int,
        party: Party,
        lineage: Sequence[bytes] = ROOT,
        proposed: Proposed | None = None,
    ) -> DraftResult:
        """As the base class, with the token that is to be committed."""
        dense = self.distribution(logits, log_weights)
        return self._name(self._choose(_whole(dense), proposed, seed, step), dense)

    def _choose(self, target: Distribution, proposed: Proposed | None, seed: int, step: int) -> int:
        if proposed is None or (self._sends_drafts and proposed.payload is None):
            return self._proposals.choose(target, None, seed=seed, step=step)
        try:
            draft = (
                self._codec.decode(proposed.payload or b"", self._vocab_size) if self._sends_drafts else None
            )
            return self._proposals.choose(target, proposed.token, draft, seed=seed, step=step)
        except ProtocolError:
            self.num_malformed += 1
            return self._proposals.choose(target, None, seed=seed, step=step)


def _whole(dense: NDArray[np.float64]) -> Distribution:
    """A distribution over every token of the vocabulary."""
    return Distribution(np.arange(dense.size), dense)
