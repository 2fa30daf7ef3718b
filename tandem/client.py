"""The Python API: ask questions of a running pair of sides, or start one on this machine.

Queries and events travel on the control plane (Ray calls); every method has an async twin. Knows nothing of
laws or frames.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeVar

import ray
from ray.exceptions import RayError

from tandem.actors import launch
from tandem.actors.base import Runtime, SiteActor
from tandem.actors.launch import Handles, Progress
from tandem.cluster import nodes
from tandem.cluster.nodes import Host, NodeInfo
from tandem.config import Config
from tandem.errors import ClusterError, QueryError, TandemError
from tandem.events import (
    Answer,
    DoneEvent,
    EstimateEvent,
    Event,
    PlacementEvent,
    SourcesEvent,
    TokenEvent,
)
from tandem.loop_thread import LoopThread
from tandem.protocol.outbox import ActorKind
from tandem.protocol.spec import SessionSpec
from tandem.request import build_spec
from tandem.topology import PARTIES, Party

if TYPE_CHECKING:
    from tandem.retrieval.filters import Filter

T = TypeVar("T")
EVENTS_WAIT_S = 5.0
"""How long one call waits for events before the time limit is looked at again."""
RPC_GRACE_S = 1.0
"""How much longer than its time limit a call may take, so that an actor's own word comes first where it answers."""
SOURCES_WAIT_S = 10.0
"""How long a finished answer waits for each side's sources: long for a link that works."""
LOST_SOURCES_WAIT_S = 1.0
"""The same where the answer went on without the peer: short for a person."""
HANDSHAKE_FIELDS = {
    "vocabulary_fingerprint": ("vocabulary", "use models that share a tokenizer"),
    "codec": ("codec", "use the same [codec] settings on both sides"),
    "protocol_version": ("protocol version", "install the same version of tandem-rag on both sides"),
    "embedder_fingerprint": ("embedder", "use the same retrieval.embedder on both sides"),
    "scorer_fingerprint": ("scoring model", "use the same weights.scorer on both sides"),
}
"""What both sides must have in common before the first query, and the remedy."""


