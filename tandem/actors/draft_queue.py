"""The draft queue: one side's hub. It owns the connection to the peer and the committed prefix.

    own Decoder --Drafted--> DraftQueue <--LinkFrame--> peer's DraftQueue
    DraftQueue --Pair--> own Aggregator --Decision--> DraftQueue --Commit--> own Decoder
    client --open/events/cancel (Ray calls)--> DraftQueue

All decisions are the host's; this shell delivers, ticks, and keeps the events that a client fetches.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from typing import Any, ClassVar

from tandem.actors.base import Runtime, SiteActor
from tandem.engine.tokenizer import Detokenizer, StopRule, TextStream
from tandem.errors import TandemError
from tandem.events import (
    ClientEvent,
    DoneEvent,
    Event,
    ProvisionalEvent,
    RetractEvent,
    SessionStatistics,
    Source,
    SourcesEvent,
    TokenEvent,
)
from tandem.protocol.messages import DecoderFailed, DecoderReady
from tandem.protocol.outbox import ActorKind, Send
from tandem.protocol.session_tables import CoordinatorTable
from tandem.protocol.spec import SessionSpec
from tandem.topology import Party
from tandem.transport.port import Endpoint, LinkCounters

TICK_S = 0.05
"""Between looks at the timers while a session is open."""
RENEW_S = 0.5
"""Between new connections to a silent peer."""
REQUIRED_ACTORS = ("decoder", "aggregator")
"""Actors of the own side without which no query can be answered."""
EVENTS_KEPT_S = 60.0
"""How long the events of an ended session can still be fetched."""
OPENING_S = 1.0
"""How long `cancel` waits for its session to be opened: Ray may run one client's calls in another order."""


class _Log:
    """The events of one session, for whoever asks."""

    def __init__(self, rule: StopRule, link: LinkCounters | None, now_s: float) -> None:
        self.events: list[Event] = []
        self.sources: SourcesEvent | None = None
        self.changed = asyncio.Event()
        self.opened_s = now_s
        self.ended_s: float | None = None
        self.stream = TextStream(rule)
        self.provisional: list[TextStream] = []  # after each provisional token
        self.link = link  # counters of the connection to the peer when the session began; None: it has none

    def add(self, event: Event) -> None:
        """Append and wake whoever waits."""
        self.events.append(event)
        self.wake()

    def with_text(self, event: Event) -> Event:
        """The event with the text that its token adds. It depends on the tokens so far alone, so a provisional token
        adds what it will add once it is committed."""
        match event:
            case ProvisionalEvent():
                self.provisional.append((self.provisional or [self.stream])[-1].copy())
                return replace(event, text=self.provisional[-1].push([event.token]))
            case RetractEvent():
                del self.provisional[event.step - self.stream.num_tokens :]
            case TokenEvent():
                del self.provisional[:1]  # it is confirmed, or there is none
                return replace(event, text=self.stream.push([event.token]))
        return event

    def wake(self) -> None:
        """Something changed."""
        self.changed.set()
        self.changed = asyncio.Event()


