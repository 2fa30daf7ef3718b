"""A virtual-clock driver: both sides' state machines in one thread, with a link that delays, reorders and drops.

It runs the very classes that the actors run (`tandem.protocol.hosts`); only delivery, time and, if wanted, the
model are replaced. Deterministic: the same seed gives the same run. Frames are encoded and decoded on the way,
so what arrives is what a real link would deliver. Knows nothing of Ray or sockets.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from tandem.aggregation.codec import Codec
from tandem.aggregation.rules import DraftRule, draft_rule
from tandem.events import DoneEvent, Event, TokenEvent
from tandem.messages import Message, Score, Search, decode, encode
from tandem.protocol.drafting import Forward, Job, Prefill
from tandem.protocol.hosts import (
    AggregatorHost,
    DecoderHost,
    ProfilerHost,
    QueueHost,
    SchedulerHost,
    sessions_of,
)
from tandem.protocol.queue import Finished
from tandem.protocol.sends import Role, Send
from tandem.protocol.spec import SessionSpec
from tandem.side import SIDES, Side

TICK_S = 0.05


class Reader(Protocol):
    """One side's retriever and model, as far as a run needs them. Called without delay or threads."""

    def retrieve(self, message: Search | Score) -> Message:
        """Found, NotFound or Relevance."""

    def prefill(self, job: Prefill) -> Sequence[int] | None:
        """Hold documents and query of a session; indices of the documents that have a row, None: all."""

    def law(self, job: Forward) -> bytes:
        """The encoded law of one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How frames fare between the sides. One way, in seconds and probabilities."""

    delay_s: float = 0.0
    jitter_s: float = 0.0  # uniform on top; makes frames overtake each other
    drop: float = 0.0
    duplicate: float = 0.0
    cut_s: tuple[float, float] | None = None  # nothing passes in this span of the clock

    def arrivals(self, now_s: float, rng: random.Random) -> list[float]:
        """When copies of a frame sent now arrive."""
        if self.cut_s is not None and self.cut_s[0] <= now_s < self.cut_s[1]:
            return []
        copies = (rng.random() >= self.drop) + (rng.random() < self.duplicate)
        return [now_s + self.delay_s + rng.random() * self.jitter_s for _ in range(copies)]


@dataclass(slots=True)
class _SideState:
    queue: QueueHost
    decoder: DecoderHost
    aggregator: AggregatorHost
    profiler: ProfilerHost
    scheduler: SchedulerHost
    reader: Reader
    busy_with: Job | None = None
    num_forwards: int = 0
    num_abandoned: int = 0


@dataclass(slots=True)
class Outcome:
    """What a run produced."""

    tokens: dict[Side, list[int]] = field(default_factory=lambda: {side: [] for side in SIDES})
    events: list[Event] = field(default_factory=list)
    done: DoneEvent | None = None
    ended_s: float = 0.0
    num_forwards: dict[Side, int] = field(default_factory=dict)
    num_frames: int = 0


