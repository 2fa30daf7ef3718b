"""Draft rules: how drafts are drawn, and how a pair of distributions becomes the target.

One rule object serves drafting and verifying; all it holds is its name. Every result is a function of (distributions,
shares, seed, step), never of order or time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Protocol

import numpy as np

from tandem.aggregation.coupling import Purpose, coupled_draw, exp_scalar, noise, race, uniform
from tandem.aggregation.distributions import Distribution, mix, union
from tandem.aggregation.document_weights import Evidence
from tandem.errors import ConfigError, ProtocolError, did_you_mean
from tandem.topology import Party


@dataclass(frozen=True, slots=True)
class Step:
    """A party's draft or vote after one prefix.

    Its decoder keeps it by the digest of the prefix. It travels in a `Vote`, and coordinators keep it likewise.
    """

    step: int  # output position, 0-based: length of the prefix
    token: int | None = (
        None  # drawn from the distribution, or chosen by the rule; at a coordinator None: no draft
    )
    payload: bytes | None = None  # what is sent of the distribution: it encoded, or the token drawn from it
    decode_us: int = 0  # time of the pass, microseconds
    log_weight: float | None = None  # of the party's rows, as it is sent; None: its weight is fixed
    evidence: Evidence = ()  # in the decoder: of the rows, after the token that follows
    masses: tuple[float, ...] = ()  # in the decoder: w_d p_d of it in each row; none: weights do not move
    arrived_s: float = nan  # at a coordinator: since the query was opened


# ---- Speculative aggregation of independent drafts ---------------------------------------------------------


def keep_probability(token: int, own: Distribution, other: Distribution, other_share: float) -> float:
    """Probability that a draft survives Algorithm 1.

    It is 1 - eta^o (1 - q^o(x) / q^s(x)) if q^s(x) > q^o(x), else 1.
    token: the draft x, drawn from `own` = q^s. other: q^o. other_share: eta^o in [0, 1].
    """
    q_own, q_other = own.probability(token), other.probability(token)
    if q_own <= q_other:
        return 1.0
    return 1.0 - other_share * (1.0 - q_other / q_own)


def residual(own: Distribution, other: Distribution) -> Distribution | None:
    """norm(max(0, q^o - q^s)): where a replaced draft is drawn from; None if it has no mass."""
    own, other = own.spread(), other.spread()
    ids = union(own, other)
    excess = np.maximum(0.0, other.on(ids) - own.on(ids))
    has_mass = excess > 0.0
    if not has_mass.any():
        return None
    excess = excess[has_mass]
    return Distribution(ids[has_mass], excess / np.cumsum(excess)[-1])  # cumsum adds in one order everywhere


def result_distribution(
    token: int, own: Distribution, other: Distribution, other_share: float
) -> Distribution:
    """Distribution of one party's result (x tilde) given its draft: the draft if it is kept, else the residual.

    NOT in the paper: a residual without mass (distributions equal up to rounding) keeps the draft.
    """
    draft = Distribution(np.array([token]), np.ones(1))
    rest = residual(own, other)
    if rest is None:
        return draft
    return mix(draft, rest, keep_probability(token, own, other, other_share))


def target_given_drafts(
    device_token: int, cloud_token: int, device: Distribution, cloud: Distribution, eta_device: float
) -> Distribution:
    """Distribution of the target given both drafts: each party's result with probability 1/2 (Algorithm 1)."""
    device_result = result_distribution(device_token, device, cloud, 1.0 - eta_device)
    cloud_result = result_distribution(cloud_token, cloud, device, eta_device)
    return mix(device_result, cloud_result, 0.5)


def draw(distribution: Distribution, u: float) -> int:
    """The token at quantile u of the distribution. u: strictly inside (0, 1), at most 1 - 2**-53.

    Such a u times the total rounds to less than the total, so the index stays inside; `right` skips
    tokens of probability zero.
    """
    distribution = distribution.spread()
    cumulative = np.cumsum(distribution.probabilities)
    return int(distribution.ids[np.searchsorted(cumulative, u * cumulative[-1], side="right")])