class DraftQueueActor(SiteActor):
    """Pairs drafts, commits tokens, keeps the peer in step."""

    role: ClassVar[ActorKind] = "draft_queue"
    dials: ClassVar[tuple[ActorKind, ...]] = ("decoder", "aggregator", "profiler", "scheduler")

    def __init__(self, party: Party, runtime: Runtime) -> None:
        super().__init__(party, runtime)
        self.host = CoordinatorTable(party, lambda spec: self._stop_rule(spec).find_reason)
        self._detokenizer: Detokenizer | None = None
        self._logs: dict[int, _Log] = {}
        self._opened = asyncio.Event()  # set, and replaced, whenever a session is opened
        self._ticking = False
        self._renew_again_s = 0.0
        self._endpoint: Endpoint | None = None

    # ---- control plane ---------------------------------------------------------------------------------------

    async def secret(self) -> bytes:
        """The data plane's secret, for the other side's actors when they are started."""
        return self.runtime.secret

    async def endpoint(self) -> Endpoint:
        """Where the peer finds this queue."""
        assert self._endpoint is not None
        return self._endpoint

    async def listen(self) -> Endpoint:
        """As all actors do; remembers where."""
        self._endpoint = await super().listen()
        return self._endpoint

    async def set_tokenizer(self, tokenizer_json: str) -> None:
        """How tokens become text, for stop strings and streams."""
        self._detokenizer = Detokenizer(tokenizer_json)

    async def open(self, spec_json: str) -> None:
        """A query starts on this side."""
        spec = SessionSpec.from_json(spec_json)
        now_s = time.monotonic()
        self._forget_old_logs(now_s)
        link = self._peer_counters() if spec.only is None else None
        self._keep_log(spec.session, _Log(self._stop_rule(spec), link, now_s))
        self.dispatch(self.host.open(spec, now_s))
        for role in REQUIRED_ACTORS:
            if not self._plane().is_connected(f"{self.party}/{role}"):
                self.dispatch(self.host.fail(spec.session, self._stopped(role), now_s))
        if not self._ticking:
            self._ticking = True
            self.spawn(self._tick(), "tick")

    async def events(self, session: int, after: int, wait_s: float, at_once: bool) -> list[Event]:
        """The events of a session from position `after` on, waited for up to `wait_s`.

        at_once: wait for the last of them, so that nobody is woken for each token; after -1 gives the last alone.
        """
        deadline_s = time.monotonic() + wait_s
        log = await self._opened_log(session, wait_s)
        if log is None:
            return []
        while len(log.events) <= after or (at_once and log.ended_s is None):
            try:
                await asyncio.wait_for(log.changed.wait(), deadline_s - time.monotonic())
            except TimeoutError:
                break
        return [] if at_once and log.ended_s is None else log.events[after:]

    async def sources(self, session: int, wait_s: float = 30.0) -> SourcesEvent | None:
        """This side's documents, once they are prefilled: opaque ids only."""
        deadline_s = time.monotonic() + wait_s
        log = await self._opened_log(session, wait_s)
        while log is not None and log.sources is None and session in self.host.sessions:
            if time.monotonic() > deadline_s:
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(log.changed.wait(), 0.25)  # a session may end without an event
        return None if log is None else log.sources

    async def cancel(self, session: int) -> None:
        """The user gave a query up."""
        await self._opened_log(session, OPENING_S)
        self.dispatch(self.host.cancel(session, time.monotonic()))

    # ---- data plane ------------------------------------------------------------------------------------------

    def handle(self, message: Any, source: str) -> list[Send]:
        """All decisions are the host's."""
        if isinstance(message, DecoderReady):
            self._note_sources(message)
        return self.host.receive(message, time.monotonic())

    def on_error(self, message: Any, error: TandemError) -> None:
        """A message that cannot be handled ends its session, not the actor."""
        super().on_error(message, error)
        failed = DecoderFailed(session=message.session, reason=str(error))
        self.dispatch(self.host.receive(failed, time.monotonic()))

    def on_event(self, told: ClientEvent) -> None:
        """Keep an event for this side's user, tokens with the text they add."""
        log = self._logs.get(told.session)
        if log is None:
            return
        event = log.with_text(told.event)
        if isinstance(event, DoneEvent):
            log.ended_s = time.monotonic()
            counted = self._with_link_counters(log, event.statistics)
            event = replace(event, statistics=counted, session=told.session)
        log.add(event)

    def on_connected(self, name: str) -> None:
        """A new connection to the peer: what it has not acknowledged goes out at once."""
        if name == f"{self.party.other}/draft_queue" and self.host.sessions:
            self.dispatch(self.host.resend_all(time.monotonic()))

    def on_lost(self, name: str) -> None:
        """An actor of this side died: its sessions cannot go on."""
        party, _, role = name.partition("/")
        if party == self.party and role in REQUIRED_ACTORS and self.host.sessions:
            self.dispatch(self.host.fail_all(self._stopped(role), time.monotonic()))

    def _stopped(self, role: str) -> str:
        return (
            f"The {role} of the {self.party} must be running but stopped; start the {self.party} side again."
        )

    # ---- private ---------------------------------------------------------------------------------------------

    async def _opened_log(self, session: int, wait_s: float) -> _Log | None:
        """What is kept of a session, once it is opened; None: it is forgotten, or it never was."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while session not in self._logs:
                    await self._opened.wait()
        return self._logs.get(session)

    def _keep_log(self, session: int, log: _Log) -> None:
        """From now on calls for this session find it."""
        self._logs[session] = log
        self._opened.set()
        self._opened = asyncio.Event()

    async def _tick(self) -> None:
        """Timers, and a new connection where the peer has fallen silent; ends with the last session."""
        try:
            while self.host.sessions:
                await asyncio.sleep(TICK_S)
                now_s = time.monotonic()
                self.dispatch(self.host.tick(now_s))
                if any(session.is_silent(now_s) for session in self.host.sessions.values()):
                    self._renew_peer(now_s)
        finally:
            self._ticking = False

    def _renew_peer(self, now_s: float) -> None:
        if self.party is Party.DEVICE and now_s >= self._renew_again_s:
            self._renew_again_s = now_s + RENEW_S
            self._plane().renew(f"{self.party.other}/draft_queue")

    def _stop_rule(self, spec: SessionSpec) -> StopRule:
        return StopRule(
            spec.eos_token_ids, spec.sampling.stop, spec.sampling.max_new_tokens, self._detokenizer
        )

    def _note_sources(self, ready: DecoderReady) -> None:
        log = self._logs.get(ready.session)
        if log is not None:
            log.sources = SourcesEvent(
                party=self.party,
                sources=tuple(
                    Source(party=self.party, id=key, score=score if self.party is Party.DEVICE else None)
                    for key, score in zip(ready.sources, ready.scores, strict=True)
                ),
                retrieve_s=ready.retrieve_us / 1e6,
                prefill_s=ready.prefill_us / 1e6,
                notes=ready.notes,
            )
            log.wake()

    def _peer_counters(self) -> LinkCounters:
        return replace(self._plane().counters[f"{self.party.other}/draft_queue"])

    def _with_link_counters(self, log: _Log, statistics: SessionStatistics) -> SessionStatistics:
        now, start = self._peer_counters(), log.link
        if start is None:
            return statistics
        return replace(
            statistics,
            sent_frames=now.sent_frames - start.sent_frames,
            sent_bytes=now.sent_bytes - start.sent_bytes,
            received_frames=now.received_frames - start.received_frames,
            received_bytes=now.received_bytes - start.received_bytes,
        )

    def _forget_old_logs(self, now_s: float) -> None:
        for key, log in list(self._logs.items()):
            if log.ended_s is None and key not in self.host.sessions:
                log.ended_s = now_s  # only the side that tells the user sees a DoneEvent
            if log.ended_s is not None and now_s - log.ended_s > EVENTS_KEPT_S:
                del self._logs[key]

    def _peers(self) -> set[str]:
        """The device dials: it may sit behind a router that lets nothing in."""
        return {"cloud/draft_queue"} if self.party is Party.DEVICE else set()

    def _listening_host(self) -> str | None:
        if self.party is Party.DEVICE:
            return None
        return self.runtime.host or self.config.link.host or "127.0.0.1"
