"""A virtual-clock driver: both sides' state machines in one thread, with a link that delays, reorders and drops.

It runs the very classes that the actors run (`tandem.protocol.table`); only delivery, time and, if wanted, the
model are replaced. Deterministic: the same seed gives the same run. Frames that cross the link are encoded and decoded
on the way, so what arrives is what a real link would deliver. A side may be stalled, an actor may crash and be
restarted. Knows nothing of Ray or sockets.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from tandem.aggregation.document_weights import Evidence, Weights
from tandem.codecs import Codec
from tandem.codecs.token import log_probabilities, write_token
from tandem.engine.drafter import Drafter
from tandem.events import DoneEvent, Event, TokenEvent
from tandem.messages import RetrieveRequest, RetrieveResult, decode, encode
from tandem.modes.spec import SessionSpec
from tandem.protocol.aggregating import AggregatingTable
from tandem.protocol.decoding import DecodingTable, Forward, Job, Prefill, compute_steps
from tandem.protocol.estimating import ProfilingTable, SchedulingTable
from tandem.protocol.outbox import ActorKind, Send
from tandem.protocol.session import StopCheck
from tandem.protocol.table import (
    CoordinatorTable,
    sessions_of,
)
from tandem.topology import PARTIES, Party
from tandem_lab.baselines.random_placement import RandomAggregatingTable
from tandem_lab.simulation.link import Link, Wire
from tandem_lab.simulation.world import Prefilled

TICK_S = 0.05


class SideModel(Protocol):
    """One side's retriever and model, as far as a run needs them. Called without delay or threads."""

    def retrieve(self, message: RetrieveRequest) -> RetrieveResult:
        """Documents."""

    def prefill(self, job: Prefill) -> Prefilled:
        """Hold documents and query of a session."""

    def evidence(self, tokens: Sequence[int], token: int, num_rows: int) -> Evidence:
        """What a token after these says of each row."""

    def payload(self, tokens: Sequence[int], weights: Weights, lineage: Sequence[bytes] = ()) -> bytes:
        """The encoded distribution of the step after these tokens. lineage: digests of their beginnings."""


@dataclass(slots=True)
class PartyState:
    """The actors of one side."""

    queue: CoordinatorTable
    decoder: DecodingTable
    aggregator: AggregatingTable
    profiler: ProfilingTable
    scheduler: SchedulingTable
    reader: SideModel
    busy_with: Job | None = None
    num_forwards: int = 0
    num_abandoned: int = 0
    down: set[ActorKind] = field(default_factory=set)  # crashed and not yet restarted
    stalled_until_s: float = 0.0


@dataclass(slots=True)
class Outcome:
    """What a run produced."""

    tokens: dict[Party, list[int]] = field(default_factory=lambda: {party: [] for party in PARTIES})
    events: list[Event] = field(default_factory=list)
    done: DoneEvent | None = None
    ended_s: float = 0.0
    num_forwards: dict[Party, int] = field(default_factory=dict)
    num_frames: int = 0
    num_bytes: int = 0


