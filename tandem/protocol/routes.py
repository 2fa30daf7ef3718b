"""The routes on the link, who sends what to whom and when, and the output of a state machine.

A right to send is what an honest party in that place would send. One table (`Routes.rights`) says both what a party
sends and what its peers take from it, so the two cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any, Literal

from tandem.errors import ProtocolError
from tandem.messages import (
    Cancel,
    Done,
    Heartbeat,
    LinkBody,
    ListRequest,
    Open,
    Probe,
    Rejoin,
    Resync,
    Sources,
    Tail,
    Verdict,
    Vote,
)
from tandem.modes import SessionSpec
from tandem.modes.mode import MAX_PROPOSAL
from tandem.protocol.log import MAX_VERDICT_TOKENS
from tandem.topology import in_words

ActorKind = Literal[
    "retriever", "decoder", "draft_queue", "aggregator", "profiler", "scheduler", "peer", "client"
]
"""An actor of the own site, a peer's coordinator, or the client."""

ROLES: tuple[ActorKind, ...] = ("retriever", "decoder", "draft_queue", "aggregator", "profiler", "scheduler")
"""The actors of one site."""


@dataclass(frozen=True, slots=True)
class Send:
    """Deliver `message` to `to`."""

    to: ActorKind
    message: Any  # a tandem.messages.Message, or a tandem.events.ClientEvent where `to` is "client"
    peer: str = ""  # where `to` is "peer": which one


LISTENERS: tuple[ActorKind, ...] = ("decoder", "aggregator", "profiler", "scheduler")

MAX_REASON_CHARS = 10_000
"""A cancellation's reason has at most so many."""
MAX_NOTES, MAX_LINE_CHARS = 64, 2_000
"""Notes of a party besides the ids of its documents, and characters of each of both."""
BYTES_PER_TOKEN, MAX_FIXED_BYTES = 16, 4096
"""An encoded distribution has at most so many for each token of the vocabulary, and besides: a vote in full has 4 per
token."""
IN_TURN = (Verdict, ListRequest)
"""Bodies that only who decides the next step may send for it. The verdicts before say who that is."""