class Tandem:
    """A device and a cloud that answer together. Make one with `launch` or `connect`; close it, or use `with`."""

    def __init__(
        self,
        config: Config,
        parties: dict[Party, Handles],
        described: dict[Party, dict[str, Any]],
        loop: LoopThread,
    ) -> None:
        """Use `launch` or `connect`."""
        self.config = config
        self.described = described
        self._parties = parties
        self._nodes: list[NodeInfo] = []
        self._environment: dict[str, str | None] = {}
        self._socket_folder = ""
        self._loop = loop
        self._is_closed = False

    # ---- starting and stopping -------------------------------------------------------------------------------

    @classmethod
    def launch(
        cls,
        config: Config | None = None,
        *,
        hosts: Mapping[Party, Host] | None = None,
        actor_classes: Mapping[ActorKind, type[SiteActor]] | None = None,
        progress: Progress | None = None,
    ) -> Tandem:
        """Start two local Ray nodes, `device` and `cloud`, with all actors; `close` stops what this started.

        hosts: where the nodes run, on this machine as it is if None; this process must reach what they listen on.
        actor_classes: an extension point: classes to use instead of those of `tandem.actors`, by kind of actor, such
        as {"retriever": MyRetriever}; each derives from the class it replaces, and all nodes must be able to import it.
        progress: called with one line for each stage. Raises TandemError; nothing is left running then.
        """
        hosts = hosts or {party: Host() for party in PARTIES}
        config = config or Config()
        say = progress or (lambda line: None)
        if ray.is_initialized():
            raise ClusterError(
                "Tandem.launch starts its own Ray cluster, but this process is connected to one; "
                "call ray.shutdown() first, or use Tandem.connect."
            )
        launch.check_files(config)
        environment = nodes.node_environment()
        saved = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)
        started: list[NodeInfo] = []
        loop = LoopThread()
        host = config.link.host or hosts[Party.CLOUD].address or "127.0.0.1"
        runtime = launch.runtime_for(config, secrets.token_bytes(32), host)
        try:
            described, parties = _launch(runtime, environment, hosts, actor_classes or {}, started, say, loop)
        except BaseException:
            loop.close()
            _stop(started, saved, runtime.directory)
            raise
        tandem = cls(config, parties, described, loop)
        tandem._nodes, tandem._environment, tandem._socket_folder = started, saved, runtime.directory
        return tandem

    @classmethod
    def connect(
        cls, address: str | None = None, config: Config | None = None, *, progress: Progress | None = None
    ) -> Tandem:
        """Use sides that are up on a running cluster (`tandem up`). Raises ClusterError where they are not."""
        config = config or Config()
        say = progress or (lambda line: None)
        address = address or config.cluster.address
        if not address:
            raise ClusterError(
                "Tandem.connect needs the cluster's address host:port, none was given; pass address=."
            )
        was_attached = ray.is_initialized()
        launch.attach(address, config)
        say(f"cluster: {address}")
        loop = LoopThread()
        try:
            parties = {party: launch.find_party(party, config) for party in PARTIES}
            described = loop.run(_meet(parties, config.cluster.start_timeout_s))
        except BaseException:
            loop.close()
            if not was_attached:
                ray.shutdown()
            raise
        say("sides: connected")
        return cls(config, parties, described, loop)

    @property
    def nodes(self) -> tuple[NodeInfo, ...]:
        """The Ray nodes that `launch` started; none after `connect`."""
        return tuple(self._nodes)

    @property
    def socket_folder(self) -> str:
        """Where the actors that `launch` started keep their sockets; empty after `connect`."""
        return self._socket_folder

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    def close(self) -> None:
        """Stop what `launch` started; after `connect`, only disconnect. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(RayError, TandemError):
            if self._nodes:
                self._loop.run(launch.close_actors(self._parties))
        self._loop.close()
        _stop(self._nodes, self._environment, self._socket_folder)

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

    def query(self, question: str, **options: Any) -> Answer:
        """Answer `question`; options as in `astream`. Raises QueryError where no answer came."""
        answer: Answer = self._run(self.aquery(question, **options))
        return answer

    def stream(self, question: str, **options: Any) -> Iterator[Event]:
        """Events of `question` as they happen; options as in `astream`. Leaving the loop early cancels the query."""
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

    async def aquery(self, question: str, **options: Any) -> Answer:
        """Async twin of `query`."""
        limit_s = options.pop("timeout_s", None)
        spec = build_spec(self.config, self.described, question, **options)
        events = [event async for event in self._ask(spec, limit_s, at_once=True)]
        return collect(events, spec.seed)

    async def astream(
        self,
        question: str,
        *,
        max_new_tokens: int | None = None,
        seed: int | None = None,
        temperature: float | None = None,
        placement: str | None = None,
        synchronous: bool | None = None,
        draft_rule: str | None = None,
        stop: Sequence[str] | None = None,
        timeout_s: float | None = None,
        alone: str | None = None,
        device_filter: Filter | None = None,
        cloud_filter: Filter | None = None,
        provisional: bool = False,
    ) -> AsyncGenerator[Event, None]:
        """Events of one query: SourcesEvent of each side, TokenEvent, PlacementEvent, EstimateEvent, PeerEvent, last a
        DoneEvent.

        seed: 64 bits; fresh if None. timeout_s: for the whole answer, `config.cluster.query_timeout_s` if None.
        alone: "device" or "cloud", the side that answers by itself; nothing crosses the link. device_filter,
        cloud_filter: metadata that a side's documents must have, as {"source": "a.txt", "page": [1, 2]}; the cloud
        does not see the device's. provisional: yields a ProvisionalEvent for each draft of the device as soon as it
        is there, and a RetractEvent where the answer takes another turn. The other options default to
        `config.generation`. Raises QueryError or ConfigError.
        """
        spec = build_spec(
            self.config,
            self.described,
            question,
            max_new_tokens=max_new_tokens,
            seed=seed,
            temperature=temperature,
            placement=placement,
            synchronous=synchronous,
            draft_rule=draft_rule,
            stop=stop,
            alone=alone,
            device_filter=device_filter,
            cloud_filter=cloud_filter,
            provisional=provisional,
        )
        async with contextlib.aclosing(self._ask(spec, timeout_s, at_once=False)) as events:
            async for event in events:
                yield event

    def status(self) -> dict[str, Any]:
        """Nodes, actors, models and indexes of both sides, as plain values. TandemError where an actor is silent."""
        status: dict[str, Any] = self._run(self._result(self._status()))
        return status

    # ---- private ---------------------------------------------------------------------------------------------

    async def _ask(
        self, spec: SessionSpec, timeout_s: float | None, *, at_once: bool
    ) -> AsyncGenerator[Event, None]:
        """Events of one query, as they happen or all at its end; leaving early cancels it on both sides."""
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
        """Cancel a query, without waiting long for a side that is lost."""
        queue = self._parties[spec.home]["draft_queue"]
        with contextlib.suppress(RayError, TimeoutError):
            await asyncio.wait_for(queue.cancel.remote(spec.session), RPC_GRACE_S)

    async def _result(self, call: Any) -> Any:
        """What an actor's method returns; a TandemError that it raised as itself. QueryError where the time is up."""
        limit_s = self.config.cluster.query_timeout_s
        try:
            return await asyncio.wait_for(call, limit_s + RPC_GRACE_S)
        except RayError as error:
            raise launch.unwrap(error) from None
        except TimeoutError:
            raise QueryError(_late(limit_s)) from None

    async def _open(self, spec: SessionSpec) -> None:
        for party in spec.parties:  # not awaited: a call's acknowledgement would cost a round trip
            self._parties[party]["draft_queue"].open.remote(spec.as_for(party).to_json())

    async def _events(self, spec: SessionSpec, limit_s: float, at_once: bool) -> AsyncGenerator[Event, None]:
        """The telling side's events in order; each side's sources are slipped in when they are known."""
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
                    found = await waiting
                    if found is not None:
                        yield found
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
        found: SourcesEvent | None = None
        with contextlib.suppress(RayError):  # an answer can go on without this side; its queue knows
            found = await self._parties[party]["draft_queue"].sources.remote(spec.session, limit_s)
        if found is None or party is Party.CLOUD:
            return found
        ids = [source.id for source in found.sources]
        titles = await self._parties[party]["retriever"].titles.remote(ids)
        named = (
            replace(source, title=title or None) for source, title in zip(found.sources, titles, strict=True)
        )
        return replace(found, sources=tuple(named))

    async def _status(self) -> dict[str, Any]:
        actors = await launch.statistics(self._parties)
        return {
            "nodes": [
                {"address": node["NodeManagerAddress"], "roles": _roles(node), "alive": node["Alive"]}
                for node in ray.nodes()
            ],
            "parties": {party.value: self.described[party] for party in PARTIES},
            "actors": [asdict(actor) for actor in actors],
        }

    def _run(self, work: Any) -> Any:
        """Run an awaitable on this object's own event loop."""
        if self._is_closed:
            raise QueryError("A closed Tandem answers no more; launch or connect again.")
        return self._loop.run(_awaited(work))