class VirtualRun:
    """One query through both sides."""

    def __init__(
        self,
        spec: SessionSpec,
        readers: dict[Party, SideModel],
        codec: Codec,
        *,
        finished: StopCheck,
        link: Link | None = None,
        decode_s: Callable[[Party, random.Random], float] = lambda party, rng: 0.01,
        local_s: float = 1e-4,
        seed: int = 0,
    ) -> None:
        """`decode_s` gives the time of each forward; `local_s` is a hop within a side."""
        self.spec = spec
        self.outcome = Outcome()
        self.now_s = 0.0
        self._rng = random.Random(seed)
        self._codec = codec
        self._drafter = Drafter(
            spec.rules.codec_of_votes(codec), spec.sampling, spec.decoding.draft_rule, spec.vocab_size
        )
        self._finished = finished
        self._wires = {party: Wire(link or Link()) for party in PARTIES}  # by sender
        self.decode_s = decode_s
        self.local_s = local_s
        self._events: list[tuple[float, int, Party | None, Callable[[], None]]] = []
        self._count = 0
        self._num_tokens = 0
        self._num_in_flight = 0  # frames on the link
        self._unopened = set(spec.parties)
        self.parties = {
            party: PartyState(
                CoordinatorTable(party, lambda _: finished),
                DecodingTable(party),
                RandomAggregatingTable(party, codec),
                ProfilingTable(party),
                SchedulingTable(party),
                readers[party],
            )
            for party in PARTIES
        }

    def run(self, limit_s: float = 600.0) -> Outcome:
        """Open the query at home and go on until all actors have freed it, or `limit_s` of virtual time."""
        home = Party(self.spec.home)
        self.at(0.0, partial(self._open, home), home)
        while self._events and self.now_s < limit_s:
            self.now_s, count, host, act = heapq.heappop(self._events)
            if host is not None and (until_s := self.parties[host].stalled_until_s) > self.now_s:
                heapq.heappush(self._events, (until_s, count, host, act))
                continue
            act()
            self.after_event()
            if self._is_over():
                break
        self.outcome.ended_s = self.now_s
        self.outcome.num_forwards = {party: state.num_forwards for party, state in self.parties.items()}
        return self.outcome

    def after_event(self) -> None:
        """Called after every event; a driver that checks invariants does it here."""

    def _is_over(self) -> bool:
        if self.outcome.done is None or (self._unopened and self._num_in_flight):
            return False
        return not any(self.open_sessions(party) for party in PARTIES)

    def open_sessions(self, party: Party) -> list[int]:
        """Sessions that any actor of `side` still holds, once for each actor."""
        state = self.parties[party]
        return list(
            sessions_of((state.queue, state.decoder, state.aggregator, state.profiler, state.scheduler))
        )

    def _open(self, party: Party) -> None:
        """The client opens the query at its home; a frame opens it at the peer."""
        self.deliver(party, self.parties[party].queue.open(self.spec, self.now_s))
        self._opened(party)

    def _opened(self, party: Party) -> None:
        self._unopened.discard(party)
        session = self.parties[party].queue.sessions.get(self.spec.session)
        if session is not None:
            self.outcome.tokens[party] = session.prefix.tokens
        self._tick(party)

    def _tick(self, party: Party) -> None:
        if "draft_queue" not in self.parties[party].down:
            self.deliver(party, self.tick(party))
        self.at(self.now_s + TICK_S, partial(self._tick, party), party)

    def tick(self, party: Party) -> list[Send]:
        """What the timers of a coordinator send now."""
        return self.parties[party].queue.tick(self.now_s)

    def at(self, when_s: float, act: Callable[[], None], party: Party | None = None) -> None:
        """Have `act` called when the clock shows `when_s`; later if it is an act of a `side` that is stalled then."""
        self._count += 1
        heapq.heappush(self._events, (when_s, self._count, party, act))

    # ---- faults ----------------------------------------------------------------------------------------------

    def stall(self, party: Party, seconds: float) -> None:
        """Everything on `side` stands still from now on, as on a host that was suspended."""
        state = self.parties[party]
        state.stalled_until_s = max(state.stalled_until_s, self.now_s + seconds)

    def crash(self, party: Party, role: ActorKind, down_s: float) -> None:
        """An actor loses its state and all messages to it, until it is restarted after `down_s`.

        Of the draft queues only the cloud's can be: the device's holds the user's answer.
        """
        state = self.parties[party]
        if role in state.down or not self.open_sessions(party) or party in self._unopened:
            return
        state.down.add(role)
        self.at(self.now_s + down_s, partial(self._restart, party, role), party)

    def _restart(self, party: Party, role: ActorKind) -> None:
        state = self.parties[party]
        state.down.discard(role)
        if role == "draft_queue":
            if state.queue.sessions:  # what the former held is lost, but for what was asked
                state.queue = CoordinatorTable(party, lambda _: self._finished)
                self.deliver(party, state.queue.reopen(self.spec, self._rng.getrandbits(32), self.now_s))
                self.outcome.tokens[party] = state.queue.sessions[self.spec.session].prefix.tokens
            return
        if role == "decoder":
            state.decoder, state.busy_with = DecodingTable(party), None
        elif role == "aggregator":
            state.aggregator = RandomAggregatingTable(party, self._codec)
        elif role == "profiler":
            state.profiler = ProfilingTable(party)
        elif role == "scheduler":
            state.scheduler = SchedulingTable(party)
        if "draft_queue" not in state.down:  # else it gets its sessions from the queue's own restart
            self.deliver(party, state.queue.restart(role))

    def cancel(self, party: Party) -> None:
        """The user of `side` gives the query up, now."""
        self.deliver(party, self.parties[party].queue.cancel(self.spec.session, self.now_s))

    # ---- delivery --------------------------------------------------------------------------------------------

    def deliver(self, party: Party, sends: list[Send]) -> None:
        """Bring messages of one side where they go: to its client, across the link, or to its actors."""
        for send in sends:
            if send.to == "client":
                self._on_event(send.message.event)
            elif send.to == "peer":
                self._cross(party, encode(send.message))
            elif not self.is_lost(party, send):
                act = partial(self._receive, party, send.to, send.message)
                self.at(self.now_s + self._hop_s(), act, party)

    def is_lost(self, party: Party, send: Send) -> bool:
        """Whether a message within a site gets lost; a driver that plants such losses decides it here."""
        return False

    def _hop_s(self) -> float:
        """How long the next message within a side takes."""
        return self.local_s

    def _cross(self, party: Party, frame: bytes) -> None:
        self.outcome.num_frames += 1
        self.outcome.num_bytes += len(frame)
        for arrival_s in self._wires[party].arrivals(self.now_s, len(frame), self._rng):
            self._num_in_flight += 1
            self.at(arrival_s, partial(self._receive_frame, party.other, frame), party.other)

    def _receive_frame(self, party: Party, frame: bytes) -> None:
        self._num_in_flight -= 1
        self._receive(party, "draft_queue", decode(frame))

    def _receive(self, party: Party, to: ActorKind, message: Any) -> None:
        state = self.parties[party]
        if to in state.down:
            return
        match to:
            case "draft_queue":
                self.deliver(party, state.queue.receive(message, self.now_s))
                if party in self._unopened and state.queue.needs_ticks:
                    self._opened(party)
            case "retriever":
                self.deliver(party, [Send("decoder", state.reader.retrieve(message))])
            case "decoder":
                self.deliver(party, state.decoder.receive(message))
                self._work(party)
            case "aggregator":
                self.deliver(party, state.aggregator.receive(message))
            case "profiler":
                self.deliver(party, state.profiler.receive(message))
            case "scheduler":
                self.deliver(party, state.scheduler.receive(message))

    def _on_event(self, event: Event) -> None:
        self.outcome.events.append(event)
        if isinstance(event, DoneEvent):
            self.outcome.done = event
        if isinstance(event, TokenEvent):
            if event.step != self._num_tokens:
                raise AssertionError(f"step {event.step} is committed out of order or twice")
            self._num_tokens += 1

    # ---- the model -------------------------------------------------------------------------------------------

    def _work(self, party: Party) -> None:
        """Start the next job; an outdated one is abandoned at once, as by layer-wise preemption."""
        state = self.parties[party]
        if "decoder" in state.down:
            return
        busy = state.busy_with
        if isinstance(busy, Forward):
            session = state.decoder.sessions.get(busy.session)
            if session is not None and session.is_current(busy):
                return
            state.num_abandoned += 1
        elif busy is not None:
            return
        state.busy_with = job = state.decoder.next_job()
        if job is not None:
            duration_s = self.decode_s(party, self._rng)
            self.at(self.now_s + duration_s, partial(self._finish, party, job, duration_s), party)

    def _finish(self, party: Party, job: Job, duration_s: float) -> None:
        state = self.parties[party]
        if state.busy_with is not job or "decoder" in state.down:
            return
        state.busy_with = None
        session = state.decoder.sessions.get(job.session)
        if session is not None and isinstance(job, Prefill):
            prefilled = state.reader.prefill(job)
            self.deliver(party, session.finish_prefill(int(duration_s * 1e6), (), *prefilled))
        elif session is not None and isinstance(job, Forward):
            state.num_forwards += 1
            steps = _Steps(job, state.reader, partial(self._draw, party))
            self.deliver(party, session.finish(job, compute_steps(job, steps, lambda: int(duration_s * 1e6))))
        self._work(party)

    def _draw(self, party: Party, step: int, payload: bytes) -> tuple[int, bytes]:
        """A token from an encoded distribution, and what is said of it: that, or the token where no more is needed."""
        token = self._drafter.draw(payload, seed=self.spec.seed, step=step, party=party)
        if not self.spec.rules.votes_are_tokens:
            return token, payload
        known = self.spec.num_logprobs
        named = None if known is None else log_probabilities(self._codec.decode(payload), token, known)
        return token, write_token(token, named)


class _Steps(NamedTuple):
    """A model as `compute_steps` asks it."""

    job: Forward
    reader: SideModel
    draft: Callable[[int, bytes], tuple[int, bytes]]  # by step and encoded distribution

    def draw(self, step: int, weights: Weights) -> tuple[int, bytes]:
        """The draft of one step, and what goes with it."""
        return self.draft(
            step, self.reader.payload(self.job.tokens[:step], weights, self.job.lineage[: step + 1])
        )

    def learn(self, step: int, token: int) -> Evidence:
        """What a token says of each row."""
        return self.reader.evidence(self.job.tokens[:step], token, len(self.job.weights.prior))
