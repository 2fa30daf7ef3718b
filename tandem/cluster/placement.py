"""Which of a party's Ray nodes its actors run on.

All actors of a party share Unix-domain sockets, so they are on one node, the party's home. Only where there are several
decoders may these be anywhere: Ray spreads them over the party's nodes, and over the GPUs that they ask for.
"""

from __future__ import annotations

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tandem.cluster import nodes
from tandem.config import Config
from tandem.errors import ClusterError
from tandem.protocol.replicas import is_decoder


def home_node(party: str) -> dict[str, Any]:
    """This process's node if it is the party's, else the first of the party's, as `ray.nodes()` describes it."""
    resource = nodes.PARTY_RESOURCE.format(party=party)
    alive = [node for node in ray.nodes() if node["Alive"] and resource in node["Resources"]]
    if not alive:
        raise ClusterError(f"The {party} has no node in this cluster; start one with `tandem up {party}`.")
    own = ray.get_runtime_context().get_node_id()
    return next((node for node in alive if node["NodeID"] == own), alive[0])


def at_home(party: str) -> NodeAffinitySchedulingStrategy:
    """Ray's strategy for actors that run on the party's home."""
    return NodeAffinitySchedulingStrategy(node_id=home_node(party)["NodeID"], soft=False)


def place(party: str, role: str, config: Config, *, detached: bool) -> dict[str, Any]:
    """Ray's options that say where an actor runs, and with how many GPUs.

    detached: the party may have several nodes; else it has one, which need not have joined yet.
    """
    settings = config.party(party)
    options: dict[str, Any] = {"resources": {nodes.PARTY_RESOURCE.format(party=party): 0.001}}
    if is_decoder(role) and settings.gpus_per_decoder:
        options["num_gpus"] = settings.gpus_per_decoder
    if is_decoder(role) and settings.num_decoders > 1:
        options["scheduling_strategy"] = "SPREAD"
    elif detached:
        options["scheduling_strategy"] = at_home(party)
    return options
