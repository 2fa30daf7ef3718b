"""Drafting, from the logits of a forward pass to a draft: mix the rows, restrict, compress, draw.

Whatever changes the distribution happens before a token is drawn, and the token is drawn from the very bytes that are
sent, so that every party sees the distribution that the draft came from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.distributions import Distribution, restrict
from tandem.aggregation.document_weights import check_weights
from tandem.aggregation.rules import DRAFT_RULES, Step, draft_rule, proposal_rule
from tandem.codecs import Codec, CodecStates
from tandem.codecs.base import MAX_VOCAB, ROOT, check_dense
from tandem.codecs.votes import log_probabilities, write_token
from tandem.config.schema import SamplingParams
from tandem.engine.port import Logits
from tandem.engine.privacy import Privacy
from tandem.engine.shaping import Shaper, divisor
from tandem.errors import GenerationError, ProtocolError
from tandem.topology import Party

# ---- The distribution of one party -------------------------------------------------------------------------


def row_probabilities(logits: Logits, temperature: float = 1.0) -> NDArray[np.float32]:
    """softmax(logits / T) of each row, [rows, vocab]. logits: of any float type; the softmax runs in float32.

    temperature: 0 means T = 1 here, since a greedy token is the argmax of the decoded distribution. A row's bits do not
    depend on other rows.
    """
    is_scaled = temperature not in (0.0, 1.0)
    scale = divisor(temperature)
    # Subtracting first keeps a tiny temperature from overflowing to inf - inf.
    if isinstance(logits, np.ndarray):
        rows = np.ascontiguousarray(logits, np.float32)
        powers = np.exp((rows - rows.max(axis=-1, keepdims=True)) / np.float32(scale))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True))
    import torch

    tensor = logits.detach().float()
    if is_scaled:
        tensor = (tensor - tensor.amax(dim=-1, keepdim=True)) / scale
    return np.asarray(torch.softmax(tensor, dim=-1).cpu().numpy())


def mix_rows(
    probabilities: NDArray[np.float32], log_weights: Sequence[float] | NDArray[np.float64]
) -> NDArray[np.float64]:
    """q [vocab] = sum over rows d of omega(d) * probabilities[d], in float64; DRAGON Eq. (1) and (2).

    probabilities: [rows, vocab], the `row_probabilities`. log_weights: [rows], omega = softmax(log_weights); a bare
    row's -inf is fine.
    """
    weights = weigh_rows(log_weights)
    if len(weights) != len(probabilities):
        raise GenerationError(
            f"There are {len(probabilities)} rows and {len(weights)} weights; "
            "score exactly the documents that the engine kept."
        )
    distribution: NDArray[np.float64] = np.multiply(probabilities[0], weights[0], dtype=np.float64)
    for weight, row in zip(weights[1:], probabilities[1:], strict=True):
        distribution += np.multiply(row, weight, dtype=np.float64)
    distribution /= distribution.sum()
    return distribution


def weigh_rows(log_weights: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """omega [rows] = softmax(log_weights), in log space; uniform where all are -inf (a bare row)."""
    scores = np.asarray(log_weights, dtype=np.float64).reshape(-1)
    check_weights(scores.tolist())
    top = scores.max(initial=-math.inf)
    raw = np.ones(len(scores)) if top == -math.inf else np.exp(scores - top)
    return np.asarray(raw / raw.sum()) if len(raw) else raw


def log_mixture(
    logits: Logits, log_weights: Sequence[float] | NDArray[np.float64], temperature: float
) -> NDArray[np.float64]:
    """log q [vocab] of `mix_rows`, of which nothing is lost: float32 has no probability below 102 nats, which at a low
    temperature is all that a grammar allows. In float64 throughout."""
    rows = np.asarray(logits if isinstance(logits, np.ndarray) else logits.detach().float().cpu(), np.float64)
    rows = (rows - rows.max(axis=-1, keepdims=True)) / divisor(temperature)
    rows -= np.log(np.exp(rows).sum(axis=-1, keepdims=True))
    with np.errstate(divide="ignore"):
        log_shares = np.log(weigh_rows(log_weights))
    return np.asarray(np.logaddexp.reduce(rows + log_shares[:, np.newaxis], axis=0))


class DraftPlace(NamedTuple):
    """The place of a draft in an answer: what it depends on besides the logits."""

    seed: int
    step: int
    party: Party
    lineage: Sequence[bytes] = ROOT
    """Digests of the beginnings of its prefix (`tandem.protocol.log`), of which a codec's state is a function."""
    proposed: Step | None = None  # by another party, which matters to a `TokenVoter` only


