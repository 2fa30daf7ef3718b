"""What only the decider knows, and tells the home of a query that is one of its voters.

The home has no link to the other voters. Of their documents it gets what their own link would bring it, opaque marks;
of their losses and of whose vote came last it reads in each verdict, so that it knows at which step they counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tandem.events import PeerEvent
from tandem.messages import (
    Cancel,
    DecoderReady,
    Done,
    LinkBody,
    Sources,
    Tail,
    Verdict,
)
from tandem.protocol.ballots import BallotBox, Entry
from tandem.protocol.lifecycle import Lifecycle
from tandem.protocol.log import CommittedLog
from tandem.protocol.outbox import Send
from tandem.protocol.prefix import extend_digest
from tandem.protocol.report import Reporter
from tandem.protocol.routes import Routes

MAX_SOURCES = 64
"""How often a party's documents are passed on: it names them again after a restart and after each Resync."""


class Messenger:
    """What one party sends towards home, and what the home knows of parties to which it has no link.

    Invariant: log probabilities and sources go that way and no other.
    """

    def __init__(
        self, routes: Routes, log: CommittedLog, ballots: BallotBox, reporter: Reporter, lifecycle: Lifecycle
    ) -> None:
        self.is_home = routes.is_home
        self.lost_elsewhere: frozenset[str] = frozenset()  # parties without which the last verdict was made
        self._routes, self._log, self._ballots = routes, log, ballots
        self._reporter, self._lifecycle = reporter, lifecycle
        roles, party = routes.roles, routes.party
        self._num_sources: Counter[str] = Counter()  # messages, by party
        self._drafter = party if party in roles.drafters else roles.drafters[0]

    @property
    def drafts(self) -> Mapping[bytes, Entry]:
        """What the client may see before it is decided: the own drafts, or those of the drafter; by digest."""
        return self._ballots.entries[self._drafter]

    @property
    def decider(self) -> str:
        """Whose verdicts come from elsewhere. There must be such a party."""
        return next(name for name in self._routes.roles.deciders if name != self._routes.party)

    def tell_sources(self, ready: DecoderReady, now_s: float) -> list[Send]:
        """Tell the client, who is at home, of this party's documents."""
        if (nearer := self._routes.toward_home) is None:
            return self._reporter.emit_own_sources(ready)
        sources = self._reporter.note_sources(ready)
        return [] if sources is None else self._lifecycle.post((nearer,), sources, now_s)

    def take_sources(self, source: str, sources: Sources, now_s: float) -> list[Send]:
        """Documents of a peer, or of a party behind it: for the client here, or on towards home."""
        topology, nearer = self._routes.topology, self._routes.toward_home
        owner = topology.name(sources.party)
        self._num_sources[owner] += 1
        if self._num_sources[owner] > MAX_SOURCES:
            return []
        if nearer is None:
            return self._reporter.emit_sources(owner, sources)
        return [] if source == nearer else self._lifecycle.post((nearer,), sources, now_s)

    def address(self, verdict: Verdict) -> list[tuple[Sequence[str], Verdict]]:
        """An own verdict that is not committed yet, and to whom it goes."""
        peers, home = self._routes.verdicts_go_to, self._routes.toward_home
        if home is None or not self._routes.has_others_behind:
            return [(peers, verdict)]
        index, digest = self._routes.topology.index, self._log.prefix.digest
        last_voters = []
        for token in verdict.tokens:
            last = self._ballots.find_last_voter(digest, self._lifecycle.voters)
            last_voters.append(index(last or self._routes.party))
            digest = extend_digest(digest, token)
        lost = sorted(map(index, self._lifecycle.lost))
        tail = Tail(logprobs=verdict.logprobs, lost=tuple(lost), last_voters=tuple(last_voters))
        others = [peer for peer in peers if peer != home]
        return [(others, replace(verdict, tail=())), ((home,), replace(verdict, tail=(tail,)))]

    def dismiss(self, peer: str, body: LinkBody, now_s: float) -> list[Send]:
        """To an authority that is back after the home has gone on without it. body: what it sent."""
        is_last_word = isinstance(body, Cancel) or (isinstance(body, Done) and body.is_reply)
        return [] if is_last_word else self._lifecycle.to_peer(peer, self._lifecycle.last_word(peer), now_s)

    # ---- at home -----------------------------------------------------------------------------------------------

    def follow(self, verdict: Verdict, step: int) -> list[Send]:
        """A verdict is committed from `step` on: who is missing from then on, and who is back."""
        if not any(tail.last_voters for tail in verdict.tail):
            return []
        topology, before = self._routes.topology, self.lost_elsewhere
        self.lost_elsewhere = frozenset(map(topology.name, verdict.tail[0].lost))
        changed = [name for name in topology.parties if name in before ^ self.lost_elsewhere]
        return self._reporter.emit(
            *(PeerEvent(step=step, is_alone=name in self.lost_elsewhere, party=name) for name in changed)
        )

    def last_voter(self, verdict: Verdict, step: int) -> str | None:
        """Whose vote on the token of this step came last, where the decider says so."""
        if not any(tail.last_voters for tail in verdict.tail):
            return None
        name = self._routes.topology.name(verdict.tail[0].last_voters[step - verdict.step])
        return name if name != self.decider else None