def _patience_s(done: Event) -> float:
    """How long an answer waits for its sources: not for what a side that is lost could tell of it."""
    assert isinstance(done, DoneEvent)
    is_whole = done.reason != "failed" and done.statistics.degraded_from is None
    return SOURCES_WAIT_S if is_whole else LOST_SOURCES_WAIT_S


def collect(events: Sequence[Event], seed: int) -> Answer:
    """The answer that the events of one query make up. Raises QueryError where the query failed."""
    done = events[-1]
    assert isinstance(done, DoneEvent)
    if done.reason == "failed":
        raise QueryError(done.error or "The query failed.")
    tokens = tuple(event for event in events if isinstance(event, TokenEvent))
    found = [event for event in events if isinstance(event, SourcesEvent)]
    return Answer(
        text="".join(token.text for token in tokens).strip(),
        tokens=tokens,
        sources=tuple(source for event in found for source in event.sources),
        notes=tuple(f"{event.party}: {note}" for event in found for note in event.notes),
        reason=done.reason,
        seed=seed,
        statistics=done.statistics,
        estimates=tuple(event for event in events if isinstance(event, EstimateEvent)),
        placements=tuple(event for event in events if isinstance(event, PlacementEvent)),
        session=done.session,
    )


async def _awaited(work: Any) -> Any:
    return await work


