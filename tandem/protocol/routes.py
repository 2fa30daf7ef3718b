"""Who sends what to whom: all in which the modes differ on the link. A function of the roles and the query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tandem.errors import ProtocolError
from tandem.modes.roles import Roles, find_mode
from tandem.protocol.logprobs import LogprobLimits
from tandem.protocol.messages import (
    LinkBody,
    ListRequest,
    Proposal,
    RelayedSources,
    Resync,
    Verdict,
    VerdictToHome,
    VerdictWithLogprobs,
    Votes,
)
from tandem.protocol.spec import SessionSpec
from tandem.topology import Topology


class Routes:
    """What one party sends to its peers, and what it takes from them.

    Invariant: nothing here depends on what has happened in the session.
    """

    def __init__(
        self,
        roles: Roles,
        party: str,
        *,
        is_mirrored: bool = False,
        sends_drafts: bool = False,
        logprob_limits: LogprobLimits | None = None,
    ) -> None:
        """is_mirrored: all parties decide every step by themselves. sends_drafts: of a drafter without a vote, too, the
        distributions of its tokens travel. logprob_limits: of what comes with verdicts; None: nothing does."""
        self.roles, self.party = roles, party
        self._sends_drafts, self._logprob_limits = sends_drafts, logprob_limits
        self._mode = find_mode(roles.mode)
        peers = roles.topology.peers(party)
        own = roles.role(party)
        voters = tuple(peer for peer in peers if roles.role(peer).votes)
        deciders = tuple(peer for peer in peers if roles.role(peer).decides)
        follows = self._mode.has_bonus
        self.proposals_go_to = (voters if follows else deciders) if own.drafts else ()
        self.votes_go_to = deciders if own.votes and follows else ()
        self.toward_home = roles.topology.toward_home(party)  # the peer through which the home is reached
        self.verdicts_go_to = peers if own.decides and not is_mirrored else ()
        self.follows_proposals = own.votes and follows
        self.leads = own.drafts and follows  # proposes, and does not vote

    @classmethod
    def of(cls, spec: SessionSpec, party: str) -> Routes:
        """Those of one query."""
        return cls(
            spec.roles,
            party,
            is_mirrored=spec.is_mirrored,
            sends_drafts=spec.sends_drafts,
            logprob_limits=LogprobLimits.of(spec),
        )

    @property
    def topology(self) -> Topology:
        """The parties of the session."""
        return self.roles.topology

    @property
    def is_authority(self) -> bool:
        """Whether the tokens of this party win a divergence."""
        return self.party == self.topology.authority

    @property
    def is_home(self) -> bool:
        """Whether the client asked this party."""
        return self.party == self.topology.home

    @property
    def has_others_behind(self) -> bool:
        """Whether this party stands between the home and others."""
        return len(self.topology.peers(self.party)) > 1

    def make_public(self, proposal: Proposal) -> Proposal:
        """A proposal as the peers need it: of a drafter without a vote ids are enough."""
        if self._mode.drafters_vote or self._sends_drafts:
            return proposal
        return replace(proposal, payloads=(), log_weights=())

    def check(self, source: str, body: LinkBody) -> None:
        """Raise ProtocolError, one sentence, if `source` may not send this body."""
        match body:
            case Proposal():
                self._check_proposal(source, body)
            case Votes():
                self._check_votes(source, body)
            case Verdict():
                self._check_verdict(source, body)
            case Resync():
                self._check_resync(source, body)
            case RelayedSources():
                self._check_relayed(source, body.party)
            case ListRequest():
                self._check_request(source)
            case _:
                pass

    def _check_proposal(self, source: str, proposal: Proposal) -> None:
        if not self.roles.role(source).drafts:
            raise ProtocolError(
                f"{source} sent a proposal, but it does not draft in mode {self.roles.mode}; check its settings."
            )
        self._check_sender(source, proposal.party, "a proposal")
        least, most = int(self._mode.drafters_vote), self._mode.max_proposal
        if not least <= len(proposal.tokens) <= most:
            raise ProtocolError(
                f"A proposal in mode {self.roles.mode} has {f'0 to {most} tokens' if most > 1 else '1 token'} "
                f"(got {len(proposal.tokens)} from {source}); check its settings."
            )
        count = len(proposal.tokens)
        self._check_values(source, "distributions", proposal.payloads, count, is_due=self._sends_drafts)
        self._check_values(source, "log weights", proposal.log_weights, count)

    def _check_values(
        self, source: str, what: str, values: Sequence[object], count: int, *, is_due: bool = False
    ) -> None:
        due = count if self._mode.drafters_vote or is_due else 0
        if len(values) != due:
            raise ProtocolError(
                f"A proposal of {count} token{'s' * (count != 1)} in mode {self.roles.mode} comes with {due} {what} "
                f"(got {len(values)} from {source}); check its version."
            )

    def _check_votes(self, source: str, votes: Votes) -> None:
        if not self.roles.role(source).votes:
            raise ProtocolError(
                f"{source} sent votes, but it has none in mode {self.roles.mode}; check its settings."
            )
        if not self._mode.has_bonus:
            raise ProtocolError(
                f"{source} sent votes apart from proposals, which mode {self.roles.mode} does not have; "
                "check its settings."
            )
        self._check_sender(source, votes.party, "votes")
        if len(votes.digests) != len(votes.payloads):
            raise ProtocolError(
                f"{source} sent {len(votes.payloads)} votes on {len(votes.digests)} prefixes; check its version."
            )
        due = len(votes.digests) if self.roles.weighs_by_documents else 0
        if len(votes.log_weights) != due:
            raise ProtocolError(
                f"{source} sent {len(votes.log_weights)} log weights with {len(votes.digests)} votes, of which this "
                f"query has {due}; check its version."
            )

    def _check_verdict(self, source: str, verdict: Verdict) -> None:
        if not self.roles.role(source).decides:
            raise ProtocolError(
                f"{source} sent a verdict, but it does not decide in mode {self.roles.mode}; check its settings."
            )
        num_drafters = len(self.roles.drafters)
        if len(verdict.accepted) != num_drafters or len(verdict.acceptance) not in (0, num_drafters):
            raise ProtocolError(
                f"A verdict in mode {self.roles.mode} counts for {num_drafters} drafters "
                f"(got {len(verdict.accepted)} from {source}); check its version."
            )
        if not verdict.tokens:
            raise ProtocolError(f"{source} sent a verdict without a token; check its version.")
        if any(mask >> len(verdict.tokens) for mask in verdict.accepted):
            raise ProtocolError(
                f"{source} sent a verdict that accepts more than its tokens; check its version."
            )
        if isinstance(verdict, VerdictToHome):
            self._check_told(source, verdict)
        if isinstance(verdict, VerdictWithLogprobs):
            self._check_logprobs(source, verdict)
        self._check_decider(source, verdict.next_decider)

    def _check_told(self, source: str, verdict: VerdictToHome) -> None:
        """What a decider says of parties behind it."""
        for party in verdict.lost:
            self._check_relayed(source, party)
        if len(verdict.last_voters) != len(verdict.tokens):
            raise ProtocolError(
                f"{source} named the last voters of {len(verdict.last_voters)} tokens in a verdict of "
                f"{len(verdict.tokens)}; check its version."
            )
        for party in verdict.last_voters:
            if party >= len(self.roles.roles):
                raise ProtocolError(f"{source} named party {party}, which there is not; check its version.")

    def _check_relayed(self, source: str, party: int) -> None:
        """Of a party behind the sender, to the home."""
        behind = {name for name in self.topology.parties if name not in (source, self.party)}
        if not self.is_home or party >= len(self.roles.roles) or self.topology.name(party) not in behind:
            raise ProtocolError(
                f"{source} sent word of party {party}, which is none behind it; check its settings."
            )

    def _check_logprobs(self, source: str, verdict: VerdictWithLogprobs) -> None:
        if isinstance(verdict, VerdictToHome) and not verdict.logprobs:
            return
        limits = self._logprob_limits
        if limits is None or not self.is_home:
            raise ProtocolError(
                f"{source} sent log probabilities, which this query does not ask of it; check its version."
            )
        if len(verdict.logprobs) != len(verdict.tokens):
            raise ProtocolError(
                f"{source} sent log probabilities of {len(verdict.logprobs)} tokens in a verdict of "
                f"{len(verdict.tokens)}; check its version."
            )
        if not all(map(limits.allow, verdict.logprobs)):
            raise ProtocolError(
                f"{source} sent log probabilities that no distribution has, or more than {limits.num_top} of a step; "
                "check its version."
            )

    def _check_resync(self, source: str, resync: Resync) -> None:
        if source != self.roles.topology.authority:
            raise ProtocolError(
                f"{source} sent its tokens to be adopted, but {self.roles.topology.authority} is the authority; "
                "check its settings."
            )
        self._check_decider(source, resync.decider)

    def _check_request(self, source: str) -> None:
        if not self.roles.role(source).decides:
            raise ProtocolError(
                f"{source} asked for more of a vote, but it does not decide in mode {self.roles.mode}; "
                "check its settings."
            )

    def _check_sender(self, source: str, party: int, what: str) -> None:
        if party != self.roles.topology.index(source):
            raise ProtocolError(f"{source} sent {what} of party {party}; check its settings.")

    def _check_decider(self, source: str, party: int) -> None:
        parties = self.roles.topology.parties
        if party >= len(parties) or not self.roles.roles[party].decides:
            raise ProtocolError(
                f"{source} hands over to party {party}, which does not decide in mode {self.roles.mode}; "
                "check its settings."
            )
