"""Starts this machine's Ray node and connects this process to a cluster."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import ray
from ray.exceptions import RayError

from tandem.cluster import nodes
from tandem.cluster.nodes import Host, NodeInfo
from tandem.config import Config
from tandem.errors import ClusterError
from tandem.topology import Party

ATTACH_LIMIT_S = 20.0
"""A head that listens accepts a driver within this time, or never."""


def start_node(role: Party, *, join: str | None, config: Config) -> NodeInfo:
    """Start this machine's node: the first of a cluster, or one that joins at `join` (host:port)."""
    environment = nodes.node_environment()
    os.environ.update({name: value for name, value in environment.items() if name.startswith("RAY_")})
    limit_s = config.cluster.start_timeout_s
    host = Host(config.link.host or None)
    if join is None:
        node = nodes.start_head(role, environment=environment, host=host)
    else:
        nodes.wait_for_port(join, limit_s)
        node = nodes.join(role, join, environment=environment, host=host)
    try:
        nodes.wait_for_port(node.address, limit_s, node)
    except ClusterError:
        node.stop()
        raise
    return node


def stop_node(info: NodeInfo) -> None:
    """Stop a node that `start_node` started, in this or an earlier process."""
    info.stop()
    nodes.remove_dead_socket_folders()


def attach(address: str, config: Config) -> None:
    """Connect this process to a cluster. Raises ClusterError if it cannot be reached."""
    if ray.is_initialized():
        return
    nodes.wait_for_port(address, min(5.0, config.cluster.start_timeout_s))
    _read_authentication_again()
    deadline_s = time.monotonic() + min(ATTACH_LIMIT_S, config.cluster.start_timeout_s)
    while True:
        try:
            with _anonymously():
                ray.init(
                    address=address,
                    namespace=config.cluster.namespace,
                    log_to_driver=False,
                    logging_level=logging.CRITICAL,
                    configure_logging=False,
                )
            return
        except (ConnectionError, RuntimeError, OSError, ValueError, RayError) as error:
            if time.monotonic() > deadline_s or "token" in str(error).lower():
                raise ClusterError(
                    f"The Ray cluster at {address} did not accept this process: "
                    f"{str(error).strip().splitlines()[0][:200]!r}; check the address and RAY_AUTH_TOKEN."
                ) from None
            time.sleep(0.2)


@contextlib.contextmanager
def _anonymously() -> Iterator[None]:
    """Keep this process's command line from Ray, which shows it to all nodes: it may hold a filter or a path."""
    utils: Any = importlib.import_module("ray._private.utils")
    original = getattr(utils, "get_entrypoint_name", None)
    if original is None:  # private to Ray; a test fails if it disappears
        yield
        return
    utils.get_entrypoint_name = lambda: "tandem"
    try:
        yield
    finally:
        utils.get_entrypoint_name = original


def _read_authentication_again() -> None:
    """Ray reads RAY_AUTH_MODE on import; this makes it see a token that was set later."""
    with contextlib.suppress(
        ImportError, AttributeError
    ):  # private to Ray: without it, the import's value counts
        raylet: Any = importlib.import_module("ray._raylet")
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()


def wait_for_roles(roles: tuple[Party, ...], limit_s: float, still_running: Callable[[], None]) -> None:
    """Wait until a node of each role has joined. Raises ClusterError after `limit_s`."""
    deadline_s = time.monotonic() + limit_s
    missing = list(roles)
    while missing:
        resources = ray.cluster_resources()
        missing = [role for role in roles if nodes.PARTY_RESOURCE.format(party=role) not in resources]
        still_running()
        if missing and time.monotonic() > deadline_s:
            raise ClusterError(
                f"The {missing[0]} has no node after {limit_s:.0f} s; "
                f"start one with `tandem up {missing[0]} --join ADDRESS`."
            )
        if missing:
            time.sleep(0.05)
