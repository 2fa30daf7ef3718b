"""One session as an aggregator sees it: a ballot in, a result out. How it is decided is up to the mode.

It keeps nothing between steps but the scheduler's last advice on placement, so a restarted aggregator decides the
same tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tandem.codecs import Codec
from tandem.messages import Ballot, Placement, VerifyResult
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
        return replace(result, tail=self._rules.make_tail(tally, result.tokens))

    def advise(self, aggregator: Party) -> None:
        """The party that is to aggregate after a rejection of the remote draft; holds until the next advice."""
        self._advice = aggregator


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
