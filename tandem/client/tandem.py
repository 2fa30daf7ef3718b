"""The Python API: ask questions of a device and a cloud that are running, or start both on this machine.

Queries and events travel on the control plane, as calls to actors; every method has an async twin.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, Unpack

from tandem import plugins
from tandem.client.ask import Asker, BatchItem, BatchProgress, answer_all, bounded, list_questions
from tandem.client.request import QueryOptions, build_spec, notes_on
from tandem.client.steps import NO_STEPS, ask_in_steps, may_have_steps
from tandem.config.checks import change
from tandem.config.schema import Config, checked_config
from tandem.errors import QueryError
from tandem.events import Answer, Event, collect
from tandem.sites.port import ActorClasses, ClusterRuntime, Deployment, Host, Progress, ignore

if TYPE_CHECKING:
    from tandem.modes import SessionSpec


T = TypeVar("T")


def find_runtime(config: Config) -> ClusterRuntime:
    """The plugin that `cluster.runtime` names, by default Ray's. Raises ConfigError if it cannot be imported."""
    name = config.cluster.runtime
    runtime: ClusterRuntime = plugins.find("runtime", "ray" if name in ("auto", "inline") else name)
    return runtime


class Answerer(Protocol):
    """What the commands ask: a `Tandem`, or a process of this machine that is one already."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def stream(self, question: str, **options: Unpack[QueryOptions]) -> Iterator[Event]:
        """The events of a question as they happen."""

    def batch(
        self,
        questions: Iterable[str],
        *,
        concurrency: int = 8,
        progress: BatchProgress | None = None,
        **options: Unpack[QueryOptions],
    ) -> Iterator[BatchItem]:
        """An item for each question as it finishes."""


class Tandem:
    """A device and a cloud that answer together, or a server and workers.

    Make one with `launch`, `connect` or `join`; close it, or use `with`.
    """

    def __init__(self, config: Config, deployment: Deployment) -> None:
        """Use `launch`, `connect` or `join`."""
        self.config = config
        self.described = deployment.described
        self.sites = deployment.sites  # those that can be asked from here, by party
        self.nodes = tuple(deployment.nodes)  # Ray nodes that `launch` started
        # where actors that `launch` started as processes keep their sockets; or empty
        self.socket_folder = deployment.socket_folder
        self.is_closed = False
        self._deployment = deployment
        self._asker = Asker(
            self.sites,
            lambda error: deployment.explain_loss(error, self.config),
            lambda: deployment.described,
        )
        self._streams: set[AsyncGenerator[Any, None]] = set()  # half read

    # ---- starting and stopping -------------------------------------------------------------------------------

    @classmethod
    def launch(
        cls,
        config: Config | None = None,
        *,
        runtime: str | None = None,
        hosts: Mapping[Any, Host] | None = None,
        actor_classes: ActorClasses | None = None,
        progress: Progress | None = None,
    ) -> Tandem:
        """Start `device` and `cloud` on this machine, with all actors; `close` stops what this started.

        With settings of mode "federated" the parties are the server and the workers.

        runtime: "inline" runs all of them in this process, without Ray, "ray" starts a local Ray node for each party;
        "auto" is the first, unless `hosts` are given. None takes `cluster.runtime` of the settings.
        hosts: where the Ray nodes run, on this machine as it is if None; this process must reach what they listen on.
        actor_classes: an extension point: classes to use instead of those of `tandem.actors`, by kind of actor, such
        as {"retriever": MyRetriever}; each derives from the class it replaces, and Ray nodes must be able to import it.
        progress: called with one line for each stage. Raises TandemError; nothing is left running then.
        """
        config = checked_config(config)
        if runtime is not None:
            config = replace(config, cluster=change(config.cluster, {"runtime": runtime}, "cluster"))
        config = config.with_runtime(on_ray=hosts is not None)
        if config.cluster.runtime == "inline":
            from tandem.sites import startup

            return cls(config, startup.launch(config, progress or ignore, actor_classes, hosts))
        return cls(config, find_runtime(config).launch(config, hosts, progress or ignore, actor_classes))

    @classmethod
    def connect(
        cls, address: str | None = None, config: Config | None = None, *, progress: Progress | None = None
    ) -> Tandem:
        """Use the parties of a running cluster (`tandem up`). Raises ClusterError if they are not up.

        address: of the cluster, host:port. None takes the cluster whose node `tandem up` started here. A cluster's
        token comes from RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, or else from what `tandem up` recorded here. progress:
        called with one line for each stage.
        """
        config = checked_config(config)
        return cls(config, find_runtime(config).connect(address, config, progress or ignore))

    @classmethod
    def join(
        cls,
        link: str,
        config: Config | None = None,
        *,
        actor_classes: ActorClasses | None = None,
        progress: Progress | None = None,
    ) -> Tandem:
        """Run the device in this process, without Ray, for a cloud that is served elsewhere (`tandem cloud serve`).

        link: the join link that the cloud has given to this device, or the path of a file that holds it.
        actor_classes, progress: as in `launch`. Raises TandemError, such as for a link that was revoked; where no cloud
        answers, only if `link.on_peer_loss` is "fail".
        """
        from tandem.joining.join_link import read_link
        from tandem.sites import host

        config = checked_config(config)
        return cls(config, host.join(read_link(link), config, progress or ignore, actor_classes))

    def close(self) -> None:
        """Stop what `launch` started; after `connect`, only disconnect. May be called twice."""
        if not self.is_closed:
            self._end_streams()
            self.is_closed = True
            self._deployment.close()

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
        self._check_open()
        answer: Answer = self._run(self.aquery(question, **options))
        return answer

    def stream(self, question: str, **options: Unpack[QueryOptions]) -> Iterator[Event]:
        """Events of `question` as in `astream`, as they happen. Leaving the loop early cancels the query."""
        return self._iterate(self.astream(question, **options))

    def batch(
        self,
        questions: Iterable[str],
        *,
        concurrency: int = 8,
        progress: BatchProgress | None = None,
        **options: Unpack[QueryOptions],
    ) -> Iterator[BatchItem]:
        """Answer many questions side by side, as in `abatch`. Leaving the loop early cancels the rest."""
        return self._iterate(self.abatch(questions, concurrency=concurrency, progress=progress, **options))

    async def aquery(self, question: str, **options: Unpack[QueryOptions]) -> Answer:
        """Async twin of `query`."""
        self._check_open()
        spec = build_spec(self.config, self.described, question, **options)
        return collect([event async for event in self._ask(spec, options, True)], spec.seed)

    async def astream(self, question: str, **options: Unpack[QueryOptions]) -> AsyncGenerator[Event, None]:
        """Events of one query: a SourcesEvent of each party; TokenEvent, CitationEvent, PlacementEvent, EstimateEvent
        and PeerEvent as they happen; last a DoneEvent. Options: see `QueryOptions`. Raises QueryError or ConfigError.
        """
        self._check_open()
        spec = build_spec(self.config, self.described, question, **options)
        async with contextlib.aclosing(self._ask(spec, options, False)) as events:
            async for event in events:
                yield event

    def abatch(
        self,
        questions: Iterable[str],
        *,
        concurrency: int = 8,
        progress: BatchProgress | None = None,
        **options: Unpack[QueryOptions],
    ) -> AsyncGenerator[BatchItem, None]:
        """A BatchItem for each question as it finishes: its index, and an answer or an error. Options hold for all.

        concurrency: questions open at once, at most; never more than half of `cluster.max_sessions`.
        progress: called with how many are finished, and how many there are. Raises ConfigError or QueryError at once
        for wrong options; whatever happens to one question is in its item.
        """
        self._check_open()
        texts, limit = list_questions(questions), bounded(concurrency, self.config.cluster.max_sessions)
        build_spec(self.config, self.described, "?", **options)  # one sentence, instead of one per question
        return answer_all(texts, lambda question: self.aquery(question, **options), limit, progress)

    def count_tokens(self, *texts: str) -> int:
        """Tokens of these texts, as the models count them. Raises QueryError."""
        self._check_open()
        return int(self._run(self.acount_tokens(*texts)))

    async def acount_tokens(self, *texts: str) -> int:
        """Async twin of `count_tokens`."""
        self._check_open()
        return await self._asker.count_tokens(texts)

    def status(self) -> dict[str, Any]:
        """Nodes, models, indexes and every actor, dead or alive, as plain values."""
        self._check_open()
        status: dict[str, Any] = self._run(self._deployment.status(self.config))
        return status

    # ---- private ---------------------------------------------------------------------------------------------

    def _ask(self, spec: SessionSpec, options: QueryOptions, at_once: bool) -> AsyncGenerator[Event, None]:
        limit_s = options.get("timeout_s") or self.config.cluster.query_timeout_s
        notes = notes_on(spec, self.described, options)
        ask = partial(self._asker.ask, limit_s=limit_s, at_once=at_once)
        when, decoding = spec.decoding.steps, change(spec.decoding, {"steps": "auto"})
        spec = replace(spec, decoding=decoding)  # the parties need not know
        if when == "never":
            return ask(spec, notes=notes)
        if may_have_steps(spec, self.described, self.config):
            return ask_in_steps(spec, ask, notes, always=when == "always")
        is_refused = when == "always" and spec.only is None
        return ask(spec, notes=(*notes, NO_STEPS) if is_refused else notes)

    def _check_open(self) -> None:
        """Raises QueryError after `close`; called before a coroutine is made, which would warn if nobody awaits it."""
        if self.is_closed:
            raise QueryError("This Tandem is closed; create a new one with Tandem.launch or Tandem.connect.")

    def _iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Iterate over an asynchronous generator; it is closed when this one is left."""
        self._streams.add(items)
        try:
            while True:
                self._check_open()
                try:
                    yield self._run(anext(items))
                except StopAsyncIteration:
                    return
        finally:
            self._streams.discard(items)
            if not self.is_closed:
                self._run(items.aclose())

    def _end_streams(self) -> None:
        """Cancel what is half read: no event loop could end it later."""
        for stream in list(self._streams):
            with contextlib.suppress(RuntimeError):  # another thread waits for it, and will be cancelled
                self._run(stream.aclose())

    def _run(self, work: Any) -> Any:
        return self._deployment.loop.run(_awaited(work))


async def _awaited(work: Any) -> Any:
    return await work
