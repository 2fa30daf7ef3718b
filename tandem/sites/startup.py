"""The start of parties, wherever they run: actors load, bind and connect, what they loaded is compared, links open.

And sites in this process, all actors of a party on one event loop, without Ray:

    client --calls--> actors --objects--> actors of the same site
    draft queue --frames--> link --> draft queues of other sites

The classes are those that have a process each on a Ray cluster. Between them messages are handed over as they are; only
what crosses to another site is encoded. Each model and each index works in a thread of its own. The runtime "inline"
is all parties' sites in one process, with links in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from tandem.actors.base import Runtime, SharedProcess, SiteActor
from tandem.actors.decoder import DecoderActor
from tandem.actors.draft_queue import DraftQueueActor
from tandem.actors.loading import check_model, describe_conversion, describe_load
from tandem.actors.retriever import AggregatorActor, ProfilerActor, RetrieverActor, SchedulerActor
from tandem.config.parties import NO_INDEX
from tandem.config.schema import Config
from tandem.corpora import describe_model
from tandem.engine.tokenizer import common_size
from tandem.errors import CallError, ClusterError, ConfigError, TandemError
from tandem.messages import have_common
from tandem.modes.dual import Dual, adds_nothing
from tandem.protocol.routes import ROLES, ActorKind
from tandem.sites.port import (
    ActorClasses,
    Actors,
    ActorState,
    Deployment,
    Progress,
    SitePort,
    ignore,
    to_dict,
)
from tandem.topology import PAIR, PARTIES, Party, Topology, at_start, in_words
from tandem.transport.memory import MemoryNetwork
from tandem.transport.port import NewPlane

LOADING = ("retriever", "decoder")
"""Actors that load what takes time: an index, a model."""
STALE_CACHES = (
    "had another model, template, precision, number of threads or version of PyTorch when documents were stored; "
    "each is computed again at its first use, or all by `tandem index --precompute-kv`"
)


def check_files(config: Config, parties: Sequence[str] | None = None, progress: Progress = ignore) -> None:
    """Check models and indexes on this machine without loading them, before anything starts. Raises TandemError.

    parties: whose; default: of all. progress: receives a line where a model takes long to load for the first time.
    """
    notes: dict[str, None] = {}
    for party in parties or config.parties:
        settings = config.party(party)
        check_model(settings)
        notes[describe_conversion(settings)] = None
        if settings.index_folder is not None and settings.num_documents:
            from tandem.retrieval.store import read_manifest

            read_manifest(settings.index_folder)
    for note in filter(None, notes):
        progress(f"models: {note}")


async def start_together(
    parties: Mapping[str, Actors], config: Config, progress: Progress
) -> dict[str, dict[str, Any]]:
    """Start all parties and open their links, if they agree; returns their descriptions. Raises TandemError."""
    limit_s = config.cluster.start_timeout_s
    try:
        async with asyncio.timeout(limit_s):
            described = await start_actors(parties, config, progress)
            compare(described, may_share=True)
            await share_vocabularies(parties, described, progress)
            await connect_parties(parties, config.topology)
    except TimeoutError:
        raise ClusterError(
            f"All actors must be ready within {limit_s:g} s but are not; raise cluster.start_timeout_s."
        ) from None
    return described


async def start_actors(
    parties: Mapping[str, Actors], config: Config, progress: Progress
) -> dict[str, dict[str, Any]]:
    """Have the actors of some parties bind, load and connect; returns the descriptions of what they loaded."""
    loaded, start_s = {party: _prepare(actors) for party, actors in parties.items()}, time.monotonic()
    endpoints = await asyncio.gather(
        *(actor.call("bind") for own in parties.values() for actor in own.values())
    )
    progress(f"actors: {len(endpoints)} ready")
    shown = [party for party in parties if not (config.is_alone and party == Party.CLOUD)]
    sizes = {party: describe_load(config.party(party)) for party in shown}
    progress(f"models: loading for {_join_equal(sizes)}")
    for party, actors in parties.items():
        own = [endpoint for endpoint in endpoints if endpoint.name.startswith(f"{party}/")]
        await asyncio.gather(
            *(actor.call("connect_peers", own) for role, actor in actors.items() if role != "draft_queue")
        )
        await actors["draft_queue"].call("connect_peers", own)
    described: dict[str, dict[str, Any]] = {party: {} for party in parties}
    for part in LOADING:
        for party in parties:
            described[party] |= await loaded[party][part]
    # a store counts no documents
    indexes = {
        party: str(described[party]["num_documents"] or described[party]["factory"]) for party in shown
    }
    progress(f"indexes: {_join_equal(indexes)}")
    models = _join_equal({party: _show_model(described[party]) for party in shown})
    progress(f"models: {models}, after {time.monotonic() - start_s:.1f} s")
    if stale := [party for party in shown if described[party].get("has_stale_caches")]:
        progress(f"caches: {' and '.join(stale)} {STALE_CACHES}")
    for actors in parties.values():
        await _give_tokenizer(actors)
    return described


def _show_model(described: Mapping[str, Any]) -> str:
    text = describe_model(described["model"])
    if num_bytes := described.get("num_bytes"):
        text += f", {num_bytes / 1e6:.0f} MB of {described['dtype']}"
    return text


def _join_equal(shown: Mapping[str, str]) -> str:
    by_text: dict[str, list[str]] = {}
    for party, text in shown.items():
        by_text.setdefault(text, []).append(party)
    return "; ".join(f"{' and '.join(parties)} {text}" for text, parties in by_text.items())


async def join_actors(actors: Actors, new: Collection[str]) -> None:
    """Have new actors of a party that runs load, bind and connect. actors: theirs, and those of others that serve.

    Nobody can connect to one before it has loaded. What a lost draft queue had begun ends. Raises TandemError.
    """
    others = {role: actor for role, actor in actors.items() if role not in new}
    await asyncio.gather(*_prepare({role: actors[role] for role in new}).values())
    if "draft_queue" in new:
        await asyncio.gather(*(other.call("forget_sessions") for other in others.values()))
    endpoints = await asyncio.gather(*(actors[role].call("bind") for role in new))
    every = [*endpoints, *await asyncio.gather(*(other.call("endpoint") for other in others.values()))]
    for role in new:
        await actors[role].call("connect_peers", every)
    await asyncio.gather(*(other.call("connect_peers", endpoints) for other in others.values()))
    await _share_again(actors, new)
    await _give_tokenizer(actors)


async def share_vocabularies(
    parties: Mapping[str, Actors], described: dict[str, dict[str, Any]], progress: Progress = ignore
) -> None:
    """Where no tokens are common to all parties, have them write answers of pieces of text, and describe these."""
    first = next(iter(described.values()))
    did_before = first.get("pieces") and len({about.get("pieces") for about in described.values()}) == 1
    if have_common_tokens(described) or did_before:
        return
    vocabularies = {party: await actors["decoder"].call("vocabulary") for party, actors in parties.items()}
    for party, actors in parties.items():
        described[party] |= await list_pieces(actors, vocabularies)
    progress(f"vocabularies: {first['vocabularies']}")


def have_common_tokens(described: Mapping[Any, Mapping[str, Any]]) -> bool:
    """Whether parties can answer in tokens of their models."""
    first, *others = described.values()
    return all(_fit(VOCABULARY, first, other) for other in others)


async def list_pieces(actors: Actors, vocabularies: Mapping[str, bytes]) -> dict[str, Any]:
    """Have a party's actors list the pieces of these parties' vocabularies; returns what describes the list."""
    await actors["draft_queue"].call("share", vocabularies)
    added: dict[str, Any] = await actors["decoder"].call("share", vocabularies)
    return added


async def _share_again(actors: Actors, new: Collection[str]) -> None:
    """Give new actors the lists of pieces that those have whom they join."""
    holders = [role for role in ("draft_queue", "decoder") if role not in new]
    shared = await actors[holders[0]].call("shared") if holders else ()
    for role, vocabularies in product(("draft_queue", "decoder"), shared):
        if role in new:
            await actors[role].call("share", vocabularies)


async def connect_parties(parties: Mapping[str, Actors], topology: Topology = PAIR) -> None:
    """Open the links between the draft queues of these parties, unless they are open already."""
    queues = {party: parties[party]["draft_queue"] for party in topology.parties if party in parties}
    endpoints = {party: await queues[party].call("endpoint") for party in topology.dialled if party in queues}
    for party, queue in queues.items():
        if dialled := [endpoints[target] for target in topology.dials_of(party) if target in endpoints]:
            await queue.call("connect_peers", dialled)


async def describe(parties: Mapping[str, Actors]) -> dict[str, dict[str, Any]]:
    """Descriptions of what each party has loaded."""
    return {
        party: await actors["retriever"].call("describe") | await actors["decoder"].call("describe")
        for party, actors in parties.items()
    }


def _prepare(actors: Actors) -> Mapping[str, asyncio.Future[dict[str, Any]]]:
    loading = {
        role: asyncio.ensure_future(actors[role].call("prepare")) for role in LOADING if role in actors
    }
    for future in loading.values():  # where another one fails first, nobody asks for the error of this one
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return loading


async def _give_tokenizer(actors: Actors) -> None:
    await actors["draft_queue"].call("set_detokenizer", await actors["decoder"].call("detokenizer"))


# ---- what parties must have in common ------------------------------------------------------------------------


VOCABULARY = "vocabulary_fingerprint"
HANDSHAKE_FIELDS = {
    VOCABULARY: ("vocabulary", "use models that share a tokenizer"),
    "codec": ("codec", "use the same [codec] settings on both machines"),
    "policy": (
        "placement policy",
        "use the same decoding.placement and [scheduler] settings on both machines",
    ),
    "protocol_version": ("protocol version", "install the same version of tandem-rag on both machines"),
    "embedder_fingerprint": ("embedder", "use the same retrieval.embedder on both machines"),
    "scorer_fingerprint": ("scoring model", "use the same weights.scorer on both machines"),
}
"""What all parties must have in common before the first query, and the remedy."""


def compare(described: Mapping[Any, Mapping[str, Any]], *, may_share: bool = False) -> None:
    """All parties must agree before the first query. Raises ClusterError that names two values and the remedy.

    may_share: vocabularies may differ, since `share_vocabularies` follows.
    """
    parties = "Both parties" if len(described) == 2 else "All parties"
    for key, (what, remedy) in HANDSHAKE_FIELDS.items():
        compared = {  # without documents a party has no embedder to compare
            party: values
            for party, values in described.items()
            if key in values or values.get("factory") != NO_INDEX
        }
        for other in list(compared)[1:]:
            first = next(iter(compared))
            if not (may_share and key == VOCABULARY) and not _fit(key, compared[first], compared[other]):
                one, another = _shown(key, compared[first]), _shown(key, compared[other])
                raise ClusterError(
                    f"{parties} must have the same {what}, {in_words(first)} has {one!r} and "
                    f"{in_words(other)} {another!r}; {remedy}."
                )


def _fit(key: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two parties can work together. Of vocabularies they use the tokens that both have."""
    if key == VOCABULARY and all("vocabulary_prefixes" in each for each in (one, other)):
        return common_size(one, other) is not None
    if key == "protocol_version":
        return have_common(_versions(one), _versions(other))
    return one.get(key) == other.get(key)


