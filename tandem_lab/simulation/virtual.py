"""A virtual-clock driver: all parties' state machines in one thread, over links that delay, reorder and drop.

It runs the very classes that the actors run (`tandem.protocol`), in every mode and topology; only delivery, time and,
if wanted, the models are replaced. Deterministic: the same seed gives the same run. Frames are encoded and decoded on
the way, so what arrives is what a real link would deliver. A party may be stalled or cut off, an actor or a whole host
may crash and be restarted.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, NamedTuple, Protocol, TypeVar

from tandem.aggregation.document_weights import Evidence, Weights
from tandem.aggregation.rules import Step
from tandem.codecs import Codec
from tandem.codecs.votes import log_probabilities, write_token
from tandem.engine.drafter import Drafter
from tandem.events import DoneEvent, Event
from tandem.messages import LinkFrame, RetrieveRequest, RetrieveResult, decode_link, encode
from tandem.modes import SessionSpec
from tandem.protocol.decoding import DecodingTable, Forward, Job, Prefill, compute_steps
from tandem.protocol.routes import ROLES, ActorKind, Send
from tandem.protocol.services import AggregatingTable, ProfilingTable, SchedulingTable
from tandem.protocol.session import Session, StopCheck
from tandem.protocol.table import TICK_S, CoordinatorTable
from tandem.topology import as_party
from tandem_lab.baselines.random_placement import RandomAggregatingTable
from tandem_lab.simulation.link import Link, Wire
from tandem_lab.simulation.world import Prefilled

TABLES: dict[ActorKind, str] = {
    "draft_queue": "queue",
    **{role: role for role in ROLES if role not in ("draft_queue", "retriever")},
}
"""The state machines of a site, by role: their names in `Site`."""
E = TypeVar("E", bound=Event)


class InvariantError(AssertionError):
    """An invariant does not hold."""


class SiteModel(Protocol):
    """One party's retriever and model, as far as a run needs them. Called without delay or threads."""

    def retrieve(self, message: RetrieveRequest) -> RetrieveResult:
        """Documents."""

    def prefill(self, job: Prefill) -> Prefilled:
        """Hold documents and query of a session."""

    def evidence(self, tokens: Sequence[int], token: int, num_rows: int) -> Evidence:
        """What a token after these says of each row."""

    def payload(self, tokens: Sequence[int], weights: Weights, lineage: Sequence[bytes] = ()) -> bytes:
        """The encoded distribution of the step after these tokens. lineage: digests of their beginnings."""


@dataclass(slots=True)
class Site:
    """The actors of one party, its model, and what befalls them."""

    queue: CoordinatorTable
    decoder: DecodingTable
    aggregator: AggregatingTable
    profiler: ProfilingTable
    scheduler: SchedulingTable
    model: SiteModel
    session: Session | None = None  # the coordinator's, the last one seen
    busy_with: Job | None = None
    num_forwards: int = 0
    num_starts: int = 0  # of the host; what an earlier start was told within the site is lost
    down: set[ActorKind] = field(default_factory=set)  # crashed and not yet restarted
    stalled_until_s: float = 0.0
    cut_until_s: float = 0.0  # nothing that it sends or is sent passes