# ---- The target distribution: how much each party counts ---------------------------------------------------


def shares(*log_weights: float) -> tuple[float, ...]:
    """The share eta of each party from the parties' log-sum-exp weights, one or more (Appendix A.1).

    A party without documents has -inf and share 0; if nobody has any, all count the same. Of two parties the smaller
    share is one minus the larger, both exact, so the pair sums to 1 exactly and swapping the parties swaps the pair. Of
    more the sum runs in the given order. Raises ProtocolError on NaN or +inf, which no party may send.

    NOT in the paper (DRAGON): more than two parties.
    """
    for log_weight in log_weights:
        if math.isnan(log_weight) or log_weight == math.inf:
            raise ProtocolError(
                f"A log weight must be finite or -inf, got {log_weight}; restart the party that sent it."
            )
    largest = max(log_weights)
    if min(log_weights) == largest:  # all -inf included
        return (1.0 / len(log_weights),) * len(log_weights)
    if len(log_weights) == 2:
        larger = 1.0 / (1.0 + exp_scalar(min(log_weights) - largest))
        return (larger, 1.0 - larger) if log_weights[0] == largest else (1.0 - larger, larger)
    weights = [exp_scalar(log_weight - largest) for log_weight in log_weights]
    total = sum(weights)
    return tuple(weight / total for weight in weights)


def limit_shares(shares: Sequence[float], most: Sequence[float]) -> tuple[float, ...]:
    """Shares of sum 1 with none above its limit: what is taken off goes to the others in proportion to their shares.

    Where those have none, they get equal parts of it. most: of each, above 0. If all would be above their limits they
    count the same, as one does that is there alone. Of two parties the limited one has what the other leaves, so that
    the pair sums to 1 exactly.

    NOT in the paper (DRAGON): a party counts as much as it says that its documents weigh.
    """
    limited: set[int] = set()
    result = tuple(shares)
    while over := {number for number, share in enumerate(result) if share > most[number]} - limited:
        limited |= over
        total = sum(share for number, share in enumerate(shares) if number not in limited)
        num_free = len(shares) - len(limited)
        if num_free == 0:
            return (1.0 / len(shares),) * len(shares)
        left = 1.0 - sum(most[number] for number in sorted(limited))
        result = tuple(
            left * (share / total if total else 1.0 / num_free) if number not in limited else most[number]
            for number, share in enumerate(shares)
        )
        if len(result) == 2:
            result = tuple(1.0 - left if number in limited else left for number in range(2))
    return result


def target_distribution(device: Distribution, cloud: Distribution, eta_device: float) -> Distribution:
    """p = eta^device q^device + eta^cloud q^cloud (Eq. 4), on the union of both supports.

    eta_device: share of the device in [0, 1]; the cloud has the rest. The device's term is added first.
    """
    return mix(device, cloud, eta_device)


def mix_by_weights(distributions: Sequence[Distribution], weights: Sequence[float]) -> Distribution:
    """The target of voters with fixed weights of sum 1: their distributions' mixture, summed in the given order."""
    spread = [distribution.spread() for distribution in distributions]
    ids = np.unique(np.concatenate([distribution.ids for distribution in spread]))
    target = weights[0] * spread[0].on(ids)
    for weight, distribution in zip(weights[1:], spread[1:], strict=True):
        target = target + weight * distribution.on(ids)
    return Distribution(ids, target)


def draw_owner(shares: Sequence[float], *, seed: int, step: int) -> int:
    """The place of the voter whose own draw is the token of a step: the one whose part of [0, 1), cut by the shares in
    their order, holds the step's uniform number.

    To draw from sum_i eta_i q_i, draw i by the shares, then a token from q_i (Fu et al., "Rethinking LLM Ensembling
    from the Perspective of Mixture Models", arXiv 2605.00419). NOT in the paper: the number is a function of seed and
    step that every party computes, and independent of the race by which each draws. shares: [voters], of sum 1 up to
    rounding; what rounding leaves belongs to the last voter that has a share.
    """
    u, end = uniform(seed, Purpose.OWNER, step), 0.0
    for place, share in enumerate(shares):
        end += share
        if u < end:
            return place
    return max(place for place, share in enumerate(shares) if share > 0.0)