def _late(limit_s: float) -> str:
    return (
        f"An actor must answer within {limit_s:g} s, this one did not; raise cluster.query_timeout_s, or see "
        "`tandem status`."
    )


def _launch(
    runtime: Runtime,
    environment: dict[str, str],
    hosts: Mapping[Party, Host],
    actor_classes: Mapping[ActorKind, type[SiteActor]],
    started: list[NodeInfo],
    say: Progress,
    loop: LoopThread,
) -> tuple[dict[Party, dict[str, Any]], dict[Party, Handles]]:
    config = runtime.config
    limit_s = config.cluster.start_timeout_s
    device = nodes.start_head(Party.DEVICE, environment=environment, host=hosts[Party.DEVICE])
    started.append(device)
    nodes.wait_for_port(device.address, limit_s, device)
    cloud = nodes.join(Party.CLOUD, device.address, environment=environment, host=hosts[Party.CLOUD])
    started.append(cloud)

    def still_running() -> None:
        for node in started:
            if not node.is_running():
                raise ClusterError(f"The {node.role} node must keep running but has stopped; see {node.log}.")

    launch.attach(device.address, config)
    launch.wait_for_roles((Party.DEVICE,), limit_s, still_running)
    # Ray keeps the cloud's actors waiting for its node, while the device's start already.
    parties = {
        party: launch.create_party(party, runtime, detached=False, actor_classes=actor_classes)
        for party in PARTIES
    }
    launch.wait_for_roles(PARTIES, limit_s, still_running)
    say("nodes: 2 up (device, cloud)")
    return loop.run(_start(parties, say, limit_s)), parties


async def _start(parties: dict[Party, Handles], say: Progress, limit_s: float) -> dict[Party, dict[str, Any]]:
    try:
        async with asyncio.timeout(limit_s):
            described = await launch.start_actors(parties, say)
            compare(described)
            await launch.connect_parties(parties)
    except TimeoutError:
        raise ClusterError(
            f"All actors must be ready within {limit_s:g} s but are not; raise cluster.start_timeout_s."
        ) from None
    except RayError as error:
        raise launch.unwrap(error) from None
    return described


async def _meet(parties: dict[Party, Handles], limit_s: float) -> dict[Party, dict[str, Any]]:
    try:
        async with asyncio.timeout(limit_s):
            described = await launch.describe(parties)
            compare(described)
            await launch.connect_parties(parties)
    except TimeoutError:
        raise ClusterError(
            f"Both sides must meet within {limit_s:g} s but did not; check the link between them."
        ) from None
    return described


def compare(described: dict[Party, dict[str, Any]]) -> None:
    """Both sides must agree before the first query. Raises ClusterError that names both values and the remedy."""
    for key, (what, remedy) in HANDSHAKE_FIELDS.items():
        device, cloud = (described[party].get(key) for party in PARTIES)
        if device != cloud:
            raise ClusterError(
                f"Both sides must have the same {what}, the device has {device!r} and the cloud {cloud!r}; {remedy}."
            )


def _stop(started: list[NodeInfo], environment: dict[str, str | None], socket_folder: str) -> None:
    ray.shutdown()
    for node in reversed(started):
        node.stop()
    if socket_folder:
        shutil.rmtree(socket_folder, ignore_errors=True)
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _roles(node: dict[str, Any]) -> list[str]:
    return [party.value for party in PARTIES if nodes.PARTY_RESOURCE.format(role=party) in node["Resources"]]


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