@dataclass(slots=True)
class Outcome:
    """What a run produced."""

    tokens: dict[str, list[int]] = field(default_factory=dict)  # committed, by party
    events: list[Event] = field(default_factory=list)  # of the client at home
    done: DoneEvent | None = None
    ended_s: float = 0.0
    num_forwards: dict[str, int] = field(default_factory=dict)
    num_frames: int = 0
    num_bytes: int = 0

    def of(self, kind: type[E]) -> list[E]:
        """The events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]


class VirtualRun:
    """One query at all its parties."""

    abandons = True
    """Whether a pass that nobody wants any more is abandoned at once, as by layer-wise preemption."""

    def __init__(
        self,
        spec: SessionSpec,
        models: Mapping[Any, SiteModel],
        codec: Codec,
        *,
        finished: StopCheck,
        link: Link | None = None,
        decode_s: Callable[[Any, random.Random], float] = lambda party, rng: 0.01,
        local_s: float = 1e-4,
        seed: int = 0,
    ) -> None:
        """models: by party. decode_s: the time of each job of a party's model. local_s: of a hop within a site."""
        self.spec = spec
        self.topology = spec.roles.topology
        self.outcome = Outcome()
        self.now_s = 0.0
        self.rng = random.Random(seed)
        self.decode_s, self.local_s = decode_s, local_s
        self._codec, self._finished = codec, finished
        self._codec_of_votes = spec.rules.codec_of_votes(codec)
        self._drafter = Drafter(self._codec_of_votes, spec.sampling, spec.rules.drawing_rule, spec.vocab_size)
        self._events: list[tuple[float, int, str, Callable[[], None]]] = []
        self._numbers = count()
        self._num_in_flight = 0  # frames on the links
        ends = tuple(models)
        self.wires = {(party, peer): Wire(link or Link()) for party in ends for peer in ends if party != peer}
        self.parties: dict[Any, Site] = {
            party: Site(**{name: self._make(role, party) for role, name in TABLES.items()}, model=model)
            for party, model in models.items()
        }

    def _make(self, role: ActorKind, party: str) -> Any:
        """An actor of a party that knows nothing yet."""
        match role:
            case "draft_queue":
                return CoordinatorTable(party, lambda _: self._finished)
            case "aggregator":
                return RandomAggregatingTable(party, self._codec)
            case "decoder":
                return DecodingTable(party)
            case "profiler":
                return ProfilingTable(party)
            case _:
                return SchedulingTable(party)

    def run(self, limit_s: float = 600.0) -> Outcome:
        """Open the query at home and go on until all actors have freed it, or `limit_s` of virtual time."""
        self.at(0.0, self._open, self.topology.home)
        for party in self.parties:
            self.at(TICK_S, partial(self._tick, party), party)
        while self._events and self.now_s < limit_s and not self._is_over():
            when_s, number, party, act = heapq.heappop(self._events)
            if party and when_s < (until_s := self.parties[party].stalled_until_s):
                heapq.heappush(self._events, (until_s, number, party, act))
                continue
            self.now_s = when_s
            act()
            self.after_event(party)
        self.outcome.ended_s = self.now_s
        for party, site in self.parties.items():
            session = self.session(party)
            self.outcome.tokens[party] = [] if session is None else session.prefix.tokens
            self.outcome.num_forwards[party] = site.num_forwards
        return self.outcome

    def after_event(self, party: str) -> None:
        """Called after every event, of a party or of none (""); a driver that checks invariants does it here."""

    def _is_over(self) -> bool:
        if self.outcome.done is None or any(map(self.open_sessions, self.parties)):
            return False
        return self._num_in_flight == 0 or all(site.session is not None for site in self.parties.values())

    def open_sessions(self, party: str) -> list[int]:
        """Sessions that any actor of a party still holds, once for each actor."""
        site = self.parties[party]
        tables = (site.queue, site.decoder, site.aggregator, site.profiler, site.scheduler)
        return [session for table in tables for session in table.sessions]

    def session(self, party: str) -> Session | None:
        """The session at a party's coordinator; the last that was seen where it is freed."""
        site = self.parties[party]
        site.session = site.queue.sessions.get(self.spec.session, site.session)
        return site.session

    def _open(self) -> None:
        """The client opens the query at its home; a frame opens it elsewhere."""
        home = as_party(self.topology.home)
        sends = self.parties[home].queue.open(self.spec, self.now_s)
        self.session(home)  # seen, even if the very next event ends it
        self.deliver(home, sends)

    def _tick(self, party: str) -> None:
        if "draft_queue" not in self.parties[party].down:
            self.deliver(party, self.tick(party))
        self.at(self.now_s + self.parties[party].queue.tick_s, partial(self._tick, party), party)

    def tick(self, party: str) -> list[Send]:
        """What the timers of a coordinator send now."""
        return self.parties[party].queue.tick(self.now_s)

    def at(self, when_s: float, act: Callable[[], None], party: str = "") -> None:
        """Have `act` called when the clock shows `when_s`; later if it is an act of a party that is stalled then."""
        heapq.heappush(self._events, (when_s, next(self._numbers), party, act))

    # ---- faults ----------------------------------------------------------------------------------------------

    def stall(self, party: str, seconds: float) -> None:
        """Everything at a party stands still from now on, as on a host that was suspended."""
        site = self.parties[party]
        site.stalled_until_s = max(site.stalled_until_s, self.now_s + seconds)

    def cut(self, party: str, seconds: float) -> None:
        """Nothing passes between a party and the others."""
        site = self.parties[party]
        site.cut_until_s = max(site.cut_until_s, self.now_s + seconds)

    def crash(self, party: str, role: ActorKind, down_s: float) -> bool:
        """An actor loses its state and all messages to it, until it is restarted after `down_s`; False: it has none.

        A draft queue asks for a Resync then; the home's holds the user's answer, and must not crash.
        """
        site = self.parties[party]
        if role in site.down or not self.open_sessions(party) or self.session(party) is None:
            return False
        site.down.add(role)
        self.at(self.now_s + down_s, partial(self._restart, party, {role}), party)
        return True

    def crash_host(self, party: str, down_s: float) -> bool:
        """All actors of a party that is not the home lose their state; False: they have none."""
        site = self.parties[party]
        if "draft_queue" in site.down or not site.queue.sessions:
            return False
        site.num_starts += 1
        site.down |= set(ROLES)
        self.at(self.now_s + down_s, partial(self._restart, party, set(ROLES)), party)
        return True

    def _restart(self, party: str, roles: Set[ActorKind]) -> None:
        """The actors know nothing but what their coordinator gives them, and that no more than what a peer tells it
        through a new connection."""
        site = self.parties[party]
        site.down -= roles
        was_open = bool(site.queue.sessions)
        for role in TABLES.keys() & roles:
            setattr(site, TABLES[role], self._make(role, party))
        if "decoder" in roles:
            site.busy_with = None
        if "draft_queue" in roles:
            # What it had begun ends, whether or not its `End` has arrived (`sites.startup`).
            for table in (site.decoder, site.aggregator, site.profiler, site.scheduler):
                table.forget()
            if was_open and (nearer := self.topology.toward_home(party)) is not None:
                for send in self.parties[nearer].queue.resend_all(self.now_s, party):
                    self.receive_frame(party, nearer, send.message)
        elif "draft_queue" not in site.down:  # else they get their sessions from the queue's own restart
            self.deliver(party, [send for role in roles for send in site.queue.restart(role)])

    def cancel(self, party: str) -> None:
        """The user at a party gives the query up, now."""
        self.deliver(party, self.parties[party].queue.cancel(self.spec.session, self.now_s))

    # ---- delivery --------------------------------------------------------------------------------------------

    def deliver(self, party: str, sends: Sequence[Send]) -> None:
        """Bring messages of one party where they go: to its client, across a link, or to its actors."""
        for send in sends:
            if send.to == "client":
                if party != self.topology.home:
                    raise InvariantError(f"{party} has events of a query that was asked at {self.spec.home}")
                self._on_event(send.message.event)
            elif send.to == "peer":
                peer = as_party(send.peer) or next(end for start, end in self.wires if start == party)
                self.cross(party, peer, send.message)
            elif not self.is_lost(party, send):
                start = self.parties[party].num_starts
                act = partial(self._hand, party, send.to, start, send.message)
                self.at(self.now_s + self.hop_s(), act, party)

    def is_lost(self, party: str, send: Send) -> bool:
        """Whether a message within a site gets lost; a driver that plants such losses decides it here."""
        return False

    def hop_s(self) -> float:
        """How long the next message within a site takes."""
        return self.local_s

    def cross(self, party: str, peer: str, frame: LinkFrame) -> None:
        """A frame on its way to a peer."""
        data = encode(frame)
        self.outcome.num_frames += 1
        self.outcome.num_bytes += len(data)
        if max(self.parties[end].cut_until_s for end in (party, peer)) > self.now_s:
            return
        for arrival_s in self.wires[party, peer].arrivals(self.now_s, len(data), self.rng):
            self._num_in_flight += 1
            self.at(arrival_s, partial(self._arrive, peer, party, data), peer)

    def _arrive(self, party: str, source: str, data: bytes) -> None:
        self._num_in_flight -= 1
        if "draft_queue" not in self.parties[party].down:
            self.receive_frame(party, source, decode_link(data))

    def receive_frame(self, party: str, source: str, frame: LinkFrame) -> None:
        """A frame has reached a party."""
        self.deliver(party, self.parties[party].queue.receive(frame, self.now_s, source))
        self.session(party)

    def _hand(self, party: str, to: ActorKind, start: int, message: Any) -> None:
        """A message reaches an actor of a party, unless that is down or its host was restarted since."""
        site = self.parties[party]
        if to not in site.down and start == site.num_starts:
            self.receive(party, to, message)

    def receive(self, party: str, to: ActorKind, message: Any) -> None:
        """An actor of a party acts on a message of its site."""
        site = self.parties[party]
        match to:
            case "draft_queue":
                self.deliver(party, site.queue.receive(message, self.now_s))
            case "retriever":
                self.deliver(party, [Send("decoder", site.model.retrieve(message))])
            case "decoder":
                self.deliver(party, site.decoder.receive(message))
                self._work(party)
            case _:
                self.deliver(party, getattr(site, to).receive(message))

    def _on_event(self, event: Event) -> None:
        self.outcome.events.append(event)
        if isinstance(event, DoneEvent):
            self.outcome.done = event

    # ---- the models ------------------------------------------------------------------------------------------

    def _work(self, party: str) -> None:
        """Start what this party's model should do next."""
        site = self.parties[party]
        if "decoder" in site.down:
            return
        busy = site.busy_with
        if busy is not None:
            if not (self.abandons and isinstance(busy, Forward)):
                return
            session = site.decoder.sessions.get(busy.session)
            if session is not None and session.is_current(busy):
                return
            self.abandon(party)
        site.busy_with = job = site.decoder.next_job()
        if job is not None:
            self.start(party, job)

    def abandon(self, party: str) -> None:
        """The job of a party's model is of no use any more."""

    def start(self, party: str, job: Job) -> None:
        """A party's model begins a job."""
        duration_s = self.decode_s(party, self.rng)
        self.at(self.now_s + duration_s, partial(self.finish, party, job, duration_s), party)

    def finish(self, party: str, job: Job, duration_s: float) -> None:
        """It has ended, unless it was abandoned."""
        site = self.parties[party]
        if site.busy_with is not job or "decoder" in site.down:
            return
        site.busy_with = None
        session, duration_us = site.decoder.sessions.get(job.session), round(duration_s * 1e6)
        if session is not None and isinstance(job, Prefill):
            self.deliver(party, session.finish_prefill(duration_us, (), *site.model.prefill(job)))
        elif session is not None and isinstance(job, Forward):
            site.num_forwards += 1
            results = compute_steps(job, _Pass(self, party, job), lambda: duration_us)
            self.deliver(party, session.finish(job, results))
        self._work(party)

    def vote(self, party: str, job: Forward, step: int, weights: Weights) -> Step:
        """A party's draft or vote at one step of a pass."""
        payload = self.parties[party].model.payload(job.tokens[:step], weights, job.lineage[: step + 1])
        return Step(step, *self.say(party, step, payload))

    def say(self, party: str, step: int, payload: bytes) -> tuple[int, bytes]:
        """The token drawn from an encoded distribution, and what is sent: that, or the token where it is enough.

        A voter that does not draft draws none.
        """
        roles, rules = self.spec.roles, self.spec.rules
        role = roles.role(party)
        sends_tokens = rules.votes_are_tokens or not role.votes
        if not (role.drafts or sends_tokens):
            return 0, payload
        token = self._drafter.draw(payload, seed=self.spec.seed, step=step, party=party)  # type: ignore[arg-type]
        if not sends_tokens:
            return token, payload
        num_top = rules.num_named(party)
        named = (
            None
            if num_top is None
            else log_probabilities(self._codec_of_votes.decode(payload), token, num_top)
        )
        return token, write_token(token, named)


class _Pass(NamedTuple):
    """A party's model at work, as `compute_steps` asks it."""

    run: VirtualRun
    party: str
    job: Forward

    def draw(self, step: int, weights: Weights) -> Step:
        """The party's draft or vote at one step."""
        return self.run.vote(self.party, self.job, step, weights)

    def learn(self, step: int, token: int) -> Evidence:
        """What a token says of each row."""
        model = self.run.parties[self.party].model
        return model.evidence(self.job.tokens[:step], token, len(self.job.weights.prior))
