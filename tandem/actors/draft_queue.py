"""The draft queue: one side's hub, which owns the connections to its peers and the committed prefixes.

    own Decoder --Local--> DraftQueue <--LinkFrame--> peer's DraftQueue
    DraftQueue --Ballot--> own Aggregator --VerifyResult--> DraftQueue --Local--> own Decoder
    client --open/events/cancel (calls)--> DraftQueue

The session table makes all decisions; this shell delivers messages, runs the timers, and keeps events until the client
fetches them.

    device "@phone" --LinkFrame--> HostQueue --as from "device"--> session table
    device "@phone" <--LinkFrame-- HostQueue <--to "device"------- session table

A session belongs to the device that opened it. Its number, 32 random bits, is part of every digest, so it is not
translated; a number that another device uses already is refused, and a frame for another device's session is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from dataclasses import replace
from functools import reduce
from itertools import islice
from typing import Any, ClassVar

from tandem.actors.base import Runtime, SiteActor, remedy_for, report_failure
from tandem.engine.pieces import PieceLists
from tandem.engine.tokenizer import Detokenizer, StopRule, TextStream
from tandem.errors import Code, ProtocolError, QueryError, TandemError
from tandem.events import (
    ClientEvent,
    DoneEvent,
    Event,
    PeerEvent,
    ProvisionalEvent,
    RetractEvent,
    SourcesEvent,
    TokenEvent,
)
from tandem.messages import Cancel, DecoderFailed, LinkFrame, Open, encode
from tandem.modes import SessionSpec
from tandem.protocol.admission import check_spec
from tandem.protocol.log import Prefix
from tandem.protocol.peer import Peer
from tandem.protocol.routes import ActorKind, Send
from tandem.protocol.table import CLOUD_REMEDY, OWN_REMEDY, CoordinatorTable
from tandem.topology import Party, as_party, at_start
from tandem.transport.port import LinkCounters, add_counters

_log = logging.getLogger("tandem")

RENEW_S = 2.0
"""Between two renewals of the connection to a silent peer: what is new has frames to deliver over a slow link."""
REQUIRED_ACTORS: tuple[ActorKind, ...] = ("decoder", "aggregator")
"""Actors of the own side that every query needs."""
EVENTS_KEPT_S = 60.0
"""How long a client can still fetch the events of an ended session."""
OPENING_S = 1.0
"""How long `cancel` waits for its session to open: Ray may run one client's calls in another order."""


class EventLog:
    """The events of one session, kept by its home side until the client fetches them, tokens with their text."""

    def __init__(self, rule: StopRule, link: LinkCounters | None) -> None:
        self.events: list[Event] = []
        self.sources: dict[str, SourcesEvent] = {}
        self.changed = asyncio.Event()
        self.ended_s: float | None = None
        self.stream = TextStream(rule)
        self._detokenizer = rule.detokenizer
        self.provisional: list[TextStream] = []  # after each provisional token
        self.link = link  # its counters when the session began; None: the session does not use it

    def add(self, event: Event) -> None:
        """Append an event and wake all waiting calls."""
        self.events.append(event)
        self.wake()

    def with_text(self, event: Event) -> Event:
        """The event with the text that its token adds. That text depends only on the tokens so far, so a provisional
        token adds the same text as it will once it is committed."""
        match event:
            case ProvisionalEvent():
                self.provisional.append((self.provisional or [self.stream])[-1].copy())
                return replace(event, text=self.provisional[-1].push([event.token]))
            case RetractEvent():
                del self.provisional[event.step - self.stream.num_tokens :]
            case TokenEvent():
                del self.provisional[:1]  # confirmed now, if there was one
                shown = replace(event, text=self.stream.push([event.token]))
                return shown if self._detokenizer is None else shown.spelled(self._detokenizer.spell)
        return event

    def wake(self) -> None:
        """Wake all waiting calls."""
        self.changed.set()
        self.changed = asyncio.Event()


