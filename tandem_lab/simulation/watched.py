"""A virtual run that is watched: after every event it checks what must always hold, and at the end what must have.

What it compares are tokens, never digests: it must not believe the protocol's own evidence.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any

from tandem.aggregation.rules import Step
from tandem.events import DoneEvent, Event, PeerEvent, ProvisionalEvent, RetractEvent, TokenEvent
from tandem.messages import Ballot, Begin, LinkFrame, Local, Resync, VerifyResult, Vote
from tandem.modes.mode import MAX_PROPOSAL
from tandem.protocol.ballots import MAX_ENTRIES
from tandem.protocol.decoding import Forward, Job
from tandem.protocol.log import Prefix, common_length
from tandem.protocol.routes import ActorKind, Send
from tandem.protocol.session import Session
from tandem.topology import Party
from tandem_lab.simulation.event_log import EventLog
from tandem_lab.simulation.oracle import has_oracle, is_list_of
from tandem_lab.simulation.scenario import Fault, FaultyWire, Scenario, expected_answer, voter_of
from tandem_lab.simulation.virtual import InvariantError, VirtualRun
from tandem_lab.simulation.world import VOCAB, World, codec_for

MAX_KEPT = MAX_ENTRIES + MAX_PROPOSAL
"""Entries of any store of a party, at most."""


@dataclass(slots=True)
class Display:
    """What somebody sees who draws tokens as their events come: those committed, then provisional ones.

    One that receives something it cannot draw truthfully raises.
    """

    pieces: list[tuple[int, str]] = field(default_factory=list)  # token and text, by step
    num_committed: int = 0
    num_retracted: int = 0  # pieces

    @property
    def text(self) -> str:
        """What is to be read."""
        return "".join(text for _, text in self.pieces)

    def add(self, event: Event) -> None:
        """Draw one event; AssertionError where it contradicts what is on the screen."""
        match event:
            case ProvisionalEvent():
                if event.step != len(self.pieces):
                    raise AssertionError(f"a provisional token of step {event.step} does not follow")
                self.pieces.append((event.token, event.text))
            case RetractEvent():
                if not self.num_committed <= event.step < len(self.pieces):
                    raise AssertionError(f"there is nothing provisional to retract from step {event.step} on")
                self.num_retracted += len(self.pieces) - event.step
                del self.pieces[event.step :]
            case TokenEvent():
                self._commit(event)
            case DoneEvent() if len(self.pieces) > self.num_committed:
                raise AssertionError("the answer is done, but provisional tokens are left on the screen")

    def _commit(self, event: TokenEvent) -> None:
        if event.step != self.num_committed:
            raise AssertionError(f"step {event.step} is committed out of order")
        if event.step == len(self.pieces):
            self.pieces.append((event.token, event.text))
        elif self.pieces[event.step] != (event.token, event.text):
            raise AssertionError(f"the token of step {event.step} contradicts the provisional one shown")
        self.num_committed += 1


class WatchedRun(VirtualRun):
    """The query of a scenario, its faults, and the invariants."""

    def __init__(self, scenario: Scenario, trace: EventLog | None = None) -> None:
        spec = scenario.spec
        super().__init__(
            spec,
            scenario.make_models(is_rounding=scenario.is_rounding),
            codec_for(spec),
            finished=scenario.check_stop,
            decode_s=scenario.decode_s,
            seed=scenario.seed,
        )
        self.scenario, self.trace = scenario, trace or EventLog(0)
        self.abandons = scenario.abandons
        self.counts: Counter[str] = Counter()
        self.committed: list[int] = []  # at home, as far as seen
        self.faulty_wires = {
            ends: FaultyWire(scenario.link, scenario.frames.get(ends, {})) for ends in self.wires
        }
        self.wires |= self.faulty_wires
        self._faults = sorted(scenario.faults, key=lambda fault: fault.at_step, reverse=True)
        self._slips = dict(scenario.slips)
        self._hop_rng = random.Random(spec.seed)
        self._display = Display()
        self._standing: tuple[object, ...] = ()  # of home and authority, when all were compared
        self._proposed: set[tuple[int, ...]] = set()  # what proposals of a drafter without a vote lead to
        self._unseen: set[tuple[str, bytes]] = set()  # prefixes whose vote was lost to the draft queue
        # Up to this view the cloud's tokens may be others: something was planted, and no Resync since.
        self._excused_view = -1
        if not scenario.is_dual:  # what its coordinator does not have is computed as before
            for party in spec.roles.voters:
                self.world(party).is_known = partial(self._is_known, party)

    @property
    def tokens(self) -> list[TokenEvent]:
        """The committed tokens, as the client is told."""
        return self.outcome.of(TokenEvent)

    @property
    def peer_events(self) -> list[PeerEvent]:
        """Who was lost and came back, likewise."""
        return self.outcome.of(PeerEvent)

    def world(self, party: str) -> World:
        """A party's model."""
        model = self.parties[party].model
        assert isinstance(model, World)
        return model

    def _open(self) -> None:
        super()._open()
        self._plant_due()
        if self.scenario.cancel_s is not None:
            self.at(self.scenario.cancel_s, self._cancel, self.topology.home)

    def _cancel(self) -> None:
        self.counts["cancelled"] += 1
        self.cancel(self.topology.home)

    def _is_known(self, party: str, lineage: Sequence[bytes]) -> bool:
        """Whether the own coordinator has the vote on a prefix already: only the first may count."""
        session = self.session(party)
        return session is not None and lineage[-1] in session.ballots.own

    # ---- after every event -----------------------------------------------------------------------------------

    def after_event(self, party: str) -> None:
        """The home's tokens never change; all agree with the authority's, but for those that a Resync must still reach,
        and a home that continues without it."""
        home, authority = self.session(self.topology.home), self.session(self.topology.authority)
        if home is None:
            return
        standing: tuple[object, ...] = (home.prefix.digest,)
        if authority is not None:
            standing += (authority.prefix.digest, authority.log.view, *sorted(authority.lost))
        acting = [party] if party else []
        if standing != self._standing:
            self._standing, acting = standing, list(self.parties)
            self._grow(home.prefix.tokens)
        for name in acting:
            session = self.session(name)
            if session is not None:
                self._check_size(name, session)
                self._check_equal(authority, session)

    def _grow(self, tokens: Sequence[int]) -> None:
        known = len(self.committed)
        if tokens[:known] != self.committed:
            raise InvariantError(
                f"the home's committed prefix changed at step {common_length(tokens, self.committed)}"
            )
        if len(tokens) > known:
            self.committed = list(tokens)
            self._plant_due()

    def _check_equal(self, authority: Session | None, session: Session) -> None:
        if authority is None or session.prefix.digest == authority.prefix.digest:
            return
        is_apart = session.party in authority.lost or authority.party in session.lost
        if is_apart or session.log.view <= self._excused_view:
            return
        if session is not authority and session.log.view < authority.peers[session.party].view:
            return
        shared = min(len(authority.prefix), len(session.prefix))
        if session.prefix.tokens[:shared] != authority.prefix.tokens[:shared]:
            step = common_length(session.prefix.tokens, authority.prefix.tokens)
            raise InvariantError(
                f"step {step} of {session.party} is not that of {authority.party}, and nothing was planted that "
                "explains it"
            )

    def _check_size(self, party: str, session: Session) -> None:
        stores: list[Sized] = [
            session.log.verdicts,
            *session.ballots.entries.values(),
            *(peer.deliveries.sent for peer in session.peers.values()),
        ]
        if (most := max(map(len, stores))) > MAX_KEPT:
            raise InvariantError(f"{party} keeps {most} entries")

    def _excuse(self, party: str) -> None:
        """From now on other tokens than the home's are explained, until a Resync beyond this party's view."""
        session = self.session(party)
        assert session is not None
        self._excused_view = max(self._excused_view, session.log.view)

    # ---- what passes -----------------------------------------------------------------------------------------

    def deliver(self, party: str, sends: Sequence[Send]) -> None:
        """As the run's own, of messages that pass the checks."""
        super().deliver(party, [self._passing(party, send) for send in sends])

    def _passing(self, party: str, send: Send) -> Send:
        message = send.message
        if isinstance(message, Ballot):
            self.check_ballot(party, message)
        elif isinstance(message, VerifyResult) and party == Party.CLOUD and message.step in self._slips:
            return replace(send, message=self._slipped(message)) if message.tokens else send
        return send

    def check_ballot(self, party: str, ballot: Ballot) -> None:
        """A vote counts only if it was computed from the very tokens that are committed, and those proposed behind."""
        session = self.session(party)
        if session is None or ballot.digest != session.prefix.digest:
            return
        names = [self.topology.name(voter) for voter in ballot.voters]
        for position in range(len(ballot.payloads)):
            tokens = (*session.prefix.tokens, *ballot.tokens[: position // len(names)])
            name = names[position % len(names)]
            if self._is_rounded(ballot.payloads[position], name, tokens):
                if self.spec.rules.all_decide:
                    self._excuse(party)
            else:
                self.check_vote(ballot, name, position, tokens)

    def check_vote(self, ballot: Ballot, name: str, position: int, tokens: tuple[int, ...]) -> None:
        """Raises InvariantError unless a payload in a ballot is what an honest party says after these tokens."""
        payload = ballot.payloads[position]
        if not self._says(payload, name, tokens, self._first_vote(name, tokens)):
            raise InvariantError(
                f"a vote of {name} counts for step {len(tokens)} that was computed from other tokens"
            )
        is_weighed = ballot.log_weights and name in self.spec.roles.voters
        if is_weighed and ballot.log_weights[position] != voter_of(self.scenario, name).log_weight(tokens):
            raise InvariantError(f"a vote of {name} counts for step {len(tokens)} by the weight of others")

    def _first_vote(self, name: str, tokens: tuple[int, ...]) -> bytes:
        if name in self.spec.roles.voters:
            return voter_of(self.scenario, name).payload(tokens)
        return self.world(name).payload(tokens, ())

    def _is_rounded(self, payload: bytes, name: str, tokens: tuple[int, ...]) -> bool:
        """Whether it is what a party's restarted model says, where that may differ."""
        if not self.scenario.is_dual:
            return False
        votes = (vote for vote, bases in self.world(name).rounded.items() if tokens in bases)
        return any(self._says(payload, name, tokens, vote) for vote in votes)

    def _says(self, payload: bytes, name: str, tokens: tuple[int, ...], vote: bytes) -> bool:
        """Whether a payload is this encoded distribution, the token drawn from it, or a list of its best."""
        if payload == vote or payload == self.say(name, len(tokens), vote)[1]:
            return True
        is_listed = self.spec.rules.has_race_lists and name in self.spec.roles.voters
        return is_listed and is_list_of(payload, vote, self.spec, len(tokens))

    def _slipped(self, decision: VerifyResult) -> VerifyResult:
        """The same with another token, as other rounding errors would find it."""
        shift = self._slips.pop(decision.step)
        self.counts["slips"] += 1
        self._excuse(Party.CLOUD)
        self.trace.add(self.now_s, "fault: slip", decision)
        target = (decision.tokens[0] + shift) % VOCAB
        return replace(decision, tokens=(target,), accepted=(0, 0))

    def cross(self, party: str, peer: str, frame: LinkFrame) -> None:
        """As the run's own. No proposal exceeds the uplink budget: three bytes per id of the largest vocabulary."""
        self.trace.add(self.now_s, f"{party} to {peer}", frame)
        body, budget = frame.body, self.spec.decoding.uplink_budget_bits
        if isinstance(body, Vote) and budget and 24 * len(body.tokens) > budget:
            raise InvariantError(f"{party} proposes {len(body.tokens)} tokens within {budget} bits")
        super().cross(party, peer, frame)

    def receive_frame(self, party: str, source: str, frame: LinkFrame) -> None:
        """As the run's own."""
        self.trace.add(self.now_s, f"{party} gets", frame)
        super().receive_frame(party, source, frame)

    def receive(self, party: str, to: ActorKind, message: Any) -> None:
        """As the run's own."""
        self.trace.add(self.now_s, f"{party}/{to}", message)
        super().receive(party, to, message)

    def _on_event(self, event: Event) -> None:
        super()._on_event(event)
        self.trace.add(self.now_s, "client", event)
        try:
            self._display.add(event)
        except AssertionError as error:
            raise InvariantError(f"the user is told what cannot be shown: {error}") from error
        if isinstance(event, PeerEvent):
            self.counts["losses"] += event.is_alone
        if isinstance(event, TokenEvent):
            self.counts["tokens accepted"] += event.device_accepted
            home = self.session(self.topology.home)
            if home is None or home.prefix.tokens[event.step] != event.token:
                raise InvariantError(f"the user sees another token at step {event.step} than is committed")

    def tick(self, party: str) -> list[Send]:
        """Without reminders, where nothing gets lost within a site: they would hide what makes them necessary."""
        sends = super().tick(party)
        if self.scenario.hop_loss > 0:
            return sends
        return [send for send in sends if not _is_reminder(send.message)]

    def is_lost(self, party: str, send: Send) -> bool:
        """Loses a share of the messages within a site."""
        is_lost = self.scenario.hop_loss > 0 and self._hop_rng.random() < self.scenario.hop_loss
        if is_lost:
            if isinstance(send.message, Local) and isinstance(send.message.body, Vote):
                self._unseen.add((party, send.message.body.digest))
            self.counts["lost within a site"] += 1
            self.trace.add(self.now_s, f"fault: lost to the {party}'s {send.to}", send.message)
        return is_lost

    def hop_s(self) -> float:
        """Messages within a site overtake each other."""
        return self.local_s + self.scenario.hop_jitter_s * self._hop_rng.random()

    # ---- passes ----------------------------------------------------------------------------------------------

    def vote(self, party: str, job: Forward, step: int, weights: Any) -> Step:
        """As the run's own. Weights are those of the very tokens that a vote is on."""
        tokens, is_voter = job.tokens[:step], party in self.spec.roles.voters
        if is_voter and weights and weights != voter_of(self.scenario, party).weights(tokens):
            raise InvariantError(f"{party} weighs its documents by other tokens than it votes on")
        drawn = super().vote(party, job, step, weights)
        if not is_voter:
            assert drawn.token is not None
            self._proposed.add((*tokens, drawn.token))
        return drawn

    def finish(self, party: str, job: Job, duration_s: float) -> None:
        """As the run's own; what several voters vote on was proposed. A decoder may be restarted behind a pass."""
        num_before = self.parties[party].num_forwards
        if isinstance(job, Forward) and self.parties[party].busy_with is job:
            self.check_followed(party, job)
        super().finish(party, job, duration_s)
        is_done = self.parties[party].num_forwards > num_before
        if is_done and self.scenario.restarts and self.rng.random() < self.scenario.restarts:
            self.crash(party, "decoder", 0.0)

    def check_followed(self, party: str, job: Forward) -> None:
        """Where several vote on what somebody else drafts, they follow its proposals."""
        session, roles = self.session(party), self.spec.roles
        if session is None or roles.role(party).drafts or self.spec.rules.votes_are_tokens:
            return
        committed = session.prefix.tokens
        for length in range(job.first_drawn, job.step + 1):
            tokens = job.tokens[:length]
            if list(tokens) != committed[:length] and tokens not in self._proposed:
                raise InvariantError(f"{party} follows a proposal that was made after other tokens")

    # ---- faults ----------------------------------------------------------------------------------------------

    def _plant_due(self) -> None:
        while self._faults and self._faults[-1].at_step <= len(self.committed):
            fault = self._faults.pop()
            self.at(self.now_s + fault.after_s, partial(self._plant, fault))

    def _plant(self, fault: Fault) -> None:
        self.trace.add(self.now_s, "fault", fault)
        match fault.kind:
            case "stall":
                self.counts["stalls"] += 1
                self.stall(fault.party, fault.seconds)
            case "cut":
                self.counts["cuts"] += 1
                self.cut(fault.party, fault.seconds)
            case "host":
                self.counts["host crashes"] += self.crash_host(fault.party, fault.seconds)
            case role:
                name = "queue crashes" if role == "draft_queue" else "crashes"
                self.counts[name] += self.crash(fault.party, role, fault.seconds)

    # ---- the end ---------------------------------------------------------------------------------------------

    def check_end(self, expected: Sequence[int] | None = None) -> None:
        """Raise InvariantError unless the answer is that of the draft-free loop, given who was lost when.

        expected: the tokens of the synchronous loop, where the draft-free one does not define them.
        """
        done = self.outcome.done
        open_at = [str(party) for party in self.parties if self.open_sessions(party)]
        if done is None or open_at:
            raise InvariantError(
                f"it did not end: {len(self.committed)} tokens, open on {' and '.join(open_at)}"
            )
        if done.reason not in ("eos", "stop", "length") and not (
            done.reason == "cancelled" and self.counts["cancelled"]
        ):
            raise InvariantError(f"the answer {done.reason}: {done.error}")
        if [event.token for event in self.tokens] != self.committed:
            raise InvariantError("the user saw other tokens than the home committed")
        if refused := [party for party, site in self.parties.items() if site.queue.num_refused_frames]:
            raise InvariantError(f"{refused[0]} refused a frame of an honest peer")
        alone = [event.step for event in self.tokens if event.is_alone and self.spec.only is None]
        degraded = [step for step in alone if self._is_anybody_lost(step)]
        if done.statistics.degraded_from != (degraded[0] if degraded else None):
            raise InvariantError("the answer is not marked degraded from the right step")
        num_late = len(alone) - len(degraded)
        if done.statistics.num_late_votes != num_late or (num_late and self.spec.decoding.patience_s == inf):
            raise InvariantError(
                f"{num_late} steps are marked as decided alone, though nobody was lost or late"
            )
        self._check_counters(done)
        self._check_answer(done, expected)

    def _is_anybody_lost(self, step: int) -> bool:
        lost = {event.party: event.is_alone for event in self.peer_events if event.step <= step}
        return any(lost.values())

    def _check_answer(self, done: DoneEvent, expected: Sequence[int] | None) -> None:
        together = len(self.committed) if done.reason == "cancelled" else None
        alone = [event.step for event in self.tokens if event.is_alone] if self.scenario.is_dual else []
        if self.scenario.is_dual and self._is_answer_open():
            return
        if has_oracle(self.spec) and (alone or expected is None):
            expected = expected_answer(self.scenario, self.peer_events, alone)
        elif alone:  # what a party adds alone depends on what of the other's had arrived
            together = alone[0]
        if expected is None:
            return
        if self.committed[:together] != list(expected[:together]):
            step = common_length(self.committed, expected)
            raise InvariantError(f"the answer differs from the draft-free one at step {step}")

    def _check_counters(self, done: DoneEvent) -> None:
        if not self.scenario.is_dual:
            return
        found = done.statistics
        if found.num_divergences and not (self.counts["slips"] or self._is_answer_open()):
            raise InvariantError(f"{found.num_divergences} divergences, but none was planted")
        is_lost = self.counts["losses"] or self.counts["queue crashes"]
        if found.num_resyncs and not (is_lost or found.num_divergences):
            raise InvariantError(f"{found.num_resyncs} Resyncs without divergence, loss or crash")

    def _is_answer_open(self) -> bool:
        """Whether a law that was recomputed, slightly different, may have been the first that the device saw."""
        is_rounded = any(self.world(party).rounded for party in self.parties)
        return is_rounded and bool(
            self._is_first_unseen()
            or self.counts["queue crashes"]
            or self.counts["slips"]
            or self.counts["losses"]
        )

    def _is_first_unseen(self) -> bool:
        """Whether a law that was recomputed had been lost within the site before anybody saw it."""
        return any(
            (party, Prefix(self.spec.session, tokens).digest) in self._unseen
            for party in self.parties
            for bases in self.world(party).rounded.values()
            for tokens in bases
        )


def _is_reminder(message: Any) -> bool:
    return isinstance(message, Begin) or (isinstance(message, Local) and isinstance(message.body, Resync))
