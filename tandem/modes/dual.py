"""Mode dual (DRAGON): device and cloud both draft and both vote, weighed by their documents.

device --Vote--> who decides <--Vote-- cloud: a draft with its distribution, which is the vote; under `lottery` alone
who decides --Verdict--> the other, with who decides the next step; under `mirror` both decide, and nothing is sent
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tandem.aggregation.race_lists import leader, least_depth, most_probable, shortlist_of
from tandem.citations import Part
from tandem.config.parties import NO_INDEX
from tandem.messages import VerifyResult
from tandem.modes.mode import Mode
from tandem.modes.query import QuerySpec, Role, Roles
from tandem.modes.tally import Tally
from tandem.topology import PAIR, PARTIES, Party

SAME = ("weights_fingerprint", "template_fingerprint")


def adds_nothing(described: Mapping[str, Mapping[str, Any]], num_documents: int) -> bool:
    """Whether the cloud's vote would only draw the answer away from the device's documents.

    So where it reads no document, and its model and prompt are the device's: then the device has whatever the cloud
    knows. An index that is empty does not count as none: it may be filled while the cloud runs. described: what the
    parties have loaded. num_documents: that the cloud is asked to retrieve.
    """
    device, cloud = described.get(Party.DEVICE, {}), described.get(Party.CLOUD, {})
    has_none = num_documents == 0 or cloud.get("factory") == NO_INDEX
    return has_none and all(cloud.get(name) and cloud[name] == device.get(name) for name in SAME)


class Dual(Mode):
    """Both draft, both vote, one or both decide."""

    name = "dual"
    has_lottery = True
    is_placed = True

    def __init__(self, spec: QuerySpec) -> None:
        super().__init__(spec)
        self.all_decide = spec.decoding.effective_placement == "mirror"

    def assign_roles(self, spec: QuerySpec) -> Roles:
        """A placement that is not a party's name lets both decide, in turns or each alone."""
        placement = spec.decoding.effective_placement
        fixed = placement if placement in PARTIES else None
        return Roles(
            topology=PAIR,
            roles=tuple(
                Role(drafts=True, votes=True, decides=fixed in (None, party)) for party in PAIR.parties
            ),
        )

    @property
    def first_decider(self) -> Party:
        """Under `mirror` both do, and the device takes precedence after a loss. `greedy` begins on the device."""
        return Party.CLOUD if self.spec.decoding.placement == "cloud" else Party.DEVICE

    @property
    def title(self) -> str:
        """The mode with its placement, by which one of them may not decide."""
        return f"mode {self.name} with placement {self.spec.decoding.effective_placement}"

    def part_elsewhere(self, accepted: Sequence[bool]) -> Part | None:
        """The home's part, by what the verdict says of the drafts, too: only the owner's is sure to be the lottery's
        token, and at temperature 0 a token that is not the cloud's most probable one has at most half of its vote."""
        part, (device, cloud) = super().part_elsewhere(accepted), accepted
        if self.votes_are_tokens and device != cloud:
            return Part(float(device))
        is_second = self.spec.sampling.temperature == 0 and not cloud
        return part and part._replace(most=0.5 if is_second else part.most)

    # ---- deciding ----------------------------------------------------------------------------------------------

    def decide(self, tally: Tally) -> VerifyResult:
        """One token, by both votes; without the other party by the vote that is there."""
        if len(tally.voters) < 2:
            return super().decide(tally)
        if self.votes_are_tokens:
            return self._decide_lottery(tally)
        return self._decide_race(tally) if self.has_race_lists else self._decide_pair(tally)

    def _decide_pair(self, tally: Tally) -> VerifyResult:
        """Algorithm 1 or the coupled race on the two decoded distributions (Eq. 4)."""
        eta_device, _ = tally.shares()
        device, cloud = tally.decode_votes()
        decision = self.rule.verify(
            device, cloud, eta_device=eta_device, seed=self.spec.seed, step=tally.ballot.step
        )
        return self._make_result(
            tally,
            decision.target,
            accepted=(decision.device_accepted, decision.cloud_accepted),
            acceptance=(decision.acceptance_device, decision.acceptance_cloud),
            probabilities=[device.probability(decision.target), cloud.probability(decision.target)],
        )

    def _decide_race(self, tally: Tally) -> VerifyResult:
        """The winner of the race of the full mixture (Eq. 4), if what is known of the votes makes it certain.

        The expected acceptance takes whole distributions, so it is the outcome, 0 or 1, whose mean is the same.
        """
        votes, race = tally.read_votes(), tally.race()
        shortlists = [shortlist_of(vote, **race) for vote in votes]
        outcome = tally.decide_race(votes, shortlists=shortlists)
        if not outcome.is_certain:
            return tally.make_undecided(votes)
        device, cloud = (leader(shortlist, **race) == outcome.winner for shortlist in shortlists)
        return self._make_result(
            tally,
            outcome.winner,
            accepted=(device, cloud),
            acceptance=(float(device), float(cloud)),
            probabilities=[
                most_probable(vote, outcome.winner, least_depth(self.spec.race_depth), **race)
                for vote in votes
            ],
        )

    def _decide_lottery(self, tally: Tally) -> VerifyResult:
        """The draft of the party that owns the step. As for a race, the expected acceptance is the outcome."""
        drafts = tally.read_tokens()
        owner = tally.owner()
        target = drafts[owner]
        device, cloud = (draft == target for draft in drafts)
        return self._make_result(
            tally,
            target,
            accepted=(device, cloud),
            acceptance=(float(device), float(cloud)),
            probabilities=[float(place == owner) for place in range(2)],
        )

    def _make_result(
        self,
        tally: Tally,
        target: int,
        *,
        accepted: tuple[bool, bool],
        acceptance: tuple[float, float],
        probabilities: Sequence[float],
    ) -> VerifyResult:
        """probabilities: that each vote gives the target, or the most that it can be; of a drawn owner 1."""
        party = Party(tally.party)
        own, most = tally.weigh(probabilities)
        assert tally.policy is not None
        next_decider = tally.policy.choose_next(
            tally.ballot.step + 1,
            party,
            remote_accepted=accepted[PARTIES.index(party.other)],
            advice=tally.advice,
        )
        return tally.make_result(
            tokens=(target,),
            accepted=tuple(map(int, accepted)),
            acceptance=acceptance,
            next_decider=PARTIES.index(next_decider),
            own=own,
            most=() if self.votes_are_tokens else most,
        )
