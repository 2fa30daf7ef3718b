"""The Python API: ask questions of a device and a cloud that are running, or start both on this machine.

Queries and events travel on the control plane (Ray calls); every method has an async twin.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, TypeVar, Unpack

from ray.exceptions import RayError

from tandem.cluster import bootstrap
from tandem.cluster import launch as actors
from tandem.cluster.bootstrap import Cluster
from tandem.cluster.launch import ActorClasses, Progress
from tandem.cluster.nodes import Host, NodeInfo
from tandem.config import Config
from tandem.errors import QueryError
from tandem.events import (
    Answer,
    DoneEvent,
    Event,
    SourcesEvent,
    collect,
)
from tandem.protocol.spec import SessionSpec
from tandem.request import QueryOptions, build_spec
from tandem.topology import PARTIES, Party

T = TypeVar("T")
EVENTS_WAIT_S = 5.0
"""How long one call waits for events before the time limit is checked again."""
RPC_GRACE_S = 1.0
"""Grace period on top of a time limit, so that an actor's own error reaches us before we give up."""
SOURCES_WAIT_S = 10.0
"""How long a finished answer waits for each party's sources while the link works."""
LOST_SOURCES_WAIT_S = 1.0
"""The same where the answer was finished without the peer."""


class Tandem:
    """A device and a cloud that answer together. Make one with `launch` or `connect`; close it, or use `with`."""

    def __init__(self, config: Config, cluster: Cluster) -> None:
        """Use `launch` or `connect`."""
        self.config = config
        self.described = cluster.described
        self._cluster = cluster
        self._parties = cluster.parties
        self._is_closed = False

    # ---- starting and stopping -------------------------------------------------------------------------------

    @classmethod
    def launch(
        cls,
        config: Config | None = None,
        *,
        hosts: Mapping[Party, Host] | None = None,
        actor_classes: ActorClasses | None = None,
        progress: Progress | None = None,
    ) -> Tandem:
        """Start two local Ray nodes, `device` and `cloud`, with all actors; `close` stops what this started.

        hosts: where the nodes run, on this machine as it is if None; this process must reach what they listen on.
        actor_classes: an extension point: classes to use instead of those of `tandem.actors`, by kind of actor, such
        as {"retriever": MyRetriever}; each derives from the class it replaces, and all nodes must be able to import it.
        progress: called with one line for each stage. Raises TandemError; nothing is left running then.
        """
        config = config or Config()
        return cls(config, bootstrap.launch(config, hosts, progress or _ignore, actor_classes))

    @classmethod
    def connect(
        cls, address: str | None = None, config: Config | None = None, *, progress: Progress | None = None
    ) -> Tandem:
        """Use the parties of a running cluster (`tandem up`). Raises ClusterError if they are not up."""
        config = config or Config()
        return cls(config, bootstrap.connect(address, config, progress or _ignore))

    @property
    def nodes(self) -> tuple[NodeInfo, ...]:
        """The Ray nodes that `launch` started; none after `connect`."""
        return tuple(self._cluster.nodes)

    @property
    def socket_folder(self) -> str:
        """Where the actors that `launch` started keep their sockets; empty after `connect`."""
        return self._cluster.socket_folder

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    def close(self) -> None:
        """Stop what `launch` started; after `connect`, only disconnect. May be called twice."""
        if not self._is_closed:
            self._is_closed = True
            self._cluster.close()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def __enter__(self) -> Tandem:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Tandem:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # ---- asking ----------------------------------------------------------------------------------------------

    def query(self, question: str, **options: Unpack[QueryOptions]) -> Answer:
        """Answer `question`. Options: see `QueryOptions`. Raises ConfigError or QueryError."""
        answer: Answer = self._run(self.aquery(question, **options))
        return answer

    def stream(self, question: str, **options: Unpack[QueryOptions]) -> Iterator[Event]:
        """Events of `question` as in `astream`, as they happen. Leaving the loop early cancels the query."""
        stream = self.astream(question, **options)
        try:
            while True:
                try:
                    yield self._run(anext(stream))
                except StopAsyncIteration:
                    return
        finally:
            if not self._is_closed:
                self._run(stream.aclose())

    async def aquery(self, question: str, **options: Unpack[QueryOptions]) -> Answer:
        """Async twin of `query`."""
        spec = build_spec(self.config, self.described, question, **options)
        events = [event async for event in self._ask(spec, options.get("timeout_s"), at_once=True)]
        return collect(events, spec.seed)

    async def astream(self, question: str, **options: Unpack[QueryOptions]) -> AsyncGenerator[Event, None]:
        """Events of one query: a SourcesEvent of each party; TokenEvent, PlacementEvent, EstimateEvent and PeerEvent as
        they happen; last a DoneEvent. Options: see `QueryOptions`. Raises QueryError or ConfigError.
        """
        spec = build_spec(self.config, self.described, question, **options)
        async with contextlib.aclosing(self._ask(spec, options.get("timeout_s"), at_once=False)) as events:
            async for event in events:
                yield event

    def status(self) -> dict[str, Any]:
        """Nodes, actors, models and indexes, as plain values. Raises TandemError if an actor does not answer."""
        status: dict[str, Any] = self._run(self._result(self._status()))
        return status

    # ---- private ---------------------------------------------------------------------------------------------

    async def _ask(
        self, spec: SessionSpec, timeout_s: float | None, *, at_once: bool
    ) -> AsyncGenerator[Event, None]:
        """Events of one query, as they happen or all at its end; leaving early cancels it at both parties."""
        limit_s = self.config.cluster.query_timeout_s if timeout_s is None else timeout_s
        is_done = False
        try:
            await self._open(spec)
            async with contextlib.aclosing(self._events(spec, limit_s, at_once)) as events:
                async for event in events:
                    is_done = isinstance(event, DoneEvent)
                    yield event
        except RayError as error:
            raise QueryError(
                f"The query needs both sides' actors, one is gone ({_first_line(error)}); start again."
            ) from None
        finally:
            if not is_done:
                await self._give_up(spec)

    async def _give_up(self, spec: SessionSpec) -> None:
        """Cancel a query, without waiting long for a party that is lost."""
        queue = self._parties[spec.home]["draft_queue"]
        with contextlib.suppress(RayError, TimeoutError):
            await asyncio.wait_for(queue.cancel.remote(spec.session), RPC_GRACE_S)

    async def _result(self, call: Any) -> Any:
        """What an actor's method returns. Raises the TandemError that it raised, or QueryError after the time limit."""
        limit_s = self.config.cluster.query_timeout_s
        try:
            return await asyncio.wait_for(call, limit_s + RPC_GRACE_S)
        except RayError as error:
            raise actors.unwrap(error) from None
        except TimeoutError:
            raise QueryError(_late(limit_s)) from None

    async def _open(self, spec: SessionSpec) -> None:
        """At home, which opens it at the peer across the link. Not awaited: the events will tell."""
        self._parties[spec.home]["draft_queue"].open.remote(spec.as_for(spec.home).to_json())

    async def _events(self, spec: SessionSpec, limit_s: float, at_once: bool) -> AsyncGenerator[Event, None]:
        """The home party's events in order, with each party's sources as soon as they are known."""
        deadline_s = time.monotonic() + limit_s
        queue = self._parties[spec.home]["draft_queue"]
        sources = [asyncio.ensure_future(self._sources(party, spec, limit_s)) for party in spec.parties]
        position = 0
        try:
            while True:
                left_s = deadline_s - time.monotonic()
                call = queue.events.remote(spec.session, position, min(EVENTS_WAIT_S, left_s), at_once)
                events = await asyncio.wait_for(call, left_s + RPC_GRACE_S)
                position += len(events)
                is_done = any(isinstance(event, DoneEvent) for event in events)
                if is_done and sources:
                    await asyncio.wait(
                        sources, timeout=min(_patience_s(events[-1]), max(0.0, deadline_s - time.monotonic()))
                    )
                for waiting in [task for task in sources if task.done()]:
                    sources.remove(waiting)
                    retrieved = await waiting
                    if retrieved is not None:
                        yield retrieved
                for event in events:
                    yield event
                if is_done:
                    return
                if time.monotonic() > deadline_s:
                    raise TimeoutError
        except RayError:  # also one that stands for a TimeoutError in an actor
            raise
        except TimeoutError:
            raise QueryError(
                f"An answer must be complete within {limit_s:g} s, this one is not after {position} events; "
                "raise timeout_s, or see `tandem status`."
            ) from None
        finally:
            for task in sources:
                task.cancel()
            await asyncio.gather(*sources, return_exceptions=True)

    async def _sources(self, party: Party, spec: SessionSpec, limit_s: float) -> SourcesEvent | None:
        event: SourcesEvent | None = None
        with contextlib.suppress(RayError):  # the answer can go on without this party
            queue = self._parties[spec.home]["draft_queue"]
            event = await queue.sources.remote(spec.session, limit_s, party)
        if event is None or party is Party.CLOUD:
            return event
        ids = [source.id for source in event.sources]
        titles = await self._parties[party]["retriever"].titles.remote(ids)
        named = (
            replace(source, title=title or None) for source, title in zip(event.sources, titles, strict=True)
        )
        return replace(event, sources=tuple(named))

    async def _status(self) -> dict[str, Any]:
        statistics = await actors.statistics(self._parties)
        return {
            "nodes": bootstrap.describe_nodes(),
            "parties": {party.value: self.described[party] for party in PARTIES},
            "actors": [asdict(actor) for actor in statistics],
        }

    def _run(self, work: Any) -> Any:
        """Run an awaitable on this object's own event loop."""
        if self._is_closed:
            raise QueryError("This Tandem is closed; create a new one with Tandem.launch or Tandem.connect.")
        return self._cluster.loop.run(_awaited(work))


def _patience_s(done: Event) -> float:
    """How long a finished answer waits for its sources: not long if a party was lost."""
    assert isinstance(done, DoneEvent)
    is_whole = done.reason != "failed" and done.statistics.degraded_from is None
    return SOURCES_WAIT_S if is_whole else LOST_SOURCES_WAIT_S


async def _awaited(work: Any) -> Any:
    return await work


def _late(limit_s: float) -> str:
    return (
        f"An actor must answer within {limit_s:g} s, this one did not; raise cluster.query_timeout_s, or see "
        "`tandem status`."
    )


def _ignore(line: str) -> None:
    """No progress is wanted."""


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