def _versions(description: Mapping[str, Any]) -> tuple[int, int]:
    newest = description.get("protocol_version") or 0
    return description.get("oldest_version") or newest, newest


def _shown(key: str, description: Mapping[str, Any]) -> Any:
    """A value as sentences show it; that of a vocabulary with the tokenizer's name."""
    value = description.get(key)
    return f"{description.get('tokenizer')} ({value})" if key == VOCABULARY else value


def note_pairing(config: Config, described: Mapping[Any, Mapping[str, Any]], progress: Progress) -> None:
    """Say so where the device's drafter was made for another model than the cloud's (answers stay exact), and where the
    device will answer by itself, as a cloud with an index has nothing that it lacks."""
    from tandem.engine.places import find_mismatch

    if all(party in described for party in PARTIES) and (
        sentence := find_mismatch(*(described[party] for party in PARTIES))
    ):
        progress(f"drafter: {sentence}")
    has_index = described.get(Party.CLOUD, {}).get("factory") != NO_INDEX
    is_dual = config.decoding.mode == Dual.name
    if is_dual and has_index and adds_nothing(described, config.with_names().cloud.num_documents):
        progress("cloud: no documents, and the device's model; the device answers by itself")


ACTOR_CLASSES: ActorClasses = {
    "retriever": RetrieverActor,
    "decoder": DecoderActor,
    "draft_queue": DraftQueueActor,
    "aggregator": AggregatorActor,
    "profiler": ProfilerActor,
    "scheduler": SchedulerActor,
}


