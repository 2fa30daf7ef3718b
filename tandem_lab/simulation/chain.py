"""Speculative and federated sessions under a virtual clock: scripted models, a drafter of any quality, all faults.

Every party runs the coordinator's, the decoder's and the aggregator's own tables; frames are encoded and decoded on the
way. After every event the committed tokens of all parties are compared, as tokens, and at the end with the draft-free
loop.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from tandem.aggregation.document_weights import Evidence, Weights
from tandem.codecs.token import read_token, write_token
from tandem.events import DoneEvent, PeerEvent, RoundEvent, TokenEvent
from tandem.messages import Ballot, Proposal, decode_link, encode
from tandem.modes.proposing import MAX_PROPOSAL
from tandem.protocol.aggregating import AggregatingTable
from tandem.protocol.ballots import MAX_ENTRIES
from tandem.protocol.decoding import DecodingTable, Forward, Job, Prefill, Result, compute_steps
from tandem.protocol.estimating import ProfilingTable, SchedulingTable
from tandem.protocol.outbox import ActorKind, Send
from tandem.protocol.session import Session
from tandem.protocol.table import CoordinatorTable
from tandem_lab.simulation.chain_scenario import (
    ChainFault,
    ChainScenario,
    Drafter,
    draft_from,
    expected_chain,
    logprobs_of,
    make_chain_scenario,
    make_drafter,
    voter_of,
)
from tandem_lab.simulation.event_log import EventLog
from tandem_lab.simulation.faults import FaultyWire, plan_frames, plan_link
from tandem_lab.simulation.invariants import InvariantError
from tandem_lab.simulation.race_votes import is_list_of
from tandem_lab.simulation.world import CODEC, VOCAB, World, number

TICK_S = 0.05
HOP_S = 0.01
"""Longest way between two actors of one party."""
LIMIT_S = 300.0
MAX_KEPT = MAX_ENTRIES + MAX_PROPOSAL
"""Entries of any store of a party, at most."""


@dataclass(slots=True)
class ChainParty:
    """One party: its actors, its model, and what befalls it."""

    queue: CoordinatorTable
    decoder: DecodingTable
    aggregator: AggregatingTable
    profiler: ProfilingTable
    scheduler: SchedulingTable
    session: Session | None = None  # the last one seen
    busy_with: Job | None = None  # what its model computes
    num_starts: int = 0  # of its actors but the coordinator; what an earlier start does or is told is lost
    is_down: bool = False
    stalled_s: float = 0.0
    cut_s: float = 0.0  # nothing passes between it and the hub until then


class ChainRun:
    """One session at all its parties, watched."""

    def __init__(
        self, scenario: ChainScenario, trace: EventLog | None = None, drafter: Drafter | None = None
    ) -> None:
        """drafter: default that of the scenario."""
        self.scenario = scenario
        self.now_s = 0.0
        self.counts: Counter[str] = Counter()
        self.rng = random.Random(number("chain run", scenario.seed))
        self.trace = trace or EventLog(0)
        self.committed: list[int] = []  # at home
        self._standing: tuple[object, ...] = ()  # of home and hub, when all were compared
        self.tokens: list[TokenEvent] = []
        self.peer_events: list[PeerEvent] = []
        self.rounds: list[RoundEvent] = []
        self.done: DoneEvent | None = None
        self.lengths: list[int] = []  # of proposals, as the scheduler chose them
        topology = scenario.spec.roles.topology
        self.home, self.hub = topology.home, topology.authority
        self.parties = {party: self._make_party(party) for party in topology.parties}
        self.proposed: set[tuple[int, ...]] = set()  # what the drafter's proposals lead to
        self._drafter = drafter or make_drafter(scenario)
        self._numbers = count()
        self._events: list[tuple[float, int, str, Callable[[], None]]] = []
        link = plan_link(self.rng)
        self.wires = {
            (party, peer): FaultyWire(link, plan_frames(self.rng, 4))
            for party in self.parties
            for peer in topology.peers(party)
        }

    def _make_party(self, party: str) -> ChainParty:
        scenario = self.scenario
        return ChainParty(
            CoordinatorTable(party, lambda _: scenario.check_stop),
            DecodingTable(party),
            AggregatingTable(party, CODEC),
            ProfilingTable(party),
            SchedulingTable(party),
        )

    def run(self) -> list[int]:
        """The tokens that were committed at home. Raises InvariantError."""
        home = self.parties[self.home]
        self._deliver(self.home, home.queue.open(self.scenario.spec, 0.0))
        self._session(self.home)  # seen, even if the very next event ends it
        for party in self.parties:
            self._at(TICK_S, party, partial(self._tick, party))
        for fault in self.scenario.faults:
            self._at(fault.at_s, "", partial(self._plant, fault))
        if self.scenario.cancel_s is not None:
            self._at(self.scenario.cancel_s, self.home, self._cancel)
        while self._events and not self._is_over():
            when_s, order, party, act = heapq.heappop(self._events)
            if party and when_s < (until_s := self.parties[party].stalled_s):
                heapq.heappush(self._events, (until_s, order, party, act))
                continue
            self.now_s = when_s
            if when_s > LIMIT_S:
                raise InvariantError(f"it did not end: {len(self.committed)} tokens")
            act()
            self._check(party)
            if party:
                self._work(party)
        for wire in self.wires.values():
            self.counts.update(wire.counts)
        return self.committed

    def check_end(self) -> None:
        """Raise InvariantError unless the answer is that of the draft-free loop, given who was lost when."""
        if self.done is None:
            raise InvariantError("the client was never told that it is done")
        expected = expected_chain(self.scenario, self.peer_events)
        if self.done.reason == "cancelled":
            expected = expected[: len(self.committed)]
        elif self.done.reason not in ("eos", "stop", "length"):
            raise InvariantError(f"the answer {self.done.reason}: {self.done.error}")
        if refused := [party for party, state in self.parties.items() if state.queue.num_refused_frames]:
            raise InvariantError(f"{refused[0]} refused a frame of an honest peer")
        if self.committed != expected:
            raise InvariantError(f"home committed {self.committed}, the draft-free loop {expected}")
        if [event.token for event in self.tokens] != self.committed:
            raise InvariantError("the user saw other tokens than are committed")
        degraded = [event.step for event in self.tokens if event.is_alone]
        if self.done.statistics.degraded_from != (degraded[0] if degraded else None):
            raise InvariantError("the answer is not marked degraded from the right step")

    def _is_over(self) -> bool:
        return self.done is not None and not any(state.queue.sessions for state in self.parties.values())

    def _check(self, acting: str) -> None:
        """Home's tokens never change; all agree with the hub's, but for a party that a Resync must still reach, and a
        home that continues without the hub."""
        home, hub = self._session(self.home), self._session(self.hub)
        assert home is not None
        tokens, standing = home.prefix.tokens, (home.prefix.digest, *_standing_of(hub))
        others = [acting] if acting else []
        if standing != self._standing:
            self._standing, others = standing, list(self.parties)
            if tokens[: len(self.committed)] != self.committed:
                raise InvariantError(f"home's tokens changed from {self.committed} to {tokens}")
            if len(tokens) > len(self.committed):
                self.committed = list(tokens)
        for party in others:
            session = self._session(party)
            if session is None:
                continue
            self._check_size(party, session)
            if hub is None or session.prefix.digest == hub.prefix.digest or self._may_differ(hub, session):
                continue
            shared = min(len(hub.prefix), len(session.prefix))
            if session.prefix.tokens[:shared] != hub.prefix.tokens[:shared]:
                raise InvariantError(
                    f"{party} committed {session.prefix.tokens}, {self.hub} {hub.prefix.tokens}"
                )

    def _may_differ(self, hub: Session, session: Session) -> bool:
        is_apart = session.party in hub.lost or self.hub in session.lost
        return is_apart or session.log.view < hub.peers[session.party].view

    def _check_size(self, party: str, session: Session) -> None:
        kept: list[Sized] = [
            *session.ballots.entries.values(),
            *(peer.deliveries.sent for peer in session.peers.values()),
        ]
        most = max(len(session.log.verdicts), *map(len, kept))
        if most > MAX_KEPT:
            raise InvariantError(f"{party} keeps {most} entries")

    def _session(self, party: str) -> Session | None:
        state = self.parties[party]
        state.session = state.queue.sessions.get(self.scenario.spec.session, state.session)
        return state.session

    # ---- time ------------------------------------------------------------------------------------------------------

    def _at(self, when_s: float, party: str, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_s, next(self._numbers), party, act))

    def _tick(self, party: str) -> None:
        if not self.parties[party].is_down:
            self._deliver(party, self.parties[party].queue.tick(self.now_s))
        self._at(self.now_s + TICK_S, party, partial(self._tick, party))

    def _deliver(self, party: str, sends: Sequence[Send]) -> None:
        for send in sends:
            if send.to == "peer":
                self.cross(party, send)
            elif send.to == "client":
                if party != self.home:
                    raise InvariantError(f"{party} has events of a query that was asked at {self.home}")
                self._on_event(send.message.event)
            else:
                act = partial(self._hand, party, send.to, self.parties[party].num_starts, send.message)
                self._at(self.now_s + self.hop_s(), party, act)

    def cross(self, party: str, send: Send) -> None:
        """A frame on its way to a peer."""
        data = encode(send.message)
        self.trace.add(self.now_s, f"{party} to {send.peer}", send.message)
        self._check_budget(party, send.message.body)
        worker = self.parties[send.peer if party == self.hub else party]
        if self.now_s < worker.cut_s:
            return
        for arrival_s in self.wires[party, send.peer].arrivals(self.now_s, len(data), self.rng):
            self._at(arrival_s, send.peer, partial(self._receive, send.peer, party, data))

    def _check_budget(self, party: str, body: Any) -> None:
        """No proposal exceeds the uplink budget; three bytes for each id of the largest vocabulary."""
        budget = self.scenario.spec.decoding.uplink_budget_bits
        if isinstance(body, Proposal) and budget and 24 * len(body.tokens) > budget:
            raise InvariantError(f"{party} proposes {len(body.tokens)} tokens within {budget} bits")

    def _receive(self, party: str, source: str, data: bytes) -> None:
        state = self.parties[party]
        if not state.is_down:
            frame = decode_link(data)
            self.trace.add(self.now_s, f"{party} gets", frame)
            self._deliver(party, state.queue.receive(frame, self.now_s, source))

    def _on_event(self, event: Any) -> None:
        self.trace.add(self.now_s, "client", event)
        if isinstance(event, DoneEvent):
            self.done = event
        elif isinstance(event, PeerEvent):
            self.peer_events.append(event)
            self.counts["losses"] += event.is_alone
        elif isinstance(event, TokenEvent):
            self.tokens.append(event)
            self.counts["tokens accepted"] += event.device_accepted
        elif isinstance(event, RoundEvent):
            self.rounds.append(event)

    # ---- actors and models -----------------------------------------------------------------------------------------

    def _hand(self, party: str, to: ActorKind, start: int, message: Any) -> None:
        """A message reaches an actor of a party, unless that is down or was restarted since."""
        state = self.parties[party]
        if state.is_down or start != state.num_starts:
            return
        match to:
            case "draft_queue":
                sends = state.queue.receive(message, self.now_s)
            case "retriever":
                sends = [Send("decoder", World(self.scenario.seed, party).retrieve(message))]
            case "decoder":
                sends = state.decoder.receive(message)
            case "aggregator":
                if isinstance(message, Ballot):
                    self._check_ballot(party, message)
                sends = state.aggregator.receive(message)
            case "profiler":
                sends = state.profiler.receive(message)
            case _:
                sends = state.scheduler.receive(message)
                self.lengths += [send.message.length for send in sends]
        self._deliver(party, sends)

    def _check_ballot(self, party: str, ballot: Ballot) -> None:
        """A vote counts only if it was computed from the committed tokens and those proposed before it."""
        session = self._session(party)
        if session is None or ballot.digest != session.prefix.digest:
            return
        names = [session.spec.roles.topology.name(voter) for voter in ballot.voters]
        for position, payload in enumerate(ballot.payloads):
            tokens = (*session.prefix.tokens, *ballot.tokens[: position // len(names)])
            name = names[position % len(names)]
            if not self._is_vote(payload, name, tokens):
                raise InvariantError(f"{party} counts a vote of {name} that was computed on other tokens")
            is_weighed = ballot.log_weights and name in session.spec.roles.voters
            if is_weighed and ballot.log_weights[position] != voter_of(self.scenario, name).log_weight(
                tokens
            ):
                raise InvariantError(f"{party} counts a vote of {name} by the weight of other tokens")

    def _is_vote(self, payload: bytes, party: str, tokens: tuple[int, ...]) -> bool:
        """Whether it is what a party says after these tokens, or lists the best tokens of that."""
        spec, vote = self.scenario.spec, self._payload(party, tokens)
        is_listed = spec.rules.has_race_lists and party in spec.roles.voters
        return payload == vote or (is_listed and is_list_of(payload, vote, spec, len(tokens)))

    def _payload(self, party: str, tokens: tuple[int, ...], redone: int = 0) -> bytes:
        """What a party says after these tokens. redone: above 0, with other rounding errors."""
        is_vote = party in self.scenario.spec.roles.voters
        dense = voter_of(self.scenario, party).payload(tokens, redone) if is_vote else self._drafter(tokens)
        if is_vote and not self.scenario.spec.rules.votes_are_tokens:
            return dense
        token = draft_from(self.scenario, dense, len(tokens))
        return write_token(token, logprobs_of(self.scenario.spec, party, dense, token))

    def _work(self, party: str) -> None:
        """Start what this party's model should do next."""
        state = self.parties[party]
        if state.is_down or state.busy_with is not None:
            return
        state.busy_with = job = state.decoder.next_job()
        if job is None:
            return
        self._start(party, job)

    def _start(self, party: str, job: Job) -> None:
        done_s = self.now_s + self.pass_s(party, job)
        self._at(done_s, party, partial(self._finish, party, self.parties[party].num_starts, job))

    def pass_s(self, party: str, job: Job) -> float:
        """How long a job of a party's model takes."""
        is_drafting = self.scenario.spec.roles.role(party).drafts
        return self.rng.expovariate(1 / self.scenario.model_s[party]) / (4 if is_drafting else 1)

    def hop_s(self) -> float:
        """How long a message takes between two actors of one party."""
        return HOP_S * self.rng.random()

    def _finish(self, party: str, start: int, job: Job) -> None:
        state = self.parties[party]
        if start != state.num_starts or state.busy_with is not job:
            return
        state.busy_with = None
        session = state.decoder.sessions.get(job.session)
        if session is None:
            return
        if isinstance(job, Prefill):
            prefilled = World(self.scenario.seed, party).prefill(job)
            self._deliver(party, session.finish_prefill(1, (), *prefilled))
            return
        self._check_followed(party, job)
        self._deliver(party, session.finish(job, self.compute(party, job)))
        if self.scenario.is_recomputing and self.rng.random() < 0.3:
            self._restart_models(party)

    def compute(self, party: str, job: Forward) -> list[Result]:
        """A pass. What a model computes once more it computes a little otherwise: only the first may count."""
        return compute_steps(job, _Pass(self, party, job), lambda: 1)

    def vote(self, party: str, job: Forward, step: int, weights: Weights) -> tuple[int, bytes]:
        """What a pass gives at one step."""
        tokens = job.tokens[:step]
        if weights and weights != voter_of(self.scenario, party).weights(tokens):
            raise InvariantError(f"{party} weighs its documents by other tokens than it votes on")
        payload = self._payload(party, tokens, self._is_known(party, job.lineage[step : step + 1]))
        is_token = party not in self.scenario.spec.roles.voters or self.scenario.spec.rules.votes_are_tokens
        token = read_token(payload, VOCAB) if is_token else 0
        if party not in self.scenario.spec.roles.voters:
            self.proposed.add((*tokens, token))
        else:
            self.counts["votes"] += 1
        return token, payload

    def _is_known(self, party: str, digests: Sequence[bytes]) -> bool:
        """Whether the own coordinator has the vote on a prefix already."""
        session = self._session(party)
        return session is not None and any(digest in session.ballots.own for digest in digests)

    def _check_followed(self, party: str, job: Forward) -> None:
        """What several voters vote on was proposed."""
        session, spec = self._session(party), self.scenario.spec
        if session is None or party not in spec.roles.voters or spec.rules.votes_are_tokens:
            return
        committed = session.prefix.tokens
        for length in range(job.wanted, job.step + 1):
            tokens = job.tokens[:length]
            is_committed = list(tokens) == committed[:length]
            if not is_committed and tokens not in self.proposed:
                raise InvariantError(f"{party} follows a proposal that was made after other tokens")

    # ---- faults ----------------------------------------------------------------------------------------------------

    def _cancel(self) -> None:
        self.counts["cancelled"] += 1
        self._deliver(self.home, self.parties[self.home].queue.cancel(self.scenario.spec.session, self.now_s))

    def _plant(self, fault: ChainFault) -> None:
        state = self.parties[fault.party]
        self.trace.add(self.now_s, "fault", fault)
        until_s = self.now_s + fault.seconds
        if fault.kind == "stall":
            state.stalled_s = max(state.stalled_s, until_s)
        elif fault.kind == "cut":
            state.cut_s = max(state.cut_s, until_s)
        elif state.is_down or not state.queue.sessions:
            return
        elif fault.kind == "crash":
            state.num_starts += 1
            state.is_down = True
            self._at(until_s, fault.party, partial(self._come_back, fault.party))
        elif fault.kind == "models":
            self._restart_models(fault.party)
        else:
            state.aggregator = AggregatingTable(fault.party, CODEC)
            self._deliver(fault.party, state.queue.restart("aggregator"))
        self.counts[f"planted: {fault.kind}"] += 1

    def _restart_models(self, party: str) -> None:
        """The decoder knows nothing any more; the coordinator gives it the session as it stands."""
        state = self.parties[party]
        state.num_starts += 1
        state.decoder, state.busy_with = DecodingTable(party), None
        self._deliver(party, state.queue.restart("decoder") + state.queue.restart("aggregator"))

    def _come_back(self, party: str) -> None:
        """The party knows what was asked, and nothing else; a hub that is not at home does not even know that."""
        fresh, old = self._make_party(party), self.parties[party]
        self.parties[party] = fresh
        fresh.num_starts, fresh.stalled_s, fresh.cut_s = old.num_starts, old.stalled_s, old.cut_s
        if party == self.hub:
            return
        incarnation = self.rng.getrandbits(32)
        self._deliver(party, fresh.queue.reopen(self.scenario.spec, incarnation, self.now_s))


def _standing_of(hub: Session | None) -> tuple[object, ...]:
    """What decides whether the others may differ from it."""
    return () if hub is None else (hub.prefix.digest, hub.log.view, *sorted(hub.lost))


class _Pass(NamedTuple):
    """A party's model at work, as `compute_steps` asks it."""

    run: ChainRun
    party: str
    job: Forward

    def draw(self, step: int, weights: Weights) -> tuple[int, bytes]:
        """What the party says at one step."""
        return self.run.vote(self.party, self.job, step, weights)

    def learn(self, step: int, token: int) -> Evidence:
        """What a token says of each row."""
        world = World(self.run.scenario.seed, self.party)
        return world.evidence(self.job.tokens[:step], token, len(self.job.weights.prior))


def play_chain(
    seed: int, num_workers: int, trace: EventLog | None = None, run_class: type[ChainRun] = ChainRun
) -> tuple[int, Counter[str]]:
    """One run compared with the draft-free loop: tokens committed, and what happened. Raises InvariantError."""
    run = run_class(make_chain_scenario(seed, num_workers), trace)
    tokens = run.run()
    run.check_end()
    return len(tokens), run.counts