class DraftQueueActor(SiteActor):
    """Pairs drafts, commits tokens, and keeps the peer in step."""

    role: ClassVar[ActorKind] = "draft_queue"
    dials: ClassVar[tuple[ActorKind, ...]] = ("decoder", "aggregator", "profiler", "scheduler")
    has_peers: ClassVar[bool] = True

    def __init__(self, party: str, runtime: Runtime) -> None:
        super().__init__(party, runtime)
        self.table: CoordinatorTable = CoordinatorTable(
            party,
            lambda spec: self._stop_rule(spec).find_reason,
            self._obstacle,
            max_open=self.config.cluster.max_sessions,
        )
        self._detokenizer: Detokenizer | None = None
        self._pieces = PieceLists()
        self.logs: dict[int, EventLog] = {}
        self._opened = asyncio.Event()  # set and replaced whenever a session opens
        self._ticking = False
        self._renew_again_s = 0.0

    # ---- control plane ---------------------------------------------------------------------------------------

    async def set_detokenizer(self, detokenizer: Detokenizer) -> None:
        """Take what turns tokens into text, for stop strings and the streamed answer."""
        self._detokenizer = detokenizer

    async def share(self, vocabularies: dict[str, bytes]) -> None:
        """Have a list of the pieces of these parties' vocabularies, for answers of them."""
        await self.in_thread(lambda: self._pieces.add(vocabularies))

    async def shared(self) -> list[dict[str, bytes]]:
        """What `share` was given, for actors that are replaced."""
        return self._pieces.vocabularies

    async def is_prepared(self) -> bool:
        """Whether others can connect and the tokenizer is there, the last thing that a starting party gets."""
        return await super().is_prepared() and self._detokenizer is not None

    async def find_obstacle(self) -> str | None:
        """The reason why no query can be taken now, if so; an actor that was replaced may not be connected yet."""
        return self._obstacle()

    def limit_queries(self, max_queries: int) -> None:
        """Have no more queries open at once than the cloud of a join link takes, or than the settings say."""
        own = self.config.cluster.max_sessions
        self.table.max_open = min(own, max_queries)
        self.table.remedy = OWN_REMEDY if own <= max_queries else CLOUD_REMEDY

    async def drop(self, name: str) -> None:
        """An own actor is dead, whether the connection to it has noticed or not."""
        self.on_lost(name)

    async def open(self, spec_json: str) -> None:
        """Start a query whose client is here, or let it wait; the peer learns of it over the link once it starts."""
        spec = SessionSpec.from_json(spec_json)
        now_s = time.monotonic()
        self.forget_old_logs(now_s)
        link = self.peer_counters() if spec.only is None else None
        self.add_log(spec.session, EventLog(self._stop_rule(spec), link))
        self.dispatch(self.table.open(spec, now_s))
        self._start_ticking()

    async def events(self, session: int, after: int, wait_s: float, at_once: bool) -> list[Event]:
        """The events of a session from position `after` on; waits up to `wait_s` for the first of them.

        at_once: wait for the end of the answer instead, or so long. after=-1 returns only the last event.
        """
        log = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):  # `wait_for` would wake a task of its own for each event
                log = await self._opened_log(session, wait_s)
                while log is not None and (len(log.events) <= after or (at_once and log.ended_s is None)):
                    await log.changed.wait()
        return [] if log is None else log.events[after:]

    async def sources(
        self, session: int, wait_s: float = 30.0, party: str | None = None
    ) -> SourcesEvent | None:
        """Opaque ids of a party's documents, once they are prefilled; None if they never were.

        wait_s: for the session to open. party: None is this one. The peer's come across the link.
        """
        holder = party or self.party
        log = await self._opened_log(session, wait_s)
        while log is not None and holder not in log.sources and self.table.holds(session):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(log.changed.wait(), 0.25)  # a session can end without an event
        return None if log is None else log.sources.get(holder)

    async def cancel(self, session: int) -> None:
        """Cancel a query."""
        await self._opened_log(session, OPENING_S)
        self.dispatch(self.table.cancel(session, time.monotonic()))

    # ---- data plane ------------------------------------------------------------------------------------------

    def handle(self, message: Any, source: str) -> list[Send]:
        """Hand a message to the session table, which may open a query of the peer."""
        party = source.partition("/")[0]
        peer = "" if party == self.party else as_party(party)
        if isinstance(message, DecoderFailed) and message.fault.code is Code.FAILED:
            session = self.table.sessions.get(message.session)
            if session is not None and session.spec.home != self.party:  # whose client learns no reason
                _log.error("%s: session %08x failed: %s", self.name, message.session, message.reason)
        sends = self.table.receive(message, time.monotonic(), peer)
        self._start_ticking()
        return sends

    def on_error(self, message: Any, error: TandemError) -> None:
        """A message that cannot be handled ends its session, not the actor."""
        super().on_error(message, error)
        failed = report_failure(message.session, error)
        self.dispatch(self.table.receive(failed, time.monotonic()))

    def on_event(self, client_event: ClientEvent) -> None:
        """Keep an event for this side's client, tokens with the text they add."""
        if (log := self.logs.get(client_event.session)) is None:
            return
        if isinstance(client_event.event, SourcesEvent):
            log.sources[client_event.event.party] = client_event.event
            log.wake()
            return
        event = log.with_text(client_event.event)
        if isinstance(event, PeerEvent) and event.is_alone and event.reason is None:  # it was silent
            event = replace(event, reason=self._plane().refusal_of(f"{event.party}/{self.role}"))
        if isinstance(event, DoneEvent):
            log.ended_s = time.monotonic()
            statistics = event.statistics
            if log.link is not None:
                now, start = self.peer_counters(), log.link
                names = ("sent_frames", "sent_bytes", "received_frames", "received_bytes")
                link = {name: getattr(now, name) - getattr(start, name) for name in names}
                statistics = replace(statistics, **link)
            event = replace(event, statistics=statistics, session=client_event.session)
        log.add(event)

    def on_connected(self, name: str) -> None:
        """Resend what a peer has not acknowledged. Own actors but the decoder learn what is open."""
        party, _, role = name.partition("/")
        if party == self.party and role != "decoder":
            self.dispatch([send for kind in self.dials if kind == role for send in self.table.restart(kind)])
        if party in self.peers and role == self.role and self.table.sessions:
            self.dispatch(self.table.resend_all(time.monotonic(), party))

    def on_lost(self, name: str) -> None:
        """Without its required actors, no session of this side can continue."""
        party, _, role = name.partition("/")
        if party == self.party and role in REQUIRED_ACTORS and self.table.sessions:
            self.dispatch(self.table.fail_all(self._stopped(role), time.monotonic()))

    def _obstacle(self) -> str | None:
        lost = (role for role in REQUIRED_ACTORS if not self.is_reachable(f"{self.party}/{role}"))
        return next(map(self._stopped, lost), None)

    def _stopped(self, role: str) -> str:
        return f"{at_start(self.party)}'s {role} has stopped; {remedy_for(self.party)}."

    # ---- private ---------------------------------------------------------------------------------------------

    async def _opened_log(self, session: int, wait_s: float) -> EventLog | None:
        """The log of a session, once it is open; None if it did not open in time or is forgotten."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while session not in self.logs:
                    await self._opened.wait()
        return self.logs.get(session)

    def add_log(self, session: int, log: EventLog) -> None:
        """Add the log of a new session and wake the calls that wait for it."""
        self.logs[session] = log
        self._opened.set()
        self._opened = asyncio.Event()

    def _start_ticking(self) -> None:
        if self.table.needs_ticks and not self._ticking:
            self._ticking = True
            self.spawn(self._tick(), "tick")

    async def _tick(self) -> None:
        """Run the timers and reconnect to a silent peer; ends soon after the last session."""
        try:
            while self.table.needs_ticks:
                await asyncio.sleep(self.table.tick_s)
                now_s = time.monotonic()
                self.dispatch(self.table.tick(now_s))
                if self.table.has_silent_peer(now_s) and now_s >= self._renew_again_s:
                    self._renew_again_s = now_s + RENEW_S
                    for name in self._peers():
                        self._plane().renew(name)
        finally:
            self._ticking = False

    def _stop_rule(self, spec: SessionSpec) -> StopRule:
        text = self._pieces.get(spec.pieces) or self._detokenizer  # the decoder says where it is missing
        return StopRule.of(spec.eos_token_ids, spec.sampling, text, spec.grammar)

    def peer_counters(self) -> LinkCounters:
        """The counters of the links so far, of all peers together."""
        counters = [self._plane().counters[f"{peer}/draft_queue"] for peer in self.peers]
        return reduce(add_counters, counters, LinkCounters())

    def forget_old_logs(self, now_s: float) -> None:
        """Drop the events of sessions that ended a while ago."""
        for key, log in list(self.logs.items()):
            if log.ended_s is None and not self.table.holds(key):
                log.ended_s = now_s  # only the home side sees a DoneEvent
            if log.ended_s is not None and now_s - log.ended_s > EVENTS_KEPT_S:
                del self.logs[key]

    def _extra_statistics(self) -> dict[str, float]:
        return {"num_waiting": self.table.num_waiting}

    def _peers(self) -> set[str]:
        """The device connects to the cloud, never the other way: it may be behind NAT. Workers likewise."""
        return {f"{party}/draft_queue" for party in self.config.topology.dials_of(self.party)}

    def _listening_host(self) -> str | None:
        is_dialled = self.party in self.config.topology.dialled
        return (self.runtime.host or self.config.link.host or "127.0.0.1") if is_dialled else None


PEER = f"{Party.DEVICE}/draft_queue"
MAX_OWNERS = 1024
"""Sessions whose device is remembered, beyond those that are open."""
SESSIONS_PER_QUERY = 2
"""Of a device that keeps to its limit: after a broken link, what has ended there may still be open here."""


def is_device(name: str) -> bool:
    """Whether a name on the data plane is that of a device's draft queue."""
    return name.startswith("@")