class LocalSite(SitePort):
    """A site of actors in this process, which may be called from their event loop or any other."""

    def __init__(self, party: str, actors: Mapping[str, SiteActor], loop: asyncio.AbstractEventLoop) -> None:
        """loop: where the actors live; it must run."""
        self.party = party
        self.actors = actors
        self._loop = loop
        self._started_s = time.time()

    @classmethod
    def create(
        cls,
        party: str,
        config: Config,
        new_plane: NewPlane,
        loop: asyncio.AbstractEventLoop,
        actor_classes: ActorClasses | None = None,
    ) -> LocalSite:
        """A site whose draft queue reaches its peers through a link over which nothing but frames can come.

        new_plane: makes the draft queue's end of it. actor_classes: as in `Tandem.launch`.
        """
        classes: dict[ActorKind, type] = {**ACTOR_CLASSES, **(actor_classes or {})}
        own = config.with_names().seen_by(party)
        runtime = Runtime(secret=b"", directory="", config=own, new_plane=new_plane)
        return cls(party, SharedProcess(party, runtime, {role: classes[role] for role in ROLES}).actors, loop)

    async def status(self) -> list[dict[str, object]]:
        """Every actor, as `tandem status` shows it."""
        state = ActorState(
            name="",
            state="alive",
            process="inline",  # one for all sites
            pid=os.getpid(),
            started_s=self._started_s,
        )
        return [
            to_dict(replace(state, name=actor.name), await actor.statistics())
            for actor in self.actors.values()
        ]

    async def stop(self) -> None:
        """Stop all tasks and links; the threads end with the work that they are at."""
        await asyncio.gather(*(actor.close() for actor in self.actors.values()))

    async def call(self, role: str, method: str, *arguments: Any) -> Any:
        """What a method of an actor returns. Raises CallError if the event loop is closed, or closed meanwhile."""
        place, actor = f"{at_start(self.party)}'s site", self.actors.get(role)
        if actor is None or self._loop.is_closed():
            raise CallError(f"{place} is closed; start it again.")
        work = actor.call(method, *arguments)
        if asyncio.get_running_loop() is self._loop:
            return await work
        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():  # not the caller but the call was: the loop was stopped
                raise CallError(f"{place} was closed during a call; start it again.") from None
            raise


