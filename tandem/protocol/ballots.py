"""Proposals of both parties, and the ballots made of them."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan

from tandem.protocol.lineage import Lineage
from tandem.protocol.messages import Ballot, Proposal, SoloBallot
from tandem.protocol.prefix import Prefix
from tandem.topology import PARTIES, Party


class BallotBox:
    """The proposals of one session that may still count, and the ballot that is with the aggregator.

    Invariants: one proposal per party and prefix, the first that came, bytes included, whatever a restarted decoder
    computes again. A ballot holds only proposals conditioned on exactly the committed prefix. A prefix is put to the
    vote once per view, unless `reopen` is called. No proposal is held whose branch is known to be dead.
    """

    def __init__(self, session: int, party: Party) -> None:
        self.session = session
        self.party = party
        self.proposals: dict[Party, dict[bytes, Proposal]] = {party: {} for party in PARTIES}  # by digest
        self.arrived_s: dict[tuple[Party, bytes], float] = {}  # since the query was opened
        self.lineage = Lineage()
        self.pending: tuple[int, bytes] | None = None  # view and prefix of the ballot at the aggregator

    @property
    def own(self) -> Mapping[bytes, Proposal]:
        """This party's proposals, by the digest of their prefix."""
        return self.proposals[self.party]

    def hold(self, proposal: Proposal, arrived_s: float) -> Proposal:
        """Keep a proposal; returns the one that counts for its prefix."""
        self.lineage.add(proposal.digest, proposal.step, proposal.token)
        if self.lineage.is_dead(proposal.digest):
            return proposal
        self.arrived_s.setdefault((proposal.party, proposal.digest), arrived_s)
        return self.proposals[proposal.party].setdefault(proposal.digest, proposal)

    def take_ballot(self, view: int, prefix: Prefix, *, is_alone: bool) -> Ballot | SoloBallot | None:
        """The ballot on the next step, once. A proposal is valid iff its digest is the committed prefix's."""
        key = (view, prefix.digest)
        if self.pending == key:
            return None
        device, cloud = (self.proposals[party].get(prefix.digest) for party in PARTIES)
        own = self.own.get(prefix.digest)
        ballot: Ballot | SoloBallot
        if device is not None and cloud is not None:
            ballot = Ballot(session=self.session, view=view, device=device, cloud=cloud)
        elif own is not None and is_alone:
            ballot = SoloBallot(session=self.session, view=view, proposal=own)
        else:
            return None
        self.pending = key
        return ballot

    def reopen(self) -> None:
        """The ballot at the aggregator no longer counts."""
        self.pending = None

    def proposals_on(self, digest: bytes) -> dict[Party, Proposal | None]:
        """Each party's proposal for this prefix."""
        return {party: self.proposals[party].get(digest) for party in PARTIES}

    def arrivals_on(self, digest: bytes) -> dict[Party, float]:
        """When each party's proposal for this prefix arrived, in seconds since the query was opened; nan: never."""
        return {party: self.arrived_s.get((party, digest), nan) for party in PARTIES}

    def advance(self, prefix: Prefix) -> None:
        """One more token is committed: drop proposals for committed steps and on dead branches."""
        self.lineage.commit(prefix)
        for party in PARTIES:
            held = self.proposals[party].items()
            self.proposals[party] = {
                digest: proposal
                for digest, proposal in held
                if proposal.step >= len(prefix) and not self._is_dead(proposal, prefix)
            }
        arrived = self.arrived_s.items()
        self.arrived_s = {key: at_s for key, at_s in arrived if key[1] in self.proposals[key[0]]}

    def adopt(self, prefix: Prefix) -> None:
        """The committed tokens were replaced by these: branches that were dead may be alive."""
        self.lineage.clear()
        self.advance(prefix)

    def _is_dead(self, proposal: Proposal, prefix: Prefix) -> bool:
        is_next = proposal.step == len(prefix)
        return self.lineage.is_dead(proposal.digest) or (is_next and proposal.digest != prefix.digest)
