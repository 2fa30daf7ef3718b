"""The base of all actors: the data plane, dispatch of what a state machine returns, statistics.

    other actors --frames--> on_frames -> handle(message) -> [Send] -> dispatch --frames--> other actors

A plain class: the runtime "ray" makes it an actor of Ray, `tandem.sites` runs it in the calling process. Handlers are
synchronous and run on the actor's event loop, so no state changes under them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from tandem.config.schema import Config
from tandem.errors import CallError, ProtocolError, TandemError, describe_origin
from tandem.messages import DecoderFailed, decode, decode_link, encode
from tandem.protocol.routes import MAX_REASON_CHARS, ActorKind, Send
from tandem.topology import PARTIES, at_start
from tandem.transport.memory import Bus
from tandem.transport.port import DataPlane, Endpoint, NewPlane

T = TypeVar("T")

_log = logging.getLogger("tandem")


def remedy_for(party: str) -> str:
    """The remedy where an actor of a party has died."""
    if party not in PARTIES:
        return "close this cluster and launch another"
    return f"ask again in a moment where `tandem up {party}` started it, else launch again"


def sendable(text: str) -> str:
    """`text` in a form that fits a message: characters that UTF-8 cannot encode are escaped, long texts are cut."""
    return text[:MAX_REASON_CHARS].encode("utf-8", "backslashreplace").decode()


def report_failure(session: int, error: TandemError) -> DecoderFailed:
    """The message to the draft queue that a session cannot be decoded here."""
    return DecoderFailed(session=session, reason=sendable(str(error)), fault=error.fault)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The arguments of an actor besides its party."""

    secret: bytes  # of the cluster's data plane
    directory: str  # for Unix-domain sockets; created if missing
    config: Config
    host: str | None = None  # address on which the draft queue waits for its peer; None: the node's
    new_plane: NewPlane | None = None  # of a site that is one process; None: sockets


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorStatistics:
    """One actor's counters."""

    name: str  # "party/kind"
    pid: int
    cpu_s: float  # CPU time of the process so far; actors that share one report the same
    memory_bytes: int  # resident
    num_sessions: int
    num_malformed: int  # frames that could not be decoded
    imports_torch: bool
    tasks: tuple[str, ...]  # running asyncio tasks of the actor
    links: dict[str, dict[str, int]]  # per actor: LinkCounters
    extra: dict[str, float]