class Routes:
    """The rules of what one party sends to its peers, and what it accepts from them.

    Invariant: nothing here depends on what has happened in the session; `check_turn` gets what does.
    """

    def __init__(self, spec: SessionSpec, party: str) -> None:
        self.spec, self.rules, self.roles, self.party = spec, spec.rules, spec.roles, party
        self.topology = self.roles.topology
        self.votes_go_to = self.rules.audience(Vote, party)
        self.verdicts_go_to = self.rules.audience(Verdict, party)
        self.toward_home = self.topology.toward_home(party)  # the peer through which the home is reached

    @cached_property
    def rights(self) -> Mapping[type[LinkBody], tuple[str, ...]]:
        """The table: to whom this party may send each kind of body. What is missing it may send to nobody."""
        topology, peers = self.topology, self.topology.peers(self.party)
        nearer = () if self.toward_home is None else (self.toward_home,)
        authority = (topology.authority,) if topology.authority in peers else ()
        return {
            Heartbeat: peers,
            Probe: peers,
            Done: peers,
            Cancel: peers,
            Open: tuple(peer for peer in peers if peer not in nearer),
            Sources: nearer,
            Vote: self.votes_go_to,
            ListRequest: self.rules.audience(ListRequest, self.party),
            Verdict: self.verdicts_go_to,
            Resync: peers if self.is_authority else (),
            Rejoin: authority if not self.is_home else (),
        }

    @cached_property
    def _rights_of(self) -> Mapping[str, Mapping[type[LinkBody], tuple[str, ...]]]:
        return {peer: Routes(self.spec, peer).rights for peer in self.topology.peers(self.party)}

    @property
    def follows_proposals(self) -> bool:
        """Whether this party votes on what another one proposes."""
        return self.rules.follows_proposals and self.roles.role(self.party).votes

    @property
    def leads(self) -> bool:
        """Whether this party proposes, and does not vote."""
        return self.rules.follows_proposals and self.roles.role(self.party).drafts

    @property
    def is_authority(self) -> bool:
        """Whether the tokens of this party win a divergence."""
        return self.party == self.topology.authority

    @property
    def is_home(self) -> bool:
        """Whether the client asked this party."""
        return self.party == self.topology.home

    def is_between(self, party: str) -> bool:
        """Whether a party stands between this one, or the home, and others."""
        return len(self.topology.peers(party)) > 1

    @property
    def listeners(self) -> tuple[ActorKind, ...]:
        """The actors of this party that hear of the session: the last two only where there is something to estimate."""
        return LISTENERS if self.rules.is_placed else LISTENERS[:2]

    @property
    def other_decider(self) -> str:
        """The party whose verdicts come from elsewhere. There must be such a party."""
        return next(name for name in self.roles.deciders if name != self.party)

    # ---- what this party sends ---------------------------------------------------------------------------------

    def make_greeting(self, peer: str) -> LinkBody:
        """Opens the session at a peer that is farther from home, or shows one that is nearer that it is open here.

        Who will send one verdict after the other asks for an echo, so as to know in time whether the link is full.
        """
        if peer != self.toward_home:
            return self.make_open(peer)
        return Probe(is_reply=False, padding=b"") if self.rules.goes_on_at(self.party) else Heartbeat()

    def make_open(self, peer: str) -> Open:
        """The opening for a peer, to which the display at home does not matter."""
        return Open(spec=replace(self.spec.as_for(peer), show_drafts=False).to_json())

    def may_count(self, vote: Vote) -> bool:
        """Whether it may decide, of a drafter's, and keeps to the uplink budget. What was drafted while all voters were
        lost need not; they decide that step without it if they are back."""
        role, voters = self.roles.role(self.party), self.roles.voters
        counts = not (role.drafts and role.votes) or self.party in self.rules.needed(vote.step, voters)
        num_fitting = self.rules.count_fitting(vote.payloads or [b""] * vote.num_prefixes)
        return counts and num_fitting == vote.num_prefixes

    def address(
        self, verdict: Verdict, lost: Iterable[str], last_voters: Sequence[str | None]
    ) -> list[tuple[Sequence[str], Verdict]]:
        """An own verdict, and to whom it goes. The home alone hears its tail. One that has no link to the other voters
        hears more: who is lost, and whose vote came last at each token."""
        home, index = self.toward_home, self.topology.index
        others = [peer for peer in self.verdicts_go_to if peer != home]
        addressed: list[tuple[Sequence[str], Verdict]] = [(others, replace(verdict, tail=()))]
        if home is not None and not self.is_between(self.party):
            addressed.append((self.verdicts_go_to, verdict.for_home()))
        elif home is not None:
            names = [index(name or self.party) for name in last_voters]
            addressed.append(((home,), verdict.for_home(sorted(map(index, lost)), names)))
        return addressed

    def last_voter(self, verdict: Verdict, step: int) -> str | None:
        """The party whose vote on the token of this step came last, where a verdict from elsewhere says so."""
        if not any(tail.last_voters for tail in verdict.tail):
            return None
        name = self.topology.name(verdict.tail[0].last_voters[step - verdict.step])
        return name if name != self.other_decider else None

    def make_public(self, vote: Vote) -> Vote:
        """An own vote as the peers need it: of a draft the id is enough, unless its distribution counts."""
        return replace(vote, payloads=()) if self._needs_ids_of(self.party) else vote

    def _needs_ids_of(self, party: str) -> bool:
        """Whether the drafts of `party` say it all."""
        role = self.roles.role(party)
        is_counted = role.votes and not self.rules.votes_are_tokens
        return role.drafts and not (is_counted or self.rules.needs_drafts)

    # ---- what it takes -----------------------------------------------------------------------------------------

    def check(self, source: str, body: LinkBody) -> None:
        """Raise ProtocolError, one sentence, if `source` may not send this party such a body, or not of this form."""
        if source not in self._rights_of:
            raise ProtocolError(
                f"{source} sent {body.words} of a query in which it has no link to {in_words(self.party)}; "
                "check its settings."
            )
        if self.party not in self._rights_of[source].get(type(body), ()):
            raise ProtocolError(
                f"{source} sent {body.words}, which it may not send {in_words(self.party)} in "
                f"{self.rules.title}; check its settings."
            )
        if (
            isinstance(body, Vote | Verdict | Resync)
            and body.tokens
            and max(body.tokens) >= self.spec.vocab_size
        ):
            raise ProtocolError(
                f"{source} sent token {max(body.tokens)}, but the vocabulary has {self.spec.vocab_size} tokens; "
                "use the same tokenizer at all parties."
            )
        match body:
            case Vote():
                self._check_vote(source, body)
            case Verdict():
                self._check_verdict(source, body)
            case Resync():
                self._check_resync(source, body)
            case ListRequest() if body.depth < 1:
                raise ProtocolError(f"{source} asked for {body.depth} tokens of a vote; check its version.")
            case Sources():
                self._check_sources(source, body)
            case Cancel() if len(body.reason) > MAX_REASON_CHARS:
                raise ProtocolError(
                    f"{source} gave a reason of {len(body.reason)} characters, which has at most {MAX_REASON_CHARS}; "
                    "check its version."
                )
            case _:
                pass

    def check_view(self, source: str, view: int, begun: int) -> None:
        """Raise ProtocolError, one sentence, if a peer is in a view that this party should have begun, and has not."""
        if view > begun and self.is_authority:
            raise ProtocolError(
                f"{source} sent a frame of view {view}, but {in_words(self.party)} begins the views and has begun "
                f"{begun}; check its version."
            )

    def check_turn(self, source: str, body: LinkBody, num_committed: int, decider: str) -> None:
        """Raise ProtocolError, one sentence, if `source` decides the next step out of turn, or asks for more of a vote.

        num_committed: tokens so far. decider: of the next step. Under `mirror` it is everybody's turn. Of a later step
        nobody can say yet whose turn it will be: a verdict waits, and is checked again when its step comes.
        """
        if not isinstance(body, IN_TURN) or self.rules.all_decide or decider == source:
            return
        num_steps = len(body.tokens) if isinstance(body, Verdict) else 1
        if body.step <= num_committed < body.step + num_steps:
            raise ProtocolError(
                f"{source} sent {body.words} for step {num_committed}, which is for {in_words(decider)} to "
                "decide; check its settings."
            )

    def _check_vote(self, source: str, vote: Vote) -> None:
        """A drafter's holds what it proposes; a voter's has one distribution more than the proposal has tokens."""
        count, role = len(vote.tokens), self.roles.role(source)
        least, most = (int(role.votes), self.rules.max_proposal) if role.drafts else (0, MAX_PROPOSAL)
        if not least <= count <= most:
            raise ProtocolError(
                f"A vote of {source} in mode {self.rules.name} has {f'0 to {most} tokens' if most > 1 else '1 token'} "
                f"(got {count}); check its settings."
            )
        num_prefixes = count + (not role.drafts)
        num_payloads = 0 if self._needs_ids_of(source) else num_prefixes
        num_weights = num_prefixes if role.votes and self.roles.weighs_by_documents else 0
        for what, values, due in (
            ("distribution", vote.payloads, num_payloads),
            ("log weight", vote.log_weights, num_weights),
        ):
            if len(values) != due:
                raise ProtocolError(
                    f"A vote of {source} on {count} token{'s' * (count != 1)} in mode {self.rules.name} comes with "
                    f"{due} {what}{'s' * (due != 1)} (got {len(values)}); check its version."
                )
        most_bytes = BYTES_PER_TOKEN * self.spec.vocab_size + MAX_FIXED_BYTES
        longest = max(map(len, vote.payloads), default=0)
        if longest > most_bytes:
            raise ProtocolError(
                f"{source} sent a distribution of {longest} bytes, but one over {self.spec.vocab_size} tokens has at "
                f"most {most_bytes}; check its codec."
            )
        for log_weight in vote.log_weights:
            if not log_weight < inf:  # nan too; -inf is that of a party without documents
                raise ProtocolError(
                    f"{source} sent a log weight of {log_weight}, which must be finite or -inf; check its version."
                )

    def _check_sources(self, source: str, sources: Sources) -> None:
        """The client keeps what it names of documents: no more than there may be, in a line each."""
        if sources.party != self.topology.index(source):
            self._check_relayed(source, sources.party)
        most = self.spec.num_documents(self.topology.name(sources.party)) + MAX_NOTES
        lines = (*sources.ids, *sources.notes)
        longest = max(map(len, lines), default=0)
        if len(lines) > most or longest > MAX_LINE_CHARS:
            raise ProtocolError(
                f"{source} named {len(lines)} documents and notes of up to {longest} characters, but at most {most} of "
                f"{MAX_LINE_CHARS} are taken; check its version."
            )

    def _check_verdict(self, source: str, verdict: Verdict) -> None:
        num_drafters = len(self.roles.drafters)
        if len(verdict.accepted) != num_drafters or len(verdict.acceptance) not in (0, num_drafters):
            raise ProtocolError(
                f"A verdict in mode {self.rules.name} counts for {num_drafters} drafters "
                f"(got {len(verdict.accepted)} from {source}); check its version."
            )
        if not verdict.tokens:
            raise ProtocolError(f"{source} sent a verdict without a token; check its version.")
        most = MAX_VERDICT_TOKENS if self.rules.follows_proposals else 1
        if len(verdict.tokens) > most:
            raise ProtocolError(
                f"A verdict in mode {self.rules.name} has at most {most} token{'s' * (most > 1)} "
                f"(got {len(verdict.tokens)} from {source}); check its version."
            )
        if max(verdict.acceptance, default=0) > 127:
            raise ProtocolError(
                f"An expected acceptance is at most 127 (got {max(verdict.acceptance)} from {source}); "
                "check its version."
            )
        if any(mask >> len(verdict.tokens) for mask in verdict.accepted):
            raise ProtocolError(
                f"{source} sent a verdict that accepts more than its tokens; check its version."
            )
        self._check_tail(source, verdict)
        self._check_decider(source, verdict.next_decider)

    def _check_tail(self, source: str, verdict: Verdict) -> None:
        """The home alone gets one: of losses and last voters where there are parties behind the decider, and of log
        probabilities where it asked for them."""
        has_others, is_nearer = self.is_between(source), self.topology.toward_home(source) == self.party
        least, most = int(is_nearer and has_others), int(is_nearer)
        if not least <= len(verdict.tail) <= most:
            raise ProtocolError(
                f"{source} sent a verdict with {len(verdict.tail)} tails, which it may not send {in_words(self.party)} "
                f"in {self.rules.title}; check its settings."
            )
        for tail in verdict.tail:
            self._check_losses(source, tail, len(verdict.tokens) if has_others else 0)
            self.rules.check_tail(source, tail, len(verdict.tokens), must_name=not has_others)

    def _check_losses(self, source: str, tail: Tail, num_tokens: int) -> None:
        """num_tokens: of the verdict, where there are parties behind its decider."""
        for party in tail.lost:
            self._check_relayed(source, party)
        if len(tail.last_voters) != num_tokens:
            raise ProtocolError(
                f"{source} named the last voters of {len(tail.last_voters)} tokens in a verdict that has {num_tokens} "
                "of several voters; check its version."
            )
        for party in tail.last_voters:
            if party >= len(self.roles.roles):
                raise ProtocolError(f"{source} named party {party}, which there is not; check its version.")

    def _check_relayed(self, source: str, party: int) -> None:
        """Check a message that the sender relays to the home for a party behind it."""
        behind = {name for name in self.topology.parties if name not in (source, self.party)}
        is_one = party < len(self.roles.roles) and self.topology.name(party) in behind
        if not (is_one and self.is_home and self.is_between(source)):
            raise ProtocolError(
                f"{source} sent word of party {party}, which is none behind it; check its settings."
            )

    def _check_resync(self, source: str, resync: Resync) -> None:
        most = self.spec.sampling.max_new_tokens
        if len(resync.tokens) > most:
            raise ProtocolError(
                f"{source} sent {len(resync.tokens)} tokens to be adopted, but an answer has at most {most}; "
                "check its settings."
            )
        self._check_decider(source, resync.decider)

    def _check_decider(self, source: str, party: int) -> None:
        parties = self.roles.topology.parties
        if party >= len(parties) or not self.roles.roles[party].decides:
            raise ProtocolError(
                f"{source} hands over to party {party}, which does not decide in mode {self.rules.name}; "
                "check its settings."
            )