@dataclass(kw_only=True)
class LocalDeployment(Deployment):
    """Sites in this process: of all parties, or of one that has links to others."""

    sites: dict[str, LocalSite] = field(default_factory=dict)

    @property
    def actors(self) -> dict[str, Mapping[str, SiteActor]]:
        """The actors by party and role; to be called on the event loop only."""
        return {party: site.actors for party, site in self.sites.items()}

    async def status(self, config: Config) -> dict[str, Any]:
        """What a Ray cluster reports; there are no nodes, and all actors share one process."""
        return {
            "cluster": "inline",
            "nodes": [],
            "parties": {party: dict(description) for party, description in self.described.items()},
            "actors": [actor for site in self.sites.values() for actor in await site.status()],
        }

    def close(self) -> None:
        """Stop all sites."""
        with contextlib.suppress(TandemError):
            self.loop.run(self._stop())
        self.loop.close()

    async def start_alone(
        self,
        party: str,
        config: Config,
        new_plane: NewPlane,
        progress: Progress,
        actor_classes: ActorClasses | None,
    ) -> None:
        """Start the site of one party whose peers are elsewhere. Raises TandemError."""
        limit_s, loop = config.cluster.start_timeout_s, asyncio.get_running_loop()
        self.sites[party] = LocalSite.create(party, config, new_plane, loop, actor_classes)
        try:
            async with asyncio.timeout(limit_s):
                self.described |= await start_actors(self.actors, config, progress)
        except TimeoutError:
            raise ClusterError(
                f"The {party} must be ready within {limit_s:g} s but is not; raise cluster.start_timeout_s."
            ) from None

    async def _stop(self) -> None:
        await asyncio.gather(*(site.stop() for site in self.sites.values()))


def launch(
    config: Config, progress: Progress, actor_classes: ActorClasses | None = None, hosts: object = None
) -> LocalDeployment:
    """Start every party's site here; see `Tandem.launch`. Raises TandemError; nothing runs then."""
    if hosts is not None:
        raise ConfigError(
            'hosts says where Ray nodes run, but the runtime is "inline", which has none; leave out hosts, or use the '
            'runtime "ray".'
        )
    config = config.resolve(Path.cwd())
    check_files(config, progress=progress)
    deployment, network = LocalDeployment(), MemoryNetwork()
    try:
        for party in config.parties:
            deployment.sites[party] = LocalSite.create(
                party, config, network.new_plane, deployment.loop.event_loop, actor_classes
            )
        deployment.described = deployment.loop.run(start_together(deployment.actors, config, progress))
    except BaseException:
        deployment.close()
        raise
    note_pairing(config, deployment.described, progress)
    return deployment
