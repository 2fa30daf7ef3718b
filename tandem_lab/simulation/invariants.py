"""A virtual run that is watched: after every event it checks what must always hold, and at the end what must have.

What it compares are tokens, never digests: it must not believe the protocol's own evidence. Knows the state machines'
committed prefixes and messages; nothing of how faults are chosen.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tandem.codecs.token import read_token
from tandem.events import Event, PeerEvent, TokenEvent
from tandem.messages import Adopt, Ballot, Begin, Local, VerifyResult
from tandem.protocol.outbox import ActorKind, Send
from tandem.protocol.prefix import Prefix, common_length
from tandem.protocol.session import Session
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.display import Display
from tandem_lab.simulation.event_log import EventLog
from tandem_lab.simulation.faults import Fault, FaultyWire
from tandem_lab.simulation.race_votes import is_list_of
from tandem_lab.simulation.virtual import Outcome, VirtualRun
from tandem_lab.simulation.world import VOCAB, World


class InvariantError(AssertionError):
    """An invariant does not hold."""


class WatchedRun(VirtualRun):
    """One query, its faults, and the invariants."""

    def watch(
        self,
        *,
        wires: dict[Party, FaultyWire],
        faults: Iterable[Fault] = (),
        slips: dict[int, int] | None = None,
        hop_jitter_s: float = 0.0,
        hop_loss: float = 0.0,
        trace: EventLog | None = None,
    ) -> None:
        """Call it before `run`. slips: by step, how far the token that the cloud finds is off; under mirror only."""
        self.counts: Counter[str] = Counter()
        self.committed: list[int] = []  # on the device, as far as seen
        self.trace = trace or EventLog(0)
        self._wires = self.faulty_wires = wires  # type: ignore[assignment]
        self._faults = sorted(faults, key=lambda fault: fault.at_step, reverse=True)
        self._slips = dict(slips or {})
        self._hop_jitter_s, self._hop_loss = hop_jitter_s, hop_loss
        self._hop_rng = random.Random(self.spec.seed)
        self._display = Display()
        self._unseen: set[tuple[Party, bytes]] = set()  # prefixes whose proposal was lost to the draft queue
        self._latest: dict[Party, Session | None] = dict.fromkeys(PARTIES)
        # Up to this generation the cloud's tokens may be others: something was planted, and no Resync since.
        self._excused_generation = -1

    # ---- after every event -----------------------------------------------------------------------------------

    def after_event(self) -> None:
        """Compare what is committed with what was, and the two sides with each other."""
        device, cloud = self._queue(Party.DEVICE), self._queue(Party.CLOUD)
        if device is None:
            return
        tokens = device.prefix.tokens
        if tokens != self.committed:
            self._grow(tokens)
        if device.decides_alone:
            self._excuse(device)
        if cloud is None or cloud.log.view <= self._excused_generation:
            return
        shared = min(len(tokens), len(cloud.prefix))
        if tokens[:shared] != cloud.prefix.tokens[:shared]:
            step = common_length(tokens, cloud.prefix.tokens)
            raise InvariantError(
                f"the cloud's step {step} is not the device's, and nothing was planted that explains it"
            )

    def _grow(self, tokens: Sequence[int]) -> None:
        known = len(self.committed)
        if tokens[:known] != self.committed:
            raise InvariantError(
                f"the device's committed prefix changed at step {common_length(tokens, self.committed)}"
            )
        self.committed = list(tokens)
        self._plant_due()

    def _queue(self, party: Party) -> Session | None:
        """The session in the draft queue of `side`; the last that was seen where it is freed."""
        found = self.parties[party].queue.sessions.get(self.spec.session)
        if found is not None:
            self._latest[party] = found
        return self._latest[party]

    def _excuse(self, queue: Session) -> None:
        self._excused_generation = max(self._excused_generation, queue.log.view)

    # ---- what passes -----------------------------------------------------------------------------------------

    def deliver(self, party: Party, sends: list[Send]) -> None:
        """As the run's own, of messages that pass the checks."""
        super().deliver(party, [self._passing(party, send) for send in sends])

    def _passing(self, party: Party, send: Send) -> Send:
        message = send.message
        if isinstance(message, Ballot):
            self._check_paired(party, message)
        elif isinstance(message, VerifyResult) and party is Party.CLOUD and message.step in self._slips:
            return Send(send.to, self._slipped(message))
        if send.to == "peer":
            self.trace.add(self.now_s, f"{party} sends", message)
        return send

    def _check_paired(self, party: Party, ballot: Ballot) -> None:
        """A draft counts only if its law was computed from the very tokens that are committed."""
        queue = self.parties[party].queue.sessions[self.spec.session]
        committed = tuple(queue.prefix.tokens)
        for voter, payload in zip(ballot.voters, ballot.payloads, strict=True):
            drafter = self.spec.roles.topology.name(voter)
            world = self._world(Party(drafter))
            vote = self._find_vote(world, payload, committed)
            if vote is None:
                raise InvariantError(
                    f"the {party} pairs a draft of the {drafter} for step {ballot.step} that was conditioned on "
                    "other tokens than the committed"
                )
            if vote in world.rounded and self.spec.decoding.placement == "mirror":
                self._excuse(queue)

    def _find_vote(self, world: World, payload: bytes, committed: tuple[int, ...]) -> bytes | None:
        """The vote that was computed from these tokens and is this payload, or of which it is the token or the list."""
        if committed in world.conditioned_on.get(payload, ()):
            return payload
        votes = (vote for vote, bases in world.conditioned_on.items() if committed in bases)
        if self.spec.rules.votes_are_tokens:
            token, step = read_token(payload, VOCAB), len(committed)
            own = Party(self.spec.home)
            return next((vote for vote in votes if self._draw(own, step, vote)[0] == token), None)
        if not self.spec.rules.has_race_lists:
            return None
        return next((vote for vote in votes if is_list_of(payload, vote, self.spec, len(committed))), None)

    def _slipped(self, decision: VerifyResult) -> VerifyResult:
        """The same with another token, as other rounding errors would find it."""
        shift = self._slips.pop(decision.step)
        self.counts["slips"] += 1
        if (queue := self._queue(Party.CLOUD)) is not None:
            self._excuse(queue)
        self.trace.add(self.now_s, "fault: slip", decision)
        target = (decision.tokens[0] + shift) % VOCAB
        return replace(decision, tokens=(target,), accepted=(0, 0))

    def _receive(self, party: Party, to: ActorKind, message: Any) -> None:
        self.trace.add(self.now_s, f"{party}/{to}", message)
        super()._receive(party, to, message)

    def _on_event(self, event: Event) -> None:
        super()._on_event(event)
        try:
            self._display.add(event)
        except AssertionError as error:
            raise InvariantError(f"the user is told what cannot be shown: {error}") from error
        if isinstance(event, PeerEvent):
            self.counts["losses"] += event.is_alone
        if isinstance(event, TokenEvent):
            queue = self._queue(Party.DEVICE)
            if queue is None or queue.prefix.tokens[event.step] != event.token:
                raise InvariantError(f"the user sees another token at step {event.step} than is committed")

    def tick(self, party: Party) -> list[Send]:
        """Without reminders, where nothing gets lost within a site: they would hide what makes them necessary."""
        sends = super().tick(party)
        if self._hop_loss > 0:
            return sends
        return [send for send in sends if not isinstance(send.message, Begin | Adopt)]

    def is_lost(self, party: Party, send: Send) -> bool:
        """Loses a share of the messages within a site."""
        is_lost = self._hop_loss > 0 and self._hop_rng.random() < self._hop_loss
        if is_lost:
            if isinstance(send.message, Local):
                self._unseen.add((party, send.message.body.digest))
            self.counts["lost within a site"] += 1
            self.trace.add(self.now_s, f"fault: lost to the {party}'s {send.to}", send.message)
        return is_lost

    def _hop_s(self) -> float:
        return self.local_s + self._hop_jitter_s * self._hop_rng.random()

    def _world(self, party: Party) -> World:
        world = self.parties[party].reader
        assert isinstance(world, World)
        return world

    # ---- faults ----------------------------------------------------------------------------------------------

    def _opened(self, party: Party) -> None:
        super()._opened(party)
        if not self._unopened:
            self._plant_due()

    def _plant_due(self) -> None:
        while self._faults and not self._unopened and self._faults[-1].at_step <= len(self.committed):
            fault = self._faults.pop()
            self.at(self.now_s + fault.after_s, partial(self._plant, fault))

    def _plant(self, fault: Fault) -> None:
        self.trace.add(self.now_s, "fault", fault)
        if fault.role is None:
            self.counts["stalls"] += 1
            self.stall(fault.party, fault.seconds)
        elif fault.role not in self.parties[fault.party].down and self.open_sessions(fault.party):
            self.counts["crashes" if fault.role != "draft_queue" else "queue crashes"] += 1
            self.crash(fault.party, fault.role, fault.seconds)

    # ---- the end ---------------------------------------------------------------------------------------------

    def check_end(self, outcome: Outcome, expected: Sequence[int]) -> None:
        """expected: the tokens of the synchronous loop for the same query."""
        done = outcome.done
        if done is None or any(self.open_sessions(party) for party in PARTIES):
            open_on = [str(party) for party in PARTIES if self.open_sessions(party)]
            raise InvariantError(
                f"it did not end: {len(self.committed)} tokens, open on {' and '.join(open_on)}"
            )
        if done.reason not in ("eos", "stop", "length"):
            raise InvariantError(f"the answer {done.reason}: {done.error}")
        told = [event.token for event in outcome.events if isinstance(event, TokenEvent)]
        if told != self.committed:
            raise InvariantError("the user saw other tokens than the device committed")
        if refused := [party for party in PARTIES if self.parties[party].queue.num_refused_frames]:
            raise InvariantError(f"the {refused[0]} refused a frame of an honest peer")
        self._check_counters(outcome)
        alone_from = done.statistics.degraded_from
        if not self._is_answer_open():
            together = slice(None, alone_from)
            if self.committed[together] != list(expected[together]) or (
                alone_from is None and len(told) != len(expected)
            ):
                step = common_length(self.committed, expected)
                raise InvariantError(f"the answer differs from the synchronous one at step {step}")

    def _check_counters(self, outcome: Outcome) -> None:
        assert outcome.done is not None
        found = outcome.done.statistics
        if found.num_divergences and not (self.counts["slips"] or self._is_answer_open()):
            raise InvariantError(f"{found.num_divergences} divergences, but none was planted")
        is_lost = self.counts["losses"] or self.counts["queue crashes"]
        if found.num_resyncs and not (is_lost or found.num_divergences):
            raise InvariantError(f"{found.num_resyncs} Resyncs without divergence, loss or crash")

    def _is_answer_open(self) -> bool:
        """Whether a law that was recomputed, slightly different, may have been the first that the device saw."""
        is_rounded = any(self._world(party).rounded for party in PARTIES)
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
            for party in PARTIES
            for payload in self._world(party).rounded
            for tokens in self._world(party).conditioned_on[payload]
        )
