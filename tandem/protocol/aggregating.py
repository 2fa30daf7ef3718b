"""One session as an aggregator sees it: a ballot in, a result out. How it is decided is up to the mode.

It keeps nothing between steps but the scheduler's last advice on placement, so a restarted aggregator decides the
same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tandem.aggregation.race_lists import RaceList
from tandem.codecs import Codec
from tandem.codecs.token import TargetLogprobs, log_probabilities, read_named_token
from tandem.messages import Ballot, Logprobs, Placement, VerifyResult
from tandem.modes.spec import SessionSpec
from tandem.modes.tally import Tally, UnreadableVoteError
from tandem.protocol.estimating import policy_of
from tandem.protocol.outbox import Send
from tandem.protocol.table import SessionTable, misdirected
from tandem.scheduler.policies import Policy
from tandem.topology import PARTIES, Party


class AggregatorSession:
    """Decides the steps of one query."""

    def __init__(self, spec: SessionSpec, party: str, codec: Codec, policy: Policy | None = None) -> None:
        """policy: default the one that the query asks for."""
        self.spec = spec
        self.party = party
        self._rules = spec.rules
        self._policy = policy
        if policy is None and self._rules.is_placed:
            self._policy = policy_of(spec)
        self._advice: Party | None = None  # of the scheduler: who is to aggregate after a remote rejection
        self._codec = self._rules.codec_of_votes(codec)

    def decide(self, ballot: Ballot) -> VerifyResult:
        """The next tokens, by the votes that are there. Raises ProtocolError if the own vote cannot be read."""
        roles = self._rules.roles
        tally = Tally(self.spec, roles, self.party, self._codec, ballot, self._policy, self._advice)
        try:
            result = self._rules.decide(tally)
        except UnreadableVoteError as error:
            if error.voter == roles.topology.index(self.party):
                raise
            return tally.make_result(unreadable=(error.voter,), problem=str(error))
        if result.tokens and self._rules.names_logprobs(self.party):
            return replace(result, logprobs=self._logprobs(tally, result.tokens))
        return result

    def advise(self, aggregator: Party) -> None:
        """The party that is to aggregate after a rejection of the remote draft; holds until the next advice."""
        self._advice = aggregator

    def _logprobs(self, tally: Tally, tokens: Sequence[int]) -> tuple[Logprobs, ...]:
        """Log probabilities of the decided tokens, as far as all votes are known in full."""
        known: list[Logprobs] = []
        for position, token in enumerate(tokens):
            found = self._find_logprobs(tally, position, token)
            if found is None:
                break
            ids, logprobs = zip(*found.top, strict=True) if found.top else ((), ())
            known.append(Logprobs(logprob=found.token, top_ids=ids, top_logprobs=logprobs))
        return tuple(known)

    def _find_logprobs(self, tally: Tally, position: int, token: int) -> TargetLogprobs | None:
        """Log probabilities of the token behind so many proposed ones; None: a vote is not known in full."""
        if self._names_token(tally):
            return read_named_token(tally.payloads(position)[0], self.spec.vocab_size)[1]
        if self._rules.has_race_lists and any(
            isinstance(vote, RaceList) for vote in tally.read_votes(position)
        ):
            return None
        target = tally.mix(position)
        return (
            log_probabilities(target, token, self.spec.num_logprobs or 0)
            if target.probability(token)
            else None
        )

    def _names_token(self, tally: Tally) -> bool:
        """Whether payloads are tokens: votes of the only voter, or drafts by which a party without a vote continues."""
        votes = self._rules.roles.role(tally.voters[0]).votes
        return self._rules.votes_are_tokens if votes else not self._rules.needs_drafts


class AggregatingTable(SessionTable[AggregatorSession]):
    """The aggregator of one party."""

    def __init__(self, party: str, codec: Codec) -> None:
        super().__init__(party)
        self.codec = codec

    def _open(self, spec: SessionSpec) -> AggregatorSession:
        return AggregatorSession(spec, self.party, self.codec)

    def _act(self, session: AggregatorSession, message: Any) -> list[Send]:
        match message:
            case Ballot():
                return [Send("draft_queue", session.decide(message))]
            case Placement():
                session.advise(PARTIES[message.aggregator])
                return []
            case _:
                raise misdirected(message, "an aggregator")
