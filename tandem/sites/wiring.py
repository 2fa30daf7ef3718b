"""Has the actors of the parties bind, load and connect, and compares what they loaded; the same wherever they run."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tandem.actors.decoder_pool import compare_decoders
from tandem.actors.handles import Handles
from tandem.actors.loading import check_model, describe_conversion
from tandem.config.schema import Config
from tandem.corpora import describe_model
from tandem.errors import ClusterError
from tandem.protocol.outbox import kind_of
from tandem.sites.agreement import compare
from tandem.sites.deployment import Progress
from tandem.topology import PAIR, Topology
from tandem.transport.port import Endpoint


def check_files(
    config: Config, parties: Sequence[str] | None = None, progress: Progress = lambda line: None
) -> None:
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
    parties: Mapping[str, Handles], config: Config, progress: Progress
) -> dict[str, dict[str, Any]]:
    """Start the actors of all parties and open the links between them, if all agree; returns their descriptions.

    Raises TandemError, also if it takes longer than `cluster.start_timeout_s`.
    """
    limit_s = config.cluster.start_timeout_s
    try:
        async with asyncio.timeout(limit_s):
            described = await start_actors(parties, progress)
            compare(described)
            await connect_parties(parties, config.topology)
    except TimeoutError:
        raise ClusterError(
            f"All actors must be ready within {limit_s:g} s but are not; raise cluster.start_timeout_s."
        ) from None
    return described


async def start_actors(parties: Mapping[str, Handles], progress: Progress) -> dict[str, dict[str, Any]]:
    """Have the actors of one or both sides bind, load and connect; returns the descriptions of what they loaded."""
    loaded = {party: _prepare(handles) for party, handles in parties.items()}
    endpoints = await call_all(parties, "bind")
    progress(f"actors: {len(endpoints)} ready")
    for party, handles in parties.items():
        own = [endpoint for endpoint in endpoints if endpoint.name.startswith(f"{party}/")]
        await asyncio.gather(
            *(handle.connect_peers.remote(own) for role, handle in handles.items() if role != "draft_queue")
        )
        await handles["draft_queue"].connect_peers.remote(own)
    described: dict[str, dict[str, Any]] = {party: {} for party in parties}
    for part, plural in (("retriever", "indexes"), ("decoder", "models")):
        for party in parties:
            described[party] |= await loaded[party][part]
            if part == "decoder":
                decoders = {
                    role: await loading
                    for role, loading in loaded[party].items()
                    if kind_of(role) == "decoder"
                }
                compare_decoders({f"{party}/{role}": values for role, values in decoders.items()})
        show = _show_index if part == "retriever" else _show_model
        shown = {party: show(described[party]) for party in parties}
        progress(f"{plural}: {_join_equal(shown)}")
    for handles in parties.values():
        await _give_tokenizer(handles)
    return described


def _show_index(described: Mapping[str, Any]) -> str:
    return str(described["num_documents"] or described["factory"])  # no count: a store


def _show_model(described: Mapping[str, Any]) -> str:
    """Its name, and how large it is, where that is known."""
    text = describe_model(described["model"])
    if count := described.get("num_parameters"):
        num_bytes = count * (4 if described["dtype"] == "float32" else 2)
        text += f", {num_bytes / 1e6:.0f} MB of {described['dtype']}"
    return text


def _join_equal(shown: Mapping[str, str]) -> str:
    """What parties have, once for those that have the same."""
    by_text: dict[str, list[str]] = {}
    for party, text in shown.items():
        by_text.setdefault(text, []).append(party)
    return "; ".join(f"{' and '.join(parties)} {text}" for text, parties in by_text.items())


async def join_actors(handles: Handles, new: Collection[str]) -> None:
    """Have new actors of a party that runs load, bind and connect. handles: theirs, and those of others that serve.

    Nobody can connect to one before it has loaded. What a lost draft queue had begun ends. Raises TandemError.
    """
    others = {role: handle for role, handle in handles.items() if role not in new}
    loading = _prepare({role: handles[role] for role in new})
    described = {role: await others[role].describe.remote() for role in others if kind_of(role) == "decoder"}
    described |= {role: await future for role, future in loading.items() if kind_of(role) == "decoder"}
    compare_decoders(described)
    await asyncio.gather(*loading.values())
    if "draft_queue" in new:
        await call_all({"": others}, "forget_sessions")
    endpoints = await call_all({"": {role: handles[role] for role in new}}, "bind")
    known = [*endpoints, *await call_all({"": others}, "endpoint")]
    for role in new:
        await handles[role].connect_peers.remote(known)
    await asyncio.gather(*(_result(other.connect_peers.remote(endpoints)) for other in others.values()))
    await _give_tokenizer(handles)


async def connect_parties(parties: Mapping[str, Handles], topology: Topology = PAIR) -> None:
    """Open the links between the draft queues of these parties, unless they are open already."""
    queues = {party: parties[party]["draft_queue"] for party in topology.parties if party in parties}
    endpoints: dict[str, Endpoint] = {
        party: await queues[party].endpoint.remote() for party in topology.dialled if party in queues
    }
    for party, queue in queues.items():
        if dialled := [endpoints[target] for target in topology.dials_of(party) if target in endpoints]:
            await queue.connect_peers.remote(dialled)


async def describe(parties: Mapping[str, Handles]) -> dict[str, dict[str, Any]]:
    """Descriptions of what each side has loaded."""
    return {
        party: await handles["retriever"].describe.remote() | await handles["decoder"].describe.remote()
        for party, handles in parties.items()
    }


def _prepare(handles: Handles) -> dict[str, asyncio.Future[Any]]:
    loading: dict[str, asyncio.Future[Any]] = {
        role: asyncio.ensure_future(_result(handles[role].prepare.remote()))
        for role in handles
        if role == "retriever" or kind_of(role) == "decoder"
    }
    for future in loading.values():  # where another one fails first, nobody asks for the error of this one
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return loading


async def _give_tokenizer(handles: Handles) -> None:
    decoder = next(handle for role, handle in handles.items() if kind_of(role) == "decoder")
    await handles["draft_queue"].set_tokenizer.remote(await decoder.tokenizer_json.remote())


async def _result(reference: Any) -> Any:
    return await reference


async def call_all(parties: Mapping[str, Handles], method: str) -> list[Any]:
    """What a method of every actor returns."""
    handles = [handle for own in parties.values() for handle in own.values()]
    return list(await asyncio.gather(*(_result(getattr(handle, method).remote()) for handle in handles)))
