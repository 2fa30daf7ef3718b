"""Which of a party's Ray nodes its actors run on.

All actors of a party share Unix-domain sockets, so they are on one node, the party's home. Only where there are several
decoders may these be anywhere: one node after the other gets one, or with GPUs whichever Ray finds to have them free.
"""

from __future__ import annotations

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tandem.actors.decoder_pool import is_decoder
from tandem.cluster import nodes
from tandem.config.schema import Config
from tandem.errors import ClusterError


def party_nodes(party: str) -> list[dict[str, Any]]:
    """The party's living nodes as `ray.nodes()` describes them, its home first. Raises ClusterError if it has none.

    Home is this process's node if it is one of them: that of the supervisor, once the party runs.
    """
    resource = nodes.PARTY_RESOURCE.format(party=party)
    alive = [node for node in ray.nodes() if node["Alive"] and resource in node["Resources"]]
    if not alive:
        raise ClusterError(f"The {party} has no node in this cluster; start one with `tandem up {party}`.")
    own = ray.get_runtime_context().get_node_id()
    return sorted(alive, key=lambda node: (node["NodeID"] != own, node["NodeID"]))


def at_home(party: str) -> NodeAffinitySchedulingStrategy:
    """Ray's strategy for actors that run on the party's home."""
    return NodeAffinitySchedulingStrategy(node_id=party_nodes(party)[0]["NodeID"], soft=False)


def in_turn(party: str, role: str) -> str:
    """The own resource of the node for one of several decoders: the first is at home, the next on the next node, ...

    Ray waits for a node that offers it; a wish for a node by its id it may forget where it has not heard of that yet.
    """
    known = party_nodes(party)
    number = int(role.partition("-")[2] or 0)
    resources = known[number % len(known)]["Resources"]
    return next(str(name) for name in resources if name.startswith(nodes.OWN_RESOURCE))


def place(party: str, role: str, config: Config, *, detached: bool) -> dict[str, Any]:
    """Ray's options that say where an actor runs, and with how many GPUs. role: of a decoder with its number.

    detached: the party may have several nodes; else it has one, which need not have joined yet.
    """
    settings = config.party(party)
    resources = {nodes.PARTY_RESOURCE.format(party=party): 0.001}
    options: dict[str, Any] = {"resources": resources}
    if is_decoder(role) and settings.gpus_per_decoder:
        options["num_gpus"] = settings.gpus_per_decoder
    if not detached:
        return options
    if not is_decoder(role) or settings.num_decoders == 1:
        options["scheduling_strategy"] = at_home(party)
    elif settings.gpus_per_decoder:
        options["scheduling_strategy"] = "SPREAD"
    else:
        resources[in_turn(party, role)] = 0.001
    return options
