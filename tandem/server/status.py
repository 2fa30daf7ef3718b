"""The state of the parties and their link, as the page shows it."""

from __future__ import annotations

from typing import Any

from tandem import __version__
from tandem.config.schema import Config, placement_of
from tandem.corpora import TOYS, example_questions
from tandem.server.queries import QueryLimit

SHOWN_OF_PARTY = ("model", "num_documents", "corpus", "factory", "embedder", "context_length")
COUNTED = ("sent_bytes", "received_bytes", "sent_frames", "received_frames")
QUEUE = "draft_queue"


def describe(state: dict[str, Any], config: Config, queries: QueryLimit) -> dict[str, Any]:
    """state: of `Tandem.status`. The link's bytes are those of the home party's draft queue since it started."""
    home = _home(state, config)
    parties = [_party(party, state) for party in config.parties]
    return {
        "version": __version__,
        "mode": config.decoding.mode,
        "placement": placement_of(config.decoding),
        "home": home,
        "deployment": state["cluster"],
        "parties": parties,
        "examples": _examples(parties),
        "links": [
            link for actor in state["actors"] if actor["name"] == f"{home}/{QUEUE}" for link in _links(actor)
        ],
        "queries": {"num_open": queries.num_open, "max_open": queries.max_queries},
    }


def find_peers(state: dict[str, Any], config: Config) -> dict[str, bool]:
    """Every party but the home one, and whether it is connected. state: of `Tandem.status`."""
    home = _home(state, config)
    return {party: _is_connected(party, state) for party in config.parties if party != home}


def _home(state: dict[str, Any], config: Config) -> str:
    """The party that answers here: the first that can be reached."""
    reachable = [actor["party"] for actor in state["actors"] if actor["name"].endswith(f"/{QUEUE}")]
    return reachable[0] if reachable else config.parties[0]


def _party(party: str, state: dict[str, Any]) -> dict[str, Any]:
    described = state["parties"].get(party, {})
    return {
        "name": party,
        "is_connected": _is_connected(party, state),
        "can_answer_alone": any(actor["party"] == party for actor in state["actors"]),  # not over a join link
        "toy": TOYS.get(described.get("model", "")),  # what it is; None: no toy, or not known
        **{name: described.get(name) for name in SHOWN_OF_PARTY},
    }


def _examples(parties: list[dict[str, Any]]) -> list[str]:
    """Questions to try where the documents of all parties belong together; [] beside others, or where one has none."""
    first, *others = {party["corpus"] for party in parties}
    return example_questions(first) if first and not others else []


def _is_connected(party: str, state: dict[str, Any]) -> bool:
    """Whether its actors run here or in the cluster, or its site has a connection to here."""
    if party in state.get("connected", ()):
        return True
    own = [actor["state"] for actor in state["actors"] if actor["party"] == party]
    return bool(own) and all(state == "alive" for state in own)


def _links(actor: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"peer": name.partition("/")[0], **{key: counters[key] for key in COUNTED}}
        for name, counters in actor.get("links", {}).items()
        if name.endswith(f"/{QUEUE}")
    ]
