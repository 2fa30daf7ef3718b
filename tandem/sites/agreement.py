"""What all parties must have in common before the first query, and what is worth a warning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.actors.retriever import NO_INDEX
from tandem.engine.tokenizer import common_size
from tandem.errors import ClusterError
from tandem.sites.deployment import Progress
from tandem.topology import PARTIES, in_words

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
        known = {party: values for party, values in described.items() if not _lacks(key, values)}
        for other in list(known)[1:]:
            first = next(iter(known))
            if known[first].get(key) != known[other].get(key) and not _may_differ(
                key, known[first], known[other]
            ):
                one, another = _shown(key, known[first]), _shown(key, known[other])
                raise ClusterError(
                    f"{parties} must have the same {what}, {in_words(first)} has {one!r} and "
                    f"{in_words(other)} {another!r}; {remedy}."
                )


def _may_differ(key: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether parties with these can work together all the same: they use the tokens that both have."""
    is_described = all("vocabulary_prefixes" in known for known in (one, other))
    return key == "vocabulary_fingerprint" and is_described and common_size(one, other) is not None


def _shown(key: str, known: Mapping[str, Any]) -> Any:
    """A value as sentences show it; that of a vocabulary with the tokenizer's name."""
    value = known.get(key)
    return f"{known.get('tokenizer')} ({value})" if key == "vocabulary_fingerprint" else value


def _lacks(key: str, known: Mapping[str, Any]) -> bool:
    """Whether a party has nothing to compare: without documents it has no embedder."""
    return key not in known and known.get("factory") == NO_INDEX


def warn_of_drafter(described: Mapping[Any, Mapping[str, Any]], progress: Progress) -> None:
    """Say so where the device's drafter was made for another model than the cloud's; answers stay exact."""
    from tandem.engine.places import find_mismatch

    if all(party in described for party in PARTIES) and (
        sentence := find_mismatch(*(described[party] for party in PARTIES))
    ):
        progress(f"drafter: {sentence}")