class Drafter:
    """One party's way from logits to drafts in one session, with the state of its codec."""

    num_malformed = 0
    """Proposals whose distribution a `TokenVoter` could not decode, or that excludes its token; they count as none."""
    _has_private_noise = False

    def __init__(
        self,
        codec: Codec,
        sampling: SamplingParams,
        rule: str,
        vocab_size: int = MAX_VOCAB,
        privacy: Privacy | None = None,
        shaper: Shaper | None = None,
    ) -> None:
        """rule: of drafting, "coupled" or "algorithm1". privacy: bounds what rows with documents add to the last row,
        which has none. shaper: what the query asks of tokens one by one. Raises ConfigError if there is no such rule.
        """
        self._vocab_size = vocab_size
        self._codec = codec
        self._states = CodecStates(codec)
        self._sampling = sampling
        self._privacy = privacy
        self._shaper = shaper
        # of the last step, [rows, vocab] at temperature 1, where that is the query's
        self.rows: NDArray[np.float32] | None = None
        self.dense: NDArray[np.float64] | None = None  # of the last step, q before the codec, [vocab]
        self._rule = draft_rule(rule, sampling.temperature)
        self._drawn: dict[bytes, Step] = {}  # with private noise, by the digest of the prefix

    def draft(
        self, logits: Logits, log_weights: Sequence[float], place: DraftPlace, prefix: Sequence[int] = ()
    ) -> Step:
        """A draft for one step.

        logits: [rows, vocab]; log_weights: [rows], of the rows' documents (Eq. 1). prefix: tokens of the answer before
        it. What was drawn with private noise is repeated, whatever the row is by now.
        """
        before = place.lineage[-1]
        if before in self._drawn:
            self.rows = None  # they are of another step
            return self._drawn[before]
        result = self._draft(self.distribution(logits, log_weights, prefix), place)
        if self._has_private_noise:
            self._drawn[before] = result
        return result

    def _draft(self, dense: NDArray[np.float64], place: DraftPlace) -> Step:
        payload = self._states.encode(dense, place.lineage)
        token = self.draw(payload, seed=place.seed, step=place.step, party=place.party)
        return Step(place.step, token, payload)

    def distribution(
        self, logits: Logits, log_weights: Sequence[float], prefix: Sequence[int] = ()
    ) -> NDArray[np.float64]:
        """The party's distribution q [vocab] for one step, over the tokens that all parties have.

        Raises GenerationError where the model gave none.
        """
        temperature, privacy = self._sampling.temperature, self._privacy
        if privacy is not None:
            log_weights = (*log_weights[:-1], -math.inf)
        logits = logits[:, : self._vocab_size]
        rows = row_probabilities(logits, temperature)
        mixed = mix_rows(rows, log_weights)
        check_dense(mixed)
        self.rows = rows if temperature in (0.0, 1.0) else None
        self.dense = self._restrict(mixed, logits, log_weights, prefix)
        if privacy is not None:
            bare = rows[-1].astype(np.float64)
            bare = self._restrict(bare / bare.sum(), logits[-1:], (0.0,), prefix)
            self.dense = privacy.protect(self.dense, bare, is_drawn=temperature > 0)
        return self.dense

    def _restrict(
        self,
        mixed: NDArray[np.float64],
        logits: Logits,
        log_weights: Sequence[float],
        prefix: Sequence[int],
    ) -> NDArray[np.float64]:
        """The mixture of rows, as the query asks. logits, log_weights: what it is made of."""
        if self._shaper is not None and not self._shaper.is_idle:
            exact = log_mixture(logits, log_weights, self._sampling.temperature)
            mixed = self._shaper.shape(exact, prefix)
        return restrict(mixed, self._sampling)

    def draw(self, payload: bytes, *, seed: int, step: int, party: Party) -> int:
        """The token that `party` drafts from an encoded distribution. Raises ProtocolError if it is malformed."""
        distribution = self._codec.decode(payload, self._vocab_size)
        return self._rule.draft(distribution, seed=seed, step=step, party=party)


class TokenDrafter(Drafter):
    """Drafts of a party without a vote, or that answers alone: payloads are tokens, or distributions that travel."""

    def __init__(
        self,
        codec: Codec,
        sampling: SamplingParams,
        rule: str,
        vocab_size: int,
        *,
        sends_drafts: bool,
        num_named: int | None = None,
        privacy: Privacy | None = None,
        shaper: Shaper | None = None,
    ) -> None:
        """codec: of the distributions that travel. rule: of proposals, "coupled" or "rejection". num_named: how many
        likeliest tokens a payload names besides its token, each with its log probability; None: no log probabilities.
        Tokens are drawn with the noise of `privacy`. Raises ConfigError.
        """
        super().__init__(codec, sampling, DRAFT_RULES[0], vocab_size, privacy, shaper)
        self._proposals = proposal_rule(rule, sampling.temperature)
        self._sends_drafts = sends_drafts
        self._num_named = num_named
        self._has_private_noise = privacy is not None

    def _draft(self, dense: NDArray[np.float64], place: DraftPlace) -> Step:
        if not self._sends_drafts:
            token = self._proposals.draft(_whole(dense), seed=self._seed(place), step=place.step)
            return Step(place.step, token, self._name(token, dense))
        payload = self._states.encode(dense, place.lineage)
        sent = self._codec.decode(payload, self._vocab_size)
        return Step(place.step, self._proposals.draft(sent, seed=place.seed, step=place.step), payload)

    def _seed(self, place: DraftPlace) -> int:
        return place.seed if self._privacy is None else self._privacy.seed()

    def _name(self, token: int, dense: NDArray[np.float64]) -> bytes:
        if self._num_named is None or not dense[token]:
            return write_token(token)
        return write_token(token, log_probabilities(_whole(dense), token, self._num_named))


class TokenVoter(TokenDrafter):
    """Votes of the only voter: tokens that the rule chooses from its distribution and what was proposed."""

    def _draft(self, dense: NDArray[np.float64], place: DraftPlace) -> Step:
        token = self._choose(_whole(dense), place.proposed, self._seed(place), place.step)
        return Step(place.step, token, self._name(token, dense))

    def _choose(self, target: Distribution, proposed: Step | None, seed: int, step: int) -> int:
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
