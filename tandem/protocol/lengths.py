"""The lengths of one query's proposals: rounds in, estimates of them, the next length out.

Coordinator --Rounds--> RoundProfilingSession --RoundProfile--> LengthSession --ProposalLength--> decoder. No token ever
waits for it: a proposal that has begun may have the length before.
"""

from __future__ import annotations

from math import isnan

from tandem.messages import ProposalLength, Round, RoundProfile
from tandem.modes.spec import SessionSpec
from tandem.profiler.rounds import RoundEstimator
from tandem.protocol.outbox import Send
from tandem.scheduler.lengths import BestLength, LengthPolicy, RoundCosts, make_length_policy


class RoundProfilingSession:
    """Estimates of the rounds of one query, at the party that drafts."""

    def __init__(self, spec: SessionSpec, before: RoundProfilingSession | None = None) -> None:
        """before: an earlier query, whose estimates are the first of this one as far as they apply."""
        self.spec = spec
        self._estimator = _new_estimator(spec) if before is None else before.carry_over(spec)

    def carry_over(self, spec: SessionSpec) -> RoundEstimator:
        """This query's estimates for another one: times if both deciders go on or neither does, rates if drafts are
        alike."""
        goes_on = [each.rules.pacing == "cloud_goes_on" for each in (spec, self.spec)]
        if goes_on[0] != goes_on[1] or spec.rules.longest_proposal != self.spec.rules.longest_proposal:
            return _new_estimator(spec)
        is_alike = _drafts_of(spec) == _drafts_of(self.spec)
        return self._estimator.carry_over(acceptance=is_alike, is_pipelined=spec.rules.pacing == "pipelined")

    def begin(self) -> list[Send]:
        """What earlier queries showed, if there were any."""
        profile = self.profile()
        return [] if isnan(profile.fixed_s) else [Send("scheduler", profile)]

    def observe(self, *rounds: Round) -> list[Send]:
        """Take in rounds."""
        for observed in rounds:
            self._estimator.add(observed)
        return [Send("scheduler", self.profile(*rounds))]

    def profile(self, *rounds: Round) -> RoundProfile:
        """The present estimates. rounds: taken in since the last profile."""
        acceptance, costs = self._estimator.acceptance, self._estimator.costs
        return RoundProfile(
            session=self.spec.session,
            rounds=rounds,
            rates=acceptance.rates,
            error=acceptance.error,
            fixed_s=costs.fixed_s,
            token_s=costs.token_s,
            alone_s=costs.alone_s,
            draft_s=costs.draft_s,
            pass_s=costs.pass_s,
        )


class LengthSession:
    """Chooses the lengths of one query's proposals."""

    def __init__(
        self, spec: SessionSpec, policy: LengthPolicy | None = None, before: LengthSession | None = None
    ) -> None:
        """policy: default the one that the query asks for. before: an earlier query; proposals that did not pay are
        tried again only after many tokens, and an answer may be short."""
        self.spec = spec
        self._policy = policy or make_length_policy(spec.decoding.length_policy, spec.rules.longest_proposal)
        if policy is None and before is not None and before.spec.rules.pacing == spec.rules.pacing:
            earlier = before._policy
            if isinstance(self._policy, BestLength) and isinstance(earlier, BestLength):
                self._policy = BestLength(earlier.num_alone)

    def observe(self, profile: RoundProfile) -> list[Send]:
        """Take in rounds and estimates; nothing follows before the time of a round is known.

        The length is repeated with every profile, since the decoder may have restarted.
        """
        for observed in profile.rounds:
            self._policy.observe(observed.length, observed.num_accepted)
        if isnan(profile.fixed_s):
            return []
        costs = RoundCosts(
            fixed_s=profile.fixed_s,
            token_s=profile.token_s,
            alone_s=profile.alone_s,
            draft_s=profile.draft_s,
            pass_s=profile.pass_s,
        )
        chosen = self._policy.choose(profile.rates, costs, profile.error)
        length = max(0, min(int(chosen), self.spec.rules.longest_proposal))
        return [Send("decoder", ProposalLength(session=self.spec.session, length=length))]


def _new_estimator(spec: SessionSpec) -> RoundEstimator:
    return RoundEstimator(
        spec.rules.longest_proposal,
        goes_on=spec.rules.pacing == "cloud_goes_on",
        is_pipelined=spec.rules.pacing == "pipelined",
    )


def _drafts_of(spec: SessionSpec) -> tuple[object, ...]:
    """What the acceptance of a draft depends on, besides the question."""
    return spec.decoding.draft_rule, spec.sampling.without_end(), *sorted(spec.documents.items())