class SiteActor:
    """Base of the six actors of a side."""

    role: ClassVar[ActorKind]
    dials: ClassVar[tuple[ActorKind, ...]] = ()  # actors of the own side that this one connects to
    has_peers: ClassVar[bool] = False  # whether it talks to other sites
    table: Any = None  # of sessions, where the actor has one

    def __init__(self, party: str, runtime: Runtime) -> None:
        self.party = party
        self.runtime = runtime
        self.config = runtime.config
        self.name = f"{party}/{self.role}"
        self.place = f"{at_start(party)}'s {self.role.replace('_', ' ')}"  # in sentences
        self.num_malformed = 0
        self.description: dict[str, Any] = {}
        self.plane: DataPlane | None = None
        self._endpoint: Endpoint | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self.join(Bus())

    def join(self, bus: Bus) -> None:
        """Share a process with the other actors on a bus."""
        self.bus = bus
        bus.join(self.name, self.receive)

    # ---- control plane ---------------------------------------------------------------------------------------

    async def call(self, method: str, *arguments: Any) -> Any:
        """What a method returns. Raises its TandemError, or CallError for whatever else went wrong."""
        try:
            return await getattr(self, method)(*arguments)
        except TandemError:
            raise
        except Exception as error:
            raise CallError(
                f"{self.place} failed on the call {method!r} with {type(error).__name__}; see its log."
            ) from error

    async def bind(self) -> Endpoint:
        """Open this actor's end of the data plane and return its address."""
        if self.plane is not None:
            await self.plane.close()
        self.plane = self._make_plane()
        self._endpoint = Endpoint(self.name) if self.plane is None else await self.plane.start()
        return self._endpoint

    async def endpoint(self) -> Endpoint:
        """The address that `bind` returned."""
        assert self._endpoint is not None
        return self._endpoint

    async def is_prepared(self) -> bool:
        """Whether others can connect. That all of a party are means that it is up."""
        return self._endpoint is not None

    async def forget_sessions(self) -> None:
        """Forget the sessions of a draft queue that is no more. One that its peer still holds may begin again."""
        if self.table is not None:
            self.table.forget()

    async def connect_peers(self, endpoints: list[Endpoint]) -> None:
        """Connect to those of `endpoints` that this actor dials."""
        dialled = {f"{self.party}/{role}" for role in self.dials if f"{self.party}/{role}" not in self.bus}
        dialled |= self._peers()
        await asyncio.gather(
            *(self._plane().connect(endpoint) for endpoint in endpoints if endpoint.name in dialled)
        )

    async def prepare(self) -> dict[str, Any]:
        """Load what takes time; returns a description of what was loaded."""
        return self.description

    async def describe(self) -> dict[str, Any]:
        """The description that `prepare` returned."""
        return self.description

    async def statistics(self) -> ActorStatistics:
        """Counters of this actor."""
        counters = {} if self.plane is None else self.plane.counters
        return ActorStatistics(
            name=self.name,
            pid=os.getpid(),
            cpu_s=time.process_time(),
            memory_bytes=_resident_bytes(),
            num_sessions=0 if self.table is None else len(self.table.sessions),
            num_malformed=self.num_malformed,
            imports_torch="torch" in sys.modules,
            tasks=tuple(sorted(task.get_name() for task in self._tasks if not task.done())),
            links={name: asdict(counter) for name, counter in counters.items()},
            extra=self._extra_statistics(),
        )

    async def close(self) -> None:
        """Stop tasks and connections."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self.plane is not None:
            await self.plane.close()
            self.plane = None
        with contextlib.suppress(OSError):
            os.rmdir(self.runtime.directory)

    # ---- data plane ------------------------------------------------------------------------------------------

    def on_frames(self, source: str, frames: list[bytes]) -> None:
        """Handle frames of one actor, in order; drop and count malformed ones. A peer sends LinkFrames only."""
        read = decode if source.partition("/")[0] == self.party else decode_link
        with self.bus.batch():
            for frame in frames:
                try:
                    message = read(frame)
                except ProtocolError as error:
                    self.num_malformed += 1
                    if (count := self.num_malformed).bit_count() == 1:  # a peer could fill a disk
                        dropped = "%s dropped a malformed frame from %s, %d so far: %s"
                        _log.warning(dropped, self.name, source, count, error)
                    continue
                self.receive(message, source)

    def receive(self, message: Any, source: str) -> None:
        """Handle one message and deliver what follows from it; a failure is the message's own."""
        try:
            self.dispatch(self.handle(message, source))
        except TandemError as error:
            self.on_error(message, error)
        except Exception as error:
            kind = type(message).__name__
            name, where = describe_origin(error)
            _log.error("%s could not handle a %s: %s at %s", self.name, kind, name, where)
            self.on_error(message, TandemError(f"{self.name} failed on a {kind} with {name}; see its log."))

    def handle(self, message: Any, source: str) -> list[Send]:
        """Handle a message; returns what to send."""
        sends: list[Send] = self.table.receive(message)
        return sends

    def on_error(self, message: Any, error: TandemError) -> None:
        """A message could not be handled; the actor continues."""
        _log.error("%s: %s", self.name, error)

    def dispatch(self, sends: list[Send]) -> None:
        """Deliver what a state machine returned. A message that cannot be encoded ends its session only."""
        with self.bus.batch():
            for send in sends:
                name = f"{self.party}/{send.to}"
                if send.to == "client":
                    self.on_event(send.message)
                elif name in self.bus:
                    self.bus.post(self.name, name, send.message)
                else:
                    self._send_out(send, name)

    def _send_out(self, send: Send, name: str) -> None:
        try:
            frame = encode(send.message)
        except ProtocolError as error:
            self.on_error(send.message, error)
            return
        if send.to == "peer":
            self.send_to_peer(send, frame)
        else:
            self.bus.send(self._plane(), name, frame)

    def on_event(self, event: Any) -> None:
        """An event for the client; only draft queues have clients."""

    def on_connected(self, name: str) -> None:
        """A new connection to an actor is open."""

    def on_lost(self, name: str) -> None:
        """The last connection to an actor was lost."""

    # ---- for subclasses --------------------------------------------------------------------------------------

    def spawn(self, work: Awaitable[None], name: str) -> None:
        """Run `work` as a task until the actor closes; a failure is logged."""

        async def guarded() -> None:
            try:
                await work
            except asyncio.CancelledError:
                raise
            except Exception:
                _log.exception("%s: task %s failed", self.name, name)

        task = asyncio.get_running_loop().create_task(guarded(), name=f"{self.name}/{name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run blocking `work` in the thread of this actor, one piece of work after the other."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    @property
    def peers(self) -> tuple[str, ...]:
        """The parties to which this one has a link."""
        return self.config.topology.peers(self.party)

    def send_to_peer(self, send: Send, frame: bytes) -> None:
        """Send a message, encoded as `frame`, across the link to its peer, by default the only one."""
        self.bus.send(self._plane(), f"{send.peer or self.peers[0]}/draft_queue", frame)

    def is_reachable(self, name: str) -> bool:
        """Whether a message to an actor of this party would be delivered now."""
        return name in self.bus or self._plane().is_connected(name)

    def _extra_statistics(self) -> dict[str, float]:
        return {}

    def _peers(self) -> set[str]:
        """The actors of the other side that this one connects to."""
        return set()

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        """PyTorch counts its threads by the thread that calls it, and so do other libraries: always the same one."""
        return ThreadPoolExecutor(1, thread_name_prefix=self.name)

    def _plane(self) -> DataPlane:
        if self.plane is None:
            raise TandemError(
                f"{self.name} has no data plane yet; start it with Tandem.launch or `tandem up`."
            )
        return self.plane

    def _make_plane(self) -> DataPlane | None:
        """This actor's end of the data plane; None where all that it talks to shares its process."""
        runtime = self.runtime
        if runtime.new_plane is not None:
            return runtime.new_plane(self) if self.has_peers else None
        os.makedirs(runtime.directory, mode=0o700, exist_ok=True)
        from tandem.transport.port import with_secret
        from tandem.transport.sockets import SocketPlane, tls_contexts, uses_tls

        names = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")  # the cluster's
        server_tls, client_tls = (
            tls_contexts(*(os.environ[name] for name in names)) if uses_tls() else (None, None)
        )
        return SocketPlane(
            self,
            handshake=with_secret(self.name, runtime.secret),
            directory=runtime.directory,
            host=self._listening_host(),
            port=runtime.config.link.port,
            server_tls=server_tls,
            client_tls=client_tls,
        )

    def _listening_host(self) -> str | None:
        """The host at which actors of other sites reach this one; None: they need not."""
        return None


class SharedProcess:
    """Several actors of one party in one process, on one event loop: the same classes that have one each elsewhere."""

    def __init__(self, party: str, runtime: Runtime, classes: Mapping[ActorKind, type[SiteActor]]) -> None:
        bus = Bus()
        self.actors: dict[str, SiteActor] = {role: make(party, runtime) for role, make in classes.items()}
        for actor in self.actors.values():
            actor.join(bus)

    async def call(self, role: str, method: str, *arguments: Any) -> Any:
        """Call a method of one of the actors."""
        return await getattr(self.actors[role], method)(*arguments)


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:  # not Linux
        import psutil

        return int(psutil.Process().memory_info().rss)
