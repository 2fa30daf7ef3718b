"""The start of parties, wherever they run: actors load, bind and connect, what they loaded is compared, links open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tandem.actors.loading import check_model, describe_conversion, describe_load
from tandem.config.parties import NO_INDEX
from tandem.config.schema import Config
from tandem.corpora import describe_model
from tandem.engine.tokenizer import common_size
from tandem.errors import ClusterError
from tandem.messages import have_common
from tandem.modes.dual import Dual, adds_nothing
from tandem.sites.port import Actors, Progress, ignore
from tandem.topology import PAIR, PARTIES, Topology, in_words

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
            compare(described)
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
    sizes = {party: describe_load(config.party(party)) for party in parties}
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
    indexes = {party: str(own["num_documents"] or own["factory"]) for party, own in described.items()}
    progress(f"indexes: {_join_equal(indexes)}")
    models = _join_equal({party: _show_model(own) for party, own in described.items()})
    progress(f"models: {models}, after {time.monotonic() - start_s:.1f} s")
    if stale := [party for party, own in described.items() if own.get("has_stale_caches")]:
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
    await _give_tokenizer(actors)


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
    """Have the draft queue turn tokens into text as its decoder does."""
    await actors["draft_queue"].call("set_detokenizer", await actors["decoder"].call("detokenizer"))


# ---- what parties must have in common ------------------------------------------------------------------------


HANDSHAKE_FIELDS = {
    "vocabulary_fingerprint": ("vocabulary", "use models that share a tokenizer"),
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


def compare(described: Mapping[Any, Mapping[str, Any]]) -> None:
    """All parties must agree before the first query. Raises ClusterError that names two values and the remedy."""
    parties = "Both parties" if len(described) == 2 else "All parties"
    for key, (what, remedy) in HANDSHAKE_FIELDS.items():
        compared = {  # without documents a party has no embedder to compare
            party: values
            for party, values in described.items()
            if key in values or values.get("factory") != NO_INDEX
        }
        for other in list(compared)[1:]:
            first = next(iter(compared))
            if not _fit(key, compared[first], compared[other]):
                one, another = _shown(key, compared[first]), _shown(key, compared[other])
                raise ClusterError(
                    f"{parties} must have the same {what}, {in_words(first)} has {one!r} and "
                    f"{in_words(other)} {another!r}; {remedy}."
                )


def _fit(key: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two parties can work together. Of vocabularies they use the tokens that both have."""
    if key == "vocabulary_fingerprint" and all("vocabulary_prefixes" in each for each in (one, other)):
        return common_size(one, other) is not None
    if key == "protocol_version":
        return have_common(_versions(one), _versions(other))
    return one.get(key) == other.get(key)


def _versions(description: Mapping[str, Any]) -> tuple[int, int]:
    """The oldest and the newest version of the protocol that a party speaks."""
    newest = description.get("protocol_version") or 0
    return description.get("oldest_version") or newest, newest


def _shown(key: str, description: Mapping[str, Any]) -> Any:
    """A value as sentences show it; that of a vocabulary with the tokenizer's name."""
    value = description.get(key)
    return f"{description.get('tokenizer')} ({value})" if key == "vocabulary_fingerprint" else value


def note_pairing(config: Config, described: Mapping[Any, Mapping[str, Any]], progress: Progress) -> None:
    """Say so where the device's drafter was made for another model than the cloud's (answers stay exact), and where the
    device will answer by itself, as the cloud has nothing that it lacks."""
    from tandem.engine.places import find_mismatch

    if all(party in described for party in PARTIES) and (
        sentence := find_mismatch(*(described[party] for party in PARTIES))
    ):
        progress(f"drafter: {sentence}")
    is_dual = config.decoding.mode == Dual.name
    if is_dual and adds_nothing(described, config.with_names().cloud.num_documents):
        progress("cloud: no documents, and the device's model; the device answers by itself")
