"""One session as an aggregator sees it: a ballot in, a result out.

It keeps nothing between steps but the scheduler's last advice on placement, so a restarted aggregator decides the
same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import nan
from typing import TypeVar

from tandem.aggregation.distributions import Distribution, TargetLogprobs, log_probabilities
from tandem.aggregation.race_lists import (
    Certificate,
    Race,
    RaceList,
    RaceVote,
    first_look,
    leader,
    settle,
)
from tandem.aggregation.rules import DRAFT_RULES, draft_rule, mix_by_weights, shares
from tandem.codecs import Codec
from tandem.codecs.race_lists import read_vote
from tandem.codecs.token import read_named_token, read_token
from tandem.errors import ProtocolError
from tandem.messages import Ballot, Logprobs, Undecided, VerifyResult
from tandem.modes.spec import SessionSpec
from tandem.protocol.scheduling import policy_of
from tandem.scheduler.policies import Policy
from tandem.topology import PARTIES, Party, in_words

T = TypeVar("T")


class UnreadableVoteError(ProtocolError):
    """A vote cannot be decoded."""

    def __init__(self, voter: int, problem: str) -> None:
        """voter: its index in the topology. problem: one sentence that names it."""
        super().__init__(problem)
        self.voter = voter


class AggregatorSession:
    """Decides the steps of one query."""

    def __init__(self, spec: SessionSpec, party: str, codec: Codec, policy: Policy | None = None) -> None:
        """policy: default the one that the query asks for."""
        self.spec = spec
        self.party = party
        self.roles = spec.roles
        self._policy = policy
        if policy is None and spec.mode == "dual":
            self._policy = policy_of(spec)
        self._advice: Party | None = None  # of the scheduler: who is to aggregate after a remote rejection
        self._codec = spec.codec_of_votes(codec)
        rule = DRAFT_RULES[0] if spec.votes_are_tokens else spec.draft_rule
        self._rule = draft_rule(rule, spec.sampling.temperature)

    def decide(self, ballot: Ballot) -> VerifyResult | Undecided:
        """The next tokens, by the votes that are there. Raises ProtocolError if the own vote cannot be read."""
        try:
            result = self._decide(ballot)
        except UnreadableVoteError as error:
            if error.voter == self.roles.topology.index(self.party):
                raise
            return replace(_make_undecided(ballot, ()), unreadable=(error.voter,), problem=str(error))
        if isinstance(result, VerifyResult) and self.spec.names_logprobs(self.party):
            return replace(result, logprobs=self._logprobs(ballot, result.tokens))
        return result

    def _decide(self, ballot: Ballot) -> VerifyResult | Undecided:
        if len(ballot.voters) == 2 and self.roles.mode == "dual":
            return self._decide_race(ballot) if self.spec.has_race_lists else self._decide_pair(ballot)
        return self._decide_line(ballot)

    def _decide_pair(self, ballot: Ballot) -> VerifyResult:
        """Algorithm 1 or the coupled race on the two decoded distributions (Eq. 4)."""
        eta_device, _ = self._shares(ballot)
        device, cloud = self._decode_votes(ballot)
        decision = self._rule.verify(
            device, cloud, eta_device=eta_device, seed=self.spec.seed, step=ballot.step
        )
        return self._decided_by_pair(
            ballot,
            decision.target,
            accepted=(decision.device_accepted, decision.cloud_accepted),
            acceptance=(decision.acceptance_device, decision.acceptance_cloud),
        )

    def _decide_race(self, ballot: Ballot) -> VerifyResult | Undecided:
        """The winner of the race of the full mixture (Eq. 4), if what is known of the votes makes it certain.

        The expected acceptance takes whole distributions, so it is the outcome, 0 or 1, whose mean is the same.
        """
        votes = self._read_votes(ballot)
        race = self._race(ballot)
        looks = [first_look(vote, **race) for vote in votes]
        certificate = settle(votes, self._shares(ballot), looks=looks, **race)
        if not certificate.is_certain:
            return _make_undecided(ballot, votes)
        device, cloud = (leader(look, **race) == certificate.winner for look in looks)
        return self._decided_by_pair(
            ballot,
            certificate.winner,
            accepted=(device, cloud),
            acceptance=(float(device), float(cloud)),
        )

    def _decided_by_pair(
        self, ballot: Ballot, target: int, *, accepted: tuple[bool, bool], acceptance: tuple[float, float]
    ) -> VerifyResult:
        own = PARTIES[self.roles.topology.index(self.party)]
        assert self._policy is not None
        next_decider = self._policy.choose_next(
            ballot.step + 1, own, remote_accepted=accepted[PARTIES.index(own.other)], advice=self._advice
        )
        return _make_result(
            ballot,
            tokens=(target,),
            accepted=tuple(map(int, accepted)),
            acceptance=acceptance,
            next_decider=PARTIES.index(next_decider),
        )

    def _decide_line(self, ballot: Ballot) -> VerifyResult | Undecided:
        """The target of each prefix that was voted on, as long as the proposal gives it, and then the first other one.

        That one is the correction of a rejected token, or the bonus behind the last. A voter without company is drawn
        from as it drafts. Race lists may leave a target open: what stands before it is decided.
        """
        tokens: list[int] = []
        num_accepted, num_voters = 0, len(ballot.voters)
        drafters = self.roles.drafters
        own = [self.roles.topology.name(voter) for voter in ballot.voters]
        is_single = num_voters == 1 and own[0] in drafters  # its draft is the target
        for position in range(len(ballot.payloads) // num_voters):
            proposed = ballot.tokens[position] if position < len(ballot.tokens) else None
            is_draft = is_single and proposed is not None
            try:
                token = proposed if is_draft else self._choose(ballot, position)
            except UnreadableVoteError:
                if not tokens:
                    raise
                break  # what stands before it is decided
            if token is None:
                break
            tokens.append(token)
            if token != proposed:
                break
            num_accepted += 1
        if not tokens:
            return _make_undecided(ballot, self._read_votes(ballot))
        return _make_result(
            ballot,
            tokens=tuple(tokens),
            accepted=tuple(
                int(drafter == own[0]) * len(tokens) if is_single else num_accepted for drafter in drafters
            ),
            acceptance=(nan,) * len(drafters),
            next_decider=self.roles.topology.index(self.party),
        )

    def _choose(self, ballot: Ballot, position: int) -> int | None:
        """The target behind so many proposed tokens; None: race lists leave it open."""
        payloads = _row(ballot.payloads, ballot, position)
        if self.spec.votes_are_tokens:
            return read_token(payloads[0], self.spec.vocab_size)
        if self.spec.has_race_lists and self.roles.mode == "federated":
            certificate = self._settle(ballot, position)
            return certificate.winner if certificate.is_certain else None
        target = self._mix(ballot, position)
        name = self.roles.topology.name(ballot.voters[0])
        party = Party(name) if name in PARTIES else Party.CLOUD
        return self._rule.draft(target, seed=self.spec.seed, step=ballot.step + position, party=party)

    def _logprobs(self, ballot: Ballot, tokens: Sequence[int]) -> tuple[Logprobs, ...]:
        """Of the tokens that were decided, as far as all votes are known in full."""
        known: list[Logprobs] = []
        for position, token in enumerate(tokens):
            found = self._find_logprobs(ballot, position, token)
            if found is None:
                break
            ids, logprobs = zip(*found.top, strict=True) if found.top else ((), ())
            known.append(Logprobs(logprob=found.token, top_ids=ids, top_logprobs=logprobs))
        return tuple(known)

    def _find_logprobs(self, ballot: Ballot, position: int, token: int) -> TargetLogprobs | None:
        """Of the token behind so many proposed ones; None: a vote is not known in full."""
        if self._names_token(ballot):
            return read_named_token(_row(ballot.payloads, ballot, position)[0], self.spec.vocab_size)[1]
        if self.spec.has_race_lists and any(
            isinstance(vote, RaceList) for vote in self._read_votes(ballot, position)
        ):
            return None
        target = self._mix(ballot, position)
        return (
            log_probabilities(target, token, self.spec.num_logprobs or 0)
            if target.probability(token)
            else None
        )

    def _names_token(self, ballot: Ballot) -> bool:
        """Whether payloads are tokens: votes of the only voter, or drafts that a party without a vote goes on with."""
        votes = self.roles.role(self.roles.topology.name(ballot.voters[0])).votes
        return self.spec.votes_are_tokens if votes else not self.spec.sends_drafts

    def _mix(self, ballot: Ballot, position: int) -> Distribution:
        """The votes behind so many proposed tokens as one distribution."""
        votes = self._decode_votes(ballot, position)
        return votes[0] if len(votes) == 1 else mix_by_weights(votes, self._shares(ballot, position))

    def _settle(self, ballot: Ballot, position: int) -> Certificate:
        """What the votes behind so many proposed tokens say of the race of their mixture (Eq. 4)."""
        votes, shares = self._read_votes(ballot, position), self._shares(ballot, position)
        return settle(votes, shares, **self._race(ballot, position))

    def _race(self, ballot: Ballot, position: int = 0) -> Race:
        """Whose noise the race behind so many proposed tokens has."""
        return Race(
            seed=self.spec.seed, step=ballot.step + position, temperature=self.spec.sampling.temperature
        )

    def _shares(self, ballot: Ballot, position: int = 0) -> tuple[float, ...]:
        """How much each voter counts behind so many proposed tokens: by its documents, or by the weights of the roles.

        What is left of the voters is scaled to sum 1 either way.
        """
        if self.roles.weighs_by_documents:
            return shares(*_row(ballot.log_weights, ballot, position))
        return self.roles.shares(ballot.voters)

    def _read_votes(self, ballot: Ballot, position: int = 0) -> list[RaceVote]:
        return self._read(ballot, position, lambda payload: read_vote(payload, self.spec.vocab_size))

    def _decode_votes(self, ballot: Ballot, position: int = 0) -> list[Distribution]:
        return self._read(ballot, position, lambda payload: self._codec.decode(payload, self.spec.vocab_size))

    def _read(self, ballot: Ballot, position: int, read: Callable[[bytes], T]) -> list[T]:
        """What all voters say behind so many proposed tokens. Raises UnreadableVoteError."""
        votes = []
        for voter, payload in zip(ballot.voters, _row(ballot.payloads, ballot, position), strict=True):
            try:
                votes.append(read(payload))
            except ProtocolError as error:
                name, problem = self.roles.topology.name(voter), str(error).partition(";")[0]
                raise UnreadableVoteError(
                    voter,
                    f"The vote of {in_words(name)} cannot be read ({problem}); install the same version of Tandem "
                    "there.",
                ) from None
        return votes

    def advise(self, aggregator: Party) -> None:
        """Who is to aggregate after a rejection of the remote draft; holds until the next advice."""
        self._advice = aggregator


def _row(values: Sequence[T], ballot: Ballot, position: int) -> Sequence[T]:
    """Those of all voters behind so many proposed tokens."""
    size = len(ballot.voters)
    return values[position * size : (position + 1) * size]


def _make_result(
    ballot: Ballot,
    *,
    tokens: tuple[int, ...],
    accepted: tuple[int, ...],
    acceptance: tuple[float, ...],
    next_decider: int,
) -> VerifyResult:
    return VerifyResult(
        session=ballot.session,
        view=ballot.view,
        digest=ballot.digest,
        step=ballot.step,
        voters=ballot.voters,
        tokens=tokens,
        accepted=accepted,
        acceptance=acceptance,
        next_decider=next_decider,
    )


def _make_undecided(ballot: Ballot, votes: Sequence[RaceVote]) -> Undecided:
    return Undecided(
        session=ballot.session,
        view=ballot.view,
        digest=ballot.digest,
        step=ballot.step,
        voters=ballot.voters,
        depths=tuple(
            vote.next_depth if isinstance(vote, RaceList) and not vote.is_complete else 0 for vote in votes
        ),
    )
