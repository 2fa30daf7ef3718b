"""A virtual-clock driver: both sides' state machines in one thread, with a link that delays, reorders and drops.

It runs the very classes that the actors run (`tandem.protocol.hosts`); only delivery, time and, if wanted, the
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
from typing import Any, Protocol

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
from tandem.simulation.link import Link, Wire

TICK_S = 0.05


class Reader(Protocol):
    """One side's retriever and model, as far as a run needs them. Called without delay or threads."""

    def retrieve(self, message: Search | Score) -> Message:
        """Found, NotFound or Relevance."""

    def prefill(self, job: Prefill) -> Sequence[int] | None:
        """Hold documents and query of a session; indices of the documents that have a row, None: all."""

    def law(self, job: Forward) -> bytes:
        """The encoded law of one step."""


@dataclass(slots=True)
class SideState:
    """The actors of one side."""

    queue: QueueHost
    decoder: DecoderHost
    aggregator: AggregatorHost
    profiler: ProfilerHost
    scheduler: SchedulerHost
    reader: Reader
    busy_with: Job | None = None
    num_forwards: int = 0
    num_abandoned: int = 0
    down: set[Role] = field(default_factory=set)  # crashed and not yet restarted
    stalled_until_s: float = 0.0


@dataclass(slots=True)
class Outcome:
    """What a run produced."""

    tokens: dict[Side, list[int]] = field(default_factory=lambda: {side: [] for side in SIDES})
    events: list[Event] = field(default_factory=list)
    done: DoneEvent | None = None
    ended_s: float = 0.0
    num_forwards: dict[Side, int] = field(default_factory=dict)
    num_frames: int = 0
    num_bytes: int = 0


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
        self._finished = finished
        self._text = text
        self._wires = {side: Wire(link or Link()) for side in SIDES}  # by sender
        self._decode_s = decode_s
        self._local_s = local_s
        self._events: list[tuple[float, int, Side | None, Callable[[], None]]] = []
        self._count = 0
        self._num_tokens = 0
        self._unopened = set(spec.sides)
        self.sides = {
            side: SideState(
                QueueHost(side, lambda _: finished),
                DecoderHost(side, text),
                AggregatorHost(side, codec),
                ProfilerHost(side),
                SchedulerHost(side),
                readers[side],
            )
            for side in SIDES
        }

    def run(self, limit_s: float = 600.0) -> Outcome:
        """Open the query on its sides and go on until all actors have freed it, or `limit_s` of virtual time."""
        for side in self.spec.sides:
            one_way_s = 0.0 if side is Side.DEVICE else self._wires[side].link.delay_s
            self.at(one_way_s, partial(self._open, side), side)
        while self._events and self.now_s < limit_s:
            self.now_s, count, host, act = heapq.heappop(self._events)
            if host is not None and (until_s := self.sides[host].stalled_until_s) > self.now_s:
                heapq.heappush(self._events, (until_s, count, host, act))
                continue
            act()
            self.after_event()
            if self._is_over():
                break
        self.outcome.ended_s = self.now_s
        self.outcome.num_forwards = {side: state.num_forwards for side, state in self.sides.items()}
        return self.outcome

    def after_event(self) -> None:
        """Called after every event; a driver that checks invariants does it here."""

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
        if "draft_queue" not in self.sides[side].down:
            self._deliver(side, self.sides[side].queue.tick(self.now_s))
        self.at(self.now_s + TICK_S, partial(self._tick, side), side)

    def at(self, when_s: float, act: Callable[[], None], side: Side | None = None) -> None:
        """Have `act` called when the clock shows `when_s`; later if it is an act of a `side` that is stalled then."""
        self._count += 1
        heapq.heappush(self._events, (when_s, self._count, side, act))

    # ---- faults ----------------------------------------------------------------------------------------------

    def stall(self, side: Side, seconds: float) -> None:
        """Everything on `side` stands still from now on, as on a host that was suspended."""
        state = self.sides[side]
        state.stalled_until_s = max(state.stalled_until_s, self.now_s + seconds)

    def crash(self, side: Side, role: Role, down_s: float) -> None:
        """An actor loses its state and all messages to it, until it is started anew after `down_s`.

        Of the draft queues only the cloud's can be: the device's holds the user's answer.
        """
        state = self.sides[side]
        if role in state.down or not self.open_sessions(side) or side in self._unopened:
            return
        state.down.add(role)
        self.at(self.now_s + down_s, partial(self._restart, side, role), side)

    def _restart(self, side: Side, role: Role) -> None:
        state = self.sides[side]
        state.down.discard(role)
        if role == "draft_queue":
            if state.queue.sessions:  # what the former held is lost, but for what was asked
                state.queue = QueueHost(side, lambda _: self._finished)
                self._deliver(side, state.queue.reopen(self.spec, self._rng.getrandbits(32), self.now_s))
                self.outcome.tokens[side] = state.queue.sessions[self.spec.session].prefix.tokens
            return
        if role == "decoder":
            state.decoder, state.busy_with = DecoderHost(side, self._text), None
        elif role == "aggregator":
            state.aggregator = AggregatorHost(side, self._codec)
        elif role == "profiler":
            state.profiler = ProfilerHost(side)
        elif role == "scheduler":
            state.scheduler = SchedulerHost(side)
        if "draft_queue" not in state.down:  # else it gets its sessions from the queue's own restart
            self._deliver(side, state.queue.restarted(role))

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
                act = partial(self._receive, side, send.to, send.message)
                self.at(self.now_s + self._hop_s(), act, side)

    def _hop_s(self) -> float:
        """How long the next message within a side takes."""
        return self._local_s

    def _cross(self, side: Side, frame: bytes) -> None:
        self.outcome.num_frames += 1
        self.outcome.num_bytes += len(frame)
        for arrival_s in self._wires[side].arrivals(self.now_s, len(frame), self._rng):
            self.at(arrival_s, partial(self._receive_frame, side.other, frame), side.other)

    def _receive_frame(self, side: Side, frame: bytes) -> None:
        self._receive(side, "draft_queue", decode(frame))

    def _receive(self, side: Side, to: Role, message: Any) -> None:
        state = self.sides[side]
        if to in state.down:
            return
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
        if isinstance(event, TokenEvent):
            if event.step != self._num_tokens:
                raise AssertionError(f"step {event.step} is committed out of order or twice")
            self._num_tokens += 1

    # ---- the model -------------------------------------------------------------------------------------------

    def _work(self, side: Side) -> None:
        """Start the next job; an outdated one is abandoned at once, as by layer-wise preemption."""
        state = self.sides[side]
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
            duration_s = self._decode_s(side, self._rng)
            self.at(self.now_s + duration_s, partial(self._finish, side, job, duration_s), side)

    def _finish(self, side: Side, job: Job, duration_s: float) -> None:
        state = self.sides[side]
        if state.busy_with is not job or "decoder" in state.down:
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