class HostQueue(DraftQueueActor):
    """Gives every query of every device to the same session table, and keeps them apart."""

    def __init__(self, party: str, runtime: Runtime) -> None:
        super().__init__(party, runtime)
        self.num_foreign = 0  # frames of a device for a session that is not its own
        self.owners: dict[int, str] = {}  # session -> draft queue of its device, oldest first
        self.table.owner_of = lambda session: self.owners.get(session, "")
        self.pieces_of: dict[str, str] = {}  # draft queue of a device -> list of pieces; none: its tokens fit

    def receive(self, message: Any, source: str) -> None:
        """Handle a message of this site, or a device's frame for one of its sessions."""
        if not is_device(source):
            super().receive(message, source)
            return
        if isinstance(message.body, Open) and message.session not in self.owners:
            if (refusal := self._find_refusal(message.body, source)) is not None:
                self._refuse(message, source, refusal)
                return
            self.owners[message.session] = source
            if len(self.owners) > MAX_OWNERS:  # then those of the sessions that ended first are forgotten
                over = (session for session in self.owners if not self.table.holds(session))
                for session in list(islice(over, len(self.owners) - MAX_OWNERS)):
                    del self.owners[session]
        if self.owners.get(message.session) != source:
            self.num_foreign += 1
            if (count := self.num_foreign).bit_count() == 1:
                dropped = "%s dropped a frame of %s for a query that it has not opened, %d so far"
                _log.warning(dropped, self.name, source, count)
            return
        super().receive(message, PEER)

    def send_to_peer(self, send: Send, frame: bytes) -> None:
        """Send a message to the device whose session it is."""
        if owner := self.owners.get(send.message.session):
            self.bus.send(self._plane(), owner, frame)

    def on_connected(self, name: str) -> None:
        """Resend at once what this device has not acknowledged."""
        if not is_device(name):
            super().on_connected(name)
        elif own := [session for session in self.table.sessions if self.owners.get(session) == name]:
            self.dispatch(self.table.resend_all(time.monotonic(), Party.DEVICE, own))

    def open_by_device(self) -> Counter[str]:
        """How many queries each device has open or waiting, by the name of its draft queue."""
        return Counter(owner for session, owner in self.owners.items() if self.table.holds(session))

    def _find_refusal(self, opening: Open, source: str) -> TandemError | None:
        """The reason why a query of a device is not taken, if so; the table refuses a malformed one.

        Devices know `max_queries` and keep the rest waiting, so a limit protects the cloud from those that do not.
        """
        limits = self.config.devices
        if (num_open := self.open_by_device()[source]) >= SESSIONS_PER_QUERY * limits.max_queries:
            return QueryError(
                f"This device has {num_open} queries open at the cloud, as many as it may; wait for one to end.",
                code=Code.BUSY,
                retry_after_s=1,
            )
        try:
            spec = SessionSpec.from_json(opening.spec)
            check_spec(spec, limits.max_answer_tokens)
        except ProtocolError as error:
            return error
        if spec.pieces != self.pieces_of.get(source, ""):
            return QueryError(
                "This answer was begun before device and cloud knew each other's vocabulary; ask again.",
                code=Code.CHANGED,
            )
        return None

    def _refuse(self, frame: LinkFrame, source: str, error: TandemError) -> None:
        self.table.num_refused += 1
        if (count := self.table.num_refused).bit_count() == 1:  # a device decides how often this happens
            _log.warning("%s refused a query of %s, %d so far: %s", self.name, source, count, error)
        now_s, cancel = time.monotonic(), Cancel(reason=str(error), fault=error.fault)
        send = Peer(frame.session, now_s, Party.DEVICE).send(cancel, Prefix(frame.session), now_s)
        self.bus.send(self._plane(), source, encode(send.message))

    def _extra_statistics(self) -> dict[str, float]:
        turned_away = getattr(self.plane, "num_turned_away", 0)
        counters = {"num_foreign": self.num_foreign, "num_turned_away": turned_away}
        return super()._extra_statistics() | counters
