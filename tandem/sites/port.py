"""The ports through which a site is used: what clients call, what a start asks of its actors, and their status.

client --SitePort--> LocalSite: on its event loop | RaySite: Ray calls --> actors
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from tandem.actors.base import ActorStatistics, SiteActor
from tandem.config.schema import Config
from tandem.errors import CallError
from tandem.protocol.routes import ActorKind
from tandem.topology import as_party

Progress = Callable[[str], None]
"""Called with one line for each stage."""


def ignore(line: str) -> None:
    """A `Progress` that shows nothing."""


ActorClasses = Mapping[ActorKind, type[SiteActor]]
"""Classes of actors by their kind."""


class SitePort(ABC):
    """One party's site, as clients use it. Every call raises the actor's TandemError, or CallError if it is lost."""

    @abstractmethod
    async def call(self, role: str, method: str, *arguments: Any) -> Any:
        """What a method of one of the site's actors returns, such as those of `DraftQueueActor` for a query."""

    async def passages(self, ids: list[str]) -> list[dict[str, Any]]:
        """Title, text, page and metadata of this party's documents that were found; empty for one that is forgotten."""
        return list(await self.call("retriever", "passages", ids))

    async def embed(self, texts: list[str]) -> list[list[float]]:
        """Unit vectors of texts."""
        return list(await self.call("retriever", "embed", texts))


class ActorPort(Protocol):
    """An actor, as the start of its party uses it: a SiteActor on its own event loop, or a RayActor."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """What a method of `SiteActor` returns. Raises its TandemError, or CallError for whatever else went wrong."""


Actors = Mapping[str, ActorPort]
"""The actors of one party, by role, such as "retriever"."""


@dataclass(frozen=True, slots=True)
class Host:
    """The place of a node: on this machine as it is, or in a network namespace or on one core of it."""

    address: str | None = None  # of the node, as the other one reaches it; None: Ray's choice
    prefix: tuple[str, ...] = ()  # before the node's command, such as `ip netns exec NAME taskset -c 1`


class Node(Protocol):
    """A node of a cluster that this process started."""

    party: str
    address: str  # of the cluster, host:port
    pid: int
    log: str  # what the node printed

    def is_running(self) -> bool:
        """Whether its process runs."""

    def stop(self) -> None:
        """Stop it, with all that it started."""


T = TypeVar("T")
CLEAN_UP_LIMIT_S = 5.0


class LoopThread:
    """Runs coroutines from any thread, side by side; close it when done."""

    def __init__(self) -> None:
        self.event_loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.event_loop.run_forever, name="tandem", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. An interruption (Ctrl-C) cancels it, and nothing else, and waits for its clean-up."""
        future = None
        try:
            future = asyncio.run_coroutine_threadsafe(work, self.event_loop)
            return future.result()
        except BaseException:
            if future is None or not future.done():
                self._wait_for(_cancel(work))
            raise

    def close(self) -> None:
        """Stop the loop and its thread; what still runs is cancelled."""
        if self.event_loop.is_closed():
            return
        self._wait_for(_cancel())
        self.event_loop.call_soon_threadsafe(self.event_loop.stop)
        self._thread.join()
        self.event_loop.close()

    def _wait_for(self, clean_up: Coroutine[Any, Any, None]) -> None:
        with suppress(CancelledError, TimeoutError):
            asyncio.run_coroutine_threadsafe(clean_up, self.event_loop).result(CLEAN_UP_LIMIT_S)


async def _cancel(work: Coroutine[Any, Any, Any] | None = None) -> None:
    """Cancel the task that runs `work`, or all other tasks of this loop where it is None, and wait for them."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    tasks = [task for task in others if work is None or task.get_coro() is work]
    for task in tasks:
        if not task.cancelling():
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(kw_only=True)
class Deployment(ABC):
    """The sites that this process can ask, and the event loop on which it calls them."""

    loop: LoopThread = field(default_factory=LoopThread)
    sites: Mapping[str, SitePort] = field(default_factory=dict)  # those that can be asked from here, by party
    described: dict[str, dict[str, Any]] = field(default_factory=dict)  # model and index of each party
    nodes: Sequence[Node] = ()  # that this process started
    socket_folder: str = ""  # where actors that this process started keep their sockets; empty: none do

    @abstractmethod
    async def status(self, config: Config) -> dict[str, Any]:
        """Nodes, models, indexes and every actor, as plain values."""

    def explain_loss(self, error: CallError, config: Config) -> str:
        """The sentence for a call that failed; it may block."""
        return str(error)

    @abstractmethod
    def close(self) -> None:
        """Stop what was started; what ran before is only left."""


class ClusterRuntime(Protocol):
    """A plugin that runs parties in processes of their own. All of it raises TandemError."""

    def launch(
        self,
        config: Config,
        hosts: Mapping[Any, Host] | None,
        progress: Progress,
        actor_classes: ActorClasses | None,
    ) -> Deployment:
        """Start all parties on this machine; see `Tandem.launch`. Nothing is left running where it fails."""

    def connect(self, address: str | None, config: Config, progress: Progress) -> Deployment:
        """Meet the parties that run at an address; see `Tandem.connect`."""

    def find_running(self, config: Config, progress: Progress) -> str | None:
        """The address of parties that were started on this machine; None if there are none."""

    def read_status(self, address: str | None, config: Config, progress: Progress) -> dict[str, Any]:
        """What `Deployment.status` says of parties that run at an address."""


State = Literal["alive", "starting", "dead", "absent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorState:
    """One actor of a party, alive or not."""

    name: str  # "party/kind"
    state: State  # absent: nobody has ever heard of it
    process: str = ""  # name of its process, which several actors may share
    actor_id: str = ""  # Ray's, in hexadecimal
    pid: int | None = None
    started_s: float | None = None  # Unix time
    ended_s: float | None = None  # Unix time
    reason: str = ""  # why it has died, where Ray knows

    @property
    def party(self) -> str:
        """The party of the actor."""
        return as_party(self.name.partition("/")[0])

    @property
    def role(self) -> str:
        """Its role within the party."""
        return self.name.partition("/")[2]

    @property
    def is_alive(self) -> bool:
        """Whether it can be called."""
        return self.state == "alive"

    def describe_end(self) -> str:
        """Name, process and reason of a dead actor and those that died with it, for a sentence."""
        details = [f"process {self.pid}" if self.pid else "", self.reason]
        name = self.process or self.name
        return f"{name} ({': '.join(filter(None, details))})" if any(details) else name


def to_dict(actor: ActorState, report: ActorStatistics | None) -> dict[str, Any]:
    """The state of an actor, and what it reports itself."""
    state = {"party": str(actor.party)} | asdict(actor)
    if report is not None:
        return state | asdict(report)
    return state | ({"state": "silent"} if actor.is_alive else {})