# ---- Acceptance rates: how probably a draft equals the committed token -------------------------------------


def speculative_acceptance(own: Distribution, other: Distribution, own_share: float) -> float:
    """Acceptance rate of `own` under Algorithm 1 (Eq. 5 with gamma = 1/2).

    alpha = 1/2 (1 - eta^o delta) + 1/2 sum_x q^s(x) p(x), delta = 1 - sum_x min(q^s, q^o). own_share: eta^s.
    """
    own, other = own.spread(), other.spread()
    ids = union(own, other)
    q, q_other = own.on(ids), other.on(ids)
    p = own_share * q + (1.0 - own_share) * q_other
    delta = 1.0 - float(np.minimum(q, q_other).sum())
    return 0.5 * (1.0 - (1.0 - own_share) * delta) + 0.5 * float((q * p).sum())


def coupled_acceptance(draft: Distribution, target: Distribution) -> float:
    """Probability that two distributions raced with shared clocks have the same winner.

    alpha = sum_i 1 / sum_j max(q_j / q_i, p_j / p_i) over i with q_i, p_i > 0 (Moulton and Jiang, "Maximally consistent
    sampling and the Jaccard index of probability distributions", arXiv 1809.04052; NOT in the paper): token i wins both
    races iff its clock rings before every other one scaled by that maximum. Sorted by q/p the inner sum splits into a
    tail of q and a head of p: n log n operations, not n^2. With delta = TV(q, p), alpha is between
    (1 - delta) / (1 + delta) and 1 - delta (Daliri, Musco and Suresh, arXiv 2408.07978).
    """
    draft, target = draft.spread(), target.spread()
    ids = union(draft, target)
    q, p = draft.on(ids), target.on(ids)
    # Ascending angle p -> q instead of q/p, which would divide by zero.
    total = q + p
    alive = total > 0.0
    q, p, total = q[alive], p[alive], total[alive]
    order = np.argsort(q / total)
    q, p = q[order], p[order]
    head_p = np.cumsum(p) - p  # tokens before i: p_j / p_i is the larger
    tail_q = np.cumsum(q[::-1])[::-1]  # i and the tokens after: q_j / q_i is
    both = (q > 0.0) & (p > 0.0)
    q, p, head_p, tail_q = q[both], p[both], head_p[both], tail_q[both]
    return min(1.0, float((1.0 / (tail_q / q + head_p / p)).sum()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The outcome of one step: the target, both drafts and their expected acceptance."""

    target: int  # the token to commit
    device_token: int  # the device's draft
    cloud_token: int  # the cloud's draft
    acceptance_device: float  # expected, by the rule's formula; 0/1 outcome at temperature 0
    acceptance_cloud: float

    @property
    def device_accepted(self) -> bool:
        """Whether the device's draft is the target."""
        return self.device_token == self.target

    @property
    def cloud_accepted(self) -> bool:
        """Whether the cloud's draft is the target."""
        return self.cloud_token == self.target


class DraftRule(Protocol):
    """A draft rule: how a party drafts and how an aggregator verifies. Distributions are those decoded from the bytes
    sent."""

    @property
    def name(self) -> str:
        """The rule's name in configuration and handshake."""

    def draft(self, distribution: Distribution, *, seed: int, step: int, party: Party) -> int:
        """A party's draft: a token drawn from its own distribution."""

    def verify(
        self, device: Distribution, cloud: Distribution, *, eta_device: float, seed: int, step: int
    ) -> Verification:
        """The target and both drafts. eta_device: share of the device in [0, 1]."""


class Coupled:
    """Coupled drafts, the default: both drafts and the target share one race; see `coupling`. NOT in the paper."""

    name = "coupled"
    needs_drafts = False

    def draft(self, distribution: Distribution, *, seed: int, step: int, party: Party = Party.DEVICE) -> int:
        """The winner of the party's race; the noise is the same for both parties."""
        return coupled_draw(distribution, seed=seed, step=step)

    def verify(
        self, device: Distribution, cloud: Distribution, *, eta_device: float, seed: int, step: int
    ) -> Verification:
        """The target wins the race of the mixture (Eq. 4) with the noise of the drafts."""
        device, cloud = device.spread(), cloud.spread()
        target = target_distribution(device, cloud, eta_device)
        clocks = noise(seed, step, target.ids)
        return Verification(
            target=race(target, clocks),
            device_token=race(device, clocks[target.ids.searchsorted(device.ids)]),
            cloud_token=race(cloud, clocks[target.ids.searchsorted(cloud.ids)]),
            acceptance_device=coupled_acceptance(device, target),
            acceptance_cloud=coupled_acceptance(cloud, target),
        )

    def choose(
        self,
        target: Distribution,
        proposed: int | None,
        draft: Distribution | None = None,
        *,
        seed: int,
        step: int,
    ) -> int:
        """The draft of the target, whatever was proposed: ids alone are enough."""
        return self.draft(target, seed=seed, step=step)


class Algorithm1:
    """Independent drafts and Algorithm 1.

    A draft is the quantile of the party's distribution at the uniform number of (seed, party, step), so a verifier
    derives it from the distribution and no token travels. A step's numbers influence no earlier target, so a draft
    that is redrawn with the same number after a rollback still follows its distribution exactly.
    """

    name = "algorithm1"

    def draft(self, distribution: Distribution, *, seed: int, step: int, party: Party) -> int:
        """The quantile of the distribution at the party's own uniform number."""
        return draw(distribution, uniform(seed, Purpose.draft(party), step))

    def verify(
        self, device: Distribution, cloud: Distribution, *, eta_device: float, seed: int, step: int
    ) -> Verification:
        """The target by Algorithm 1: one draw from its distribution given both drafts."""
        device_token = self.draft(device, seed=seed, step=step, party=Party.DEVICE)
        cloud_token = self.draft(cloud, seed=seed, step=step, party=Party.CLOUD)
        distribution = target_given_drafts(device_token, cloud_token, device, cloud, eta_device)
        return Verification(
            target=draw(distribution, uniform(seed, Purpose.DECISION, step)),
            device_token=device_token,
            cloud_token=cloud_token,
            acceptance_device=speculative_acceptance(device, cloud, eta_device),
            acceptance_cloud=speculative_acceptance(cloud, device, 1.0 - eta_device),
        )


class GreedyRule(Coupled):
    """Temperature 0: drafts and target are the most probable tokens, whichever rule was requested."""

    def __init__(self, name: str) -> None:
        """name: the rule that was requested."""
        self.name = name

    def draft(self, distribution: Distribution, *, seed: int, step: int, party: Party = Party.DEVICE) -> int:
        """The most probable token; ties go to the lowest id."""
        return distribution.argmax()

    def verify(
        self, device: Distribution, cloud: Distribution, *, eta_device: float, seed: int, step: int
    ) -> Verification:
        """The most probable token of the mixture (Eq. 4)."""
        target = target_distribution(device, cloud, eta_device).argmax()
        device_token, cloud_token = device.argmax(), cloud.argmax()
        return Verification(
            target=target,
            device_token=device_token,
            cloud_token=cloud_token,
            acceptance_device=float(device_token == target),
            acceptance_cloud=float(cloud_token == target),
        )


LOTTERY = "lottery"
"""The rule by which a draft is drawn as for coupled drafts, and the token is the draft of one party (`draw_owner`)."""
DRAFT_RULES = (Coupled.name, Algorithm1.name)
"""Names of the draft rules by which whole votes are verified."""


def draft_rule(name: str, temperature: float) -> DraftRule:
    """The rule of that name; at temperature 0 its greedy form. ConfigError on a bad name or number."""
    if name not in DRAFT_RULES:
        raise ConfigError(f"The draft rule {name!r} is unknown; {did_you_mean(name, DRAFT_RULES)}")
    if not (temperature >= 0.0 and math.isfinite(temperature)):
        raise ConfigError(f"The temperature must be finite and >= 0, got {temperature}; set 0 to be greedy.")
    if temperature == 0.0:
        return GreedyRule(name)
    return Coupled() if name == Coupled.name else Algorithm1()


# ---- How proposed tokens are verified where the drafter has no vote ----------------------------------------


class ProposalRule(Protocol):
    """A proposal rule: how a drafter without a vote draws, and how the only voter chooses."""

    @property
    def name(self) -> str:
        """The name in configuration and handshake."""

    @property
    def needs_drafts(self) -> bool:
        """Whether the distributions that tokens were drawn from must travel with them."""

    def draft(self, distribution: Distribution, *, seed: int, step: int) -> int:
        """A token drawn from the drafter's distribution. step: output position, 0-based, whatever the proposal."""

    def choose(
        self,
        target: Distribution,
        proposed: int | None,
        draft: Distribution | None = None,
        *,
        seed: int,
        step: int,
    ) -> int:
        """The token at one place, an exact draw from the target p; `proposed` stands if it is that one.

        proposed: None behind the last proposed token. draft: what it was drawn from, where `needs_drafts`. Raises
        ProtocolError.
        """


class RejectionProposals:
    """Acceptance with probability min(1, p/q), correction from norm(max(0, p - q)), bonus from p.

    Draft, acceptance and correction of a step have independent uniform numbers. The number of a step's draft is the
    same again after a rollback; the tokens thrown away with the first draft influenced nothing that was committed.
    """

    name = "rejection"
    needs_drafts = True

    def draft(self, distribution: Distribution, *, seed: int, step: int) -> int:
        """The quantile of the distribution at the step's uniform number."""
        return draw(distribution, uniform(seed, Purpose.DRAFT_DEVICE, step))

    def choose(
        self,
        target: Distribution,
        proposed: int | None,
        draft: Distribution | None = None,
        *,
        seed: int,
        step: int,
    ) -> int:
        """The proposed token if it is accepted, else one that it never is; without a proposal a draw from p."""
        left: Distribution | None = target
        if proposed is not None and draft is not None:
            if uniform(seed, Purpose.ACCEPTANCE, step) < acceptance(proposed, draft, target):
                return proposed
            left = residual(draft, target)
        if left is None:  # p and q are equal up to rounding, and the token stands
            assert proposed is not None
            return proposed
        return draw(left, uniform(seed, Purpose.CORRECTION, step))


def acceptance(token: int, draft: Distribution, target: Distribution) -> float:
    """min(1, p(x) / q(x)) (QS Eq. 1). ProtocolError if q(x) = 0: x cannot have been drawn from q."""
    if draft.probability(token) <= 0.0:
        raise ProtocolError(
            f"A proposed token must have a probability above zero in its own draft distribution, but token {token} has "
            "none; drop the proposal and ask the drafter again."
        )
    return keep_probability(token, draft, target, 1.0)


PROPOSAL_RULES = (Coupled.name, RejectionProposals.name)
"""Names of the rules."""


def proposal_rule(name: str, temperature: float) -> ProposalRule:
    """The rule of that name; at temperature 0 its greedy form. ConfigError on a bad name."""
    if name not in PROPOSAL_RULES:
        raise ConfigError(f"The proposal rule {name!r} is unknown; {did_you_mean(name, PROPOSAL_RULES)}")
    if temperature == 0.0:
        return GreedyRule(name)
    return Coupled() if name == Coupled.name else RejectionProposals()