class VirtualRun:
    """One query through both sides."""

    def __init__(
        self,
        spec: SessionSpec,
        readers: dict[Side, Reader],
        codec: Codec,
        *,
        finished: Finished,
        text: Callable[[Sequence[int]], str] = lambda tokens: " ".join(map(str, tokens)),
        link: Link | None = None,
        decode_s: Callable[[Side, random.Random], float] = lambda side, rng: 0.01,
        local_s: float = 1e-4,
        seed: int = 0,
    ) -> None:
        """`decode_s` gives the time of each forward; `local_s` is a hop within a side."""
        self.spec = spec
        self.outcome = Outcome()
        self.now_s = 0.0
        self._rng = random.Random(seed)
        self._codec = codec
        self._rule: DraftRule = draft_rule(spec.draft_rule, spec.temperature)
        self._link = link or Link()
        self._decode_s = decode_s
        self._local_s = local_s
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._unopened = set(SIDES)
        self.sides = {
            side: _SideState(
                QueueHost(side, lambda _: finished),
                DecoderHost(side, text),
                AggregatorHost(side, codec),
                ProfilerHost(side),
                SchedulerHost(),
                readers[side],
            )
            for side in SIDES
        }

    def run(self, limit_s: float = 600.0) -> Outcome:
        """Open the query on both sides and go on until all actors have freed it, or `limit_s` of virtual time."""
        for side in SIDES:
            one_way_s = 0.0 if side is Side.DEVICE else self._link.delay_s
            self.at(one_way_s, lambda side=side: self._open(side))  # type: ignore[misc]
        while self._events and self.now_s < limit_s:
            self.now_s, _, act = heapq.heappop(self._events)
            act()
            if self._is_over():
                break
        self.outcome.ended_s = self.now_s
        self.outcome.num_forwards = {side: state.num_forwards for side, state in self.sides.items()}
        return self.outcome

    def _is_over(self) -> bool:
        if self.outcome.done is None or self._unopened:
            return False
        return not any(self.open_sessions(side) for side in SIDES)

    def open_sessions(self, side: Side) -> list[int]:
        """Sessions that any actor of `side` still holds, once for each actor."""
        state = self.sides[side]
        return list(
            sessions_of((state.queue, state.decoder, state.aggregator, state.profiler, state.scheduler))
        )

    def _open(self, side: Side) -> None:
        self._unopened.discard(side)
        queue = self.sides[side].queue
        sends = queue.open(self.spec, self.now_s)
        self.outcome.tokens[side] = queue.sessions[self.spec.session].prefix.tokens
        self._deliver(side, sends)
        self._tick(side)

    def _tick(self, side: Side) -> None:
        self._deliver(side, self.sides[side].queue.tick(self.now_s))
        self.at(self.now_s + TICK_S, lambda: self._tick(side))

    def at(self, when_s: float, act: Callable[[], None]) -> None:
        """Have `act` called when the clock shows `when_s`; what fails or is cancelled in a test goes in here."""
        self._count += 1
        heapq.heappush(self._events, (when_s, self._count, act))

    def cancel(self, side: Side) -> None:
        """The user of `side` gives the query up, now."""
        self._deliver(side, self.sides[side].queue.cancel(self.spec.session, self.now_s))

    # ---- delivery --------------------------------------------------------------------------------------------

    def _deliver(self, side: Side, sends: list[Send]) -> None:
        for send in sends:
            if send.to == "client":
                self._on_event(send.message.event)
            elif send.to == "peer":
                self._cross(side, encode(send.message))
            else:
                frame = encode(send.message)
                self.at(self.now_s + self._local_s, partial(self._receive, side, send.to, frame))

    def _cross(self, side: Side, frame: bytes) -> None:
        self.outcome.num_frames += 1
        for arrival_s in self._link.arrivals(self.now_s, self._rng):
            self.at(arrival_s, lambda: self._receive(side.other, "draft_queue", frame))

    def _receive(self, side: Side, to: Role, frame: bytes) -> None:
        state = self.sides[side]
        message = decode(frame)
        match to:
            case "draft_queue":
                self._deliver(side, state.queue.receive(message, self.now_s))
            case "retriever":
                self._deliver(side, [Send("decoder", state.reader.retrieve(message))])
            case "decoder":
                self._deliver(side, state.decoder.receive(message))
                self._work(side)
            case "aggregator":
                self._deliver(side, state.aggregator.receive(message))
            case "profiler":
                self._deliver(side, state.profiler.receive(message))
            case "scheduler":
                self._deliver(side, state.scheduler.receive(message))

    def _on_event(self, event: Event) -> None:
        self.outcome.events.append(event)
        if isinstance(event, DoneEvent):
            self.outcome.done = event
        if isinstance(event, TokenEvent) and event.step != sum(
            isinstance(earlier, TokenEvent) for earlier in self.outcome.events[:-1]
        ):
            raise AssertionError(f"step {event.step} is committed out of order or twice")

    # ---- the model -------------------------------------------------------------------------------------------

    def _work(self, side: Side) -> None:
        """Start the next job; an outdated one is abandoned at once, as by layer-wise preemption."""
        state = self.sides[side]
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
            duration_s = self._decode_s(side, self._rng)
            self.at(self.now_s + duration_s, lambda: self._finish(side, job, duration_s))

    def _finish(self, side: Side, job: Job, duration_s: float) -> None:
        state = self.sides[side]
        if state.busy_with is not job:
            return
        state.busy_with = None
        session = state.decoder.sessions.get(job.session)
        if session is not None and isinstance(job, Prefill):
            rows = state.reader.prefill(job)
            self._deliver(side, session.prefilled(int(duration_s * 1e6), (), rows))
        elif session is not None and isinstance(job, Forward):
            state.num_forwards += 1
            law = state.reader.law(job)
            token = self._rule.draft(self._codec.decode(law), seed=self.spec.seed, step=job.step, side=side)
            self._deliver(side, session.drafted(job, law, token, int(duration_s * 1e6)))
        self._work(side)
