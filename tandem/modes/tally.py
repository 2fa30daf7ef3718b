"""One ballot as its decider reads it: the votes, how much each of them counts, and the result made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tandem.aggregation.distributions import Distribution
from tandem.aggregation.race_lists import Race, RaceList, RaceResult, RaceVote, decide_race
from tandem.aggregation.rules import draw_owner, mix_by_weights
from tandem.codecs.base import Codec
from tandem.codecs.votes import read_token, read_vote
from tandem.errors import ProtocolError
from tandem.messages import Ballot, VerifyResult
from tandem.modes.query import QuerySpec, Roles
from tandem.scheduler import Policy
from tandem.topology import Party, in_words

T = TypeVar("T")


class UnreadableVoteError(ProtocolError):
    """A vote cannot be decoded."""

    def __init__(self, voter: int, problem: str) -> None:
        """voter: its index in the topology. problem: one sentence that names it."""
        super().__init__(problem)
        self.voter = voter


class Tally:
    """A ballot with what is needed to read it. position: so many proposed tokens behind the ballot's prefix."""

    def __init__(
        self,
        spec: QuerySpec,
        roles: Roles,
        party: str,
        codec: Codec,
        ballot: Ballot,
        policy: Policy | None = None,
        advice: Party | None = None,
    ) -> None:
        """party: who decides. codec: of the votes. policy, advice: who is to decide next, where that is a choice."""
        self.spec, self.roles, self.party, self.ballot = spec, roles, party, ballot
        self.policy, self.advice = policy, advice
        self.voters = [roles.topology.name(voter) for voter in ballot.voters]
        self._codec = codec

    @property
    def num_positions(self) -> int:
        """Prefixes that all voters have voted on, one after the other."""
        return len(self.ballot.payloads) // len(self.voters)

    def proposed(self, position: int) -> int | None:
        """The token that was proposed there."""
        return self.ballot.tokens[position] if position < len(self.ballot.tokens) else None

    def payloads(self, position: int = 0) -> Sequence[bytes]:
        """The votes of all voters there, as they were sent."""
        return self._row(self.ballot.payloads, position)

    # ---- reading the votes -------------------------------------------------------------------------------------

    def read_votes(self, position: int = 0) -> list[RaceVote]:
        """The votes there as far as they are known: race lists, or distributions. Raises UnreadableVoteError."""
        return self._read(position, lambda payload: read_vote(payload, self.spec.vocab_size))

    def decode_votes(self, position: int = 0) -> list[Distribution]:
        """The votes there as distributions. Raises UnreadableVoteError."""
        return self._read(position, lambda payload: self._codec.decode(payload, self.spec.vocab_size))

    def read_tokens(self, position: int = 0) -> list[int]:
        """The token there that each voter draws from its own distribution. Raises UnreadableVoteError."""
        return self._read(position, lambda payload: read_token(payload, self.spec.vocab_size))

    def owner(self, position: int = 0) -> int:
        """The place among the voters of the one whose draw is the token there."""
        if len(self.voters) == 1:
            return 0
        return draw_owner(self.shares(position), seed=self.spec.seed, step=self.ballot.step + position)

    def mix(self, position: int = 0) -> Distribution:
        """The votes there as one distribution (Eq. 4)."""
        votes = self.decode_votes(position)
        return votes[0] if len(votes) == 1 else mix_by_weights(votes, self.shares(position))

    def shares(self, position: int = 0) -> tuple[float, ...]:
        """How much each voter counts there (`Roles.shares`)."""
        log_weights = self._row(self.ballot.log_weights, position)
        return self.roles.shares(self.ballot.voters, log_weights, self.spec.max_peer_share)

    def weigh(self, probabilities: Sequence[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """`own` and `most` of a `VerifyResult`, by the probability that each vote gives its token; none but at home."""
        if self.party != self.roles.topology.home:
            return (), ()
        parts = [share * each for share, each in zip(self.shares(), probabilities, strict=True)]
        own, most = parts[self.voters.index(self.party)], sum(parts)
        return (own / most if own else 0.0,), (most,)

    def decide_race(
        self, votes: Sequence[RaceVote], position: int = 0, shortlists: Sequence[RaceList] | None = None
    ) -> RaceResult:
        """Race the mixture of these votes (Eq. 4). shortlists: of each, where they were taken."""
        return decide_race(votes, self.shares(position), shortlists=shortlists, **self.race(position))

    def race(self, position: int = 0) -> Race:
        """The race there, by its noise."""
        spec = self.spec
        return Race(seed=spec.seed, step=self.ballot.step + position, temperature=spec.sampling.temperature)

    def _row(self, values: Sequence[T], position: int) -> Sequence[T]:
        size = len(self.voters)
        return values[position * size : (position + 1) * size]

    def _read(self, position: int, read: Callable[[bytes], T]) -> list[T]:
        votes = []
        for name, voter, payload in zip(
            self.voters, self.ballot.voters, self.payloads(position), strict=True
        ):
            try:
                votes.append(read(payload))
            except ProtocolError:
                raise UnreadableVoteError(
                    voter,
                    f"The vote of {in_words(name)} cannot be read; install the same version of Tandem there.",
                ) from None
        return votes

    # ---- the result --------------------------------------------------------------------------------------------

    def make_result(self, **values: Any) -> VerifyResult:
        """The result of this ballot. values: its further fields."""
        ballot = self.ballot
        return VerifyResult(
            session=ballot.session,
            view=ballot.view,
            digest=ballot.digest,
            step=ballot.step,
            voters=ballot.voters,
            **values,
        )

    def make_undecided(self, votes: Sequence[RaceVote]) -> VerifyResult:
        """These votes leave the winner open: lists of what length may settle it."""
        depths = (
            vote.next_depth if isinstance(vote, RaceList) and not vote.is_complete else 0 for vote in votes
        )
        return self.make_result(depths=tuple(depths))
