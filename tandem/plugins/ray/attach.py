"""Starts this machine's Ray node and connects this process to a cluster."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import AuthenticationError, RayError

from tandem.config.schema import Config
from tandem.errors import ClusterError
from tandem.plugins.ray import nodes, registry
from tandem.plugins.ray.nodes import NodeInfo
from tandem.sites.port import Host

_log = logging.getLogger("tandem")

ATTACH_LIMIT_S = 20.0
"""A head that listens accepts a driver within this time, or never."""
RAY_LINE = re.compile(rb"\[\d{4}-\d\d-\d\d [\d:,]+ [A-Z] \d+ \d+\] ")
"""How each line of Ray's C++ log begins."""


def start_node(role: str, *, join: str | None, config: Config) -> NodeInfo:
    """Start this machine's node: the first of a cluster, or one that joins at `join` (host:port).

    Raises ClusterError, also where others could read or change what it sends.
    """
    for place in (config.link.host, (join or "").rpartition(":")[0]):
        registry.require_protection(place, config)
    environment, limit_s = nodes.node_environment(), config.cluster.start_timeout_s
    os.environ.update({name: value for name, value in environment.items() if name.startswith("RAY_")})
    if join is not None:
        nodes.wait_for_port(join, limit_s)
    host = Host(config.link.host or None)
    node = nodes.start(role, config, environment=environment, join=join, host=host)
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


@contextlib.contextmanager
def attached(address: str, config: Config) -> Iterator[None]:
    """Connect this process to a cluster with the token it needs, and leave both as they were before.

    Raises ClusterError if the cluster cannot be reached or refuses the token.
    """
    was_attached = ray.is_initialized()
    with registry.kept_environment():
        registry.find_token(address)
        attach(address, config)
        try:
            yield
        finally:
            if not was_attached:
                ray.shutdown()


def attach(address: str, config: Config) -> None:
    """Connect this process to a cluster. Raises ClusterError if it cannot be reached or refuses the token."""
    nodes.wait_for_port(address, min(5.0, config.cluster.start_timeout_s))
    if ray.is_initialized():
        if _resolve(address) != _resolve(current := current_address()):
            raise ClusterError(
                f"This process is connected to the cluster at {current} and cannot connect to {address} as well; "
                "close that Tandem first, or use another process."
            )
        return
    _ask_head(address)
    deadline_s = time.monotonic() + min(ATTACH_LIMIT_S, config.cluster.start_timeout_s)
    while True:
        try:
            with (
                # it may hold a filter or a path, and Ray shows it to all nodes
                _replaced("ray._private.utils", "get_entrypoint_name", lambda: "tandem"),
                _replaced("ray._private.services", "resolve_ip_for_localhost", str),  # see nodes.ON_LOOPBACK
                _own_termination(),
            ):
                ray.init(
                    address=address,
                    namespace=config.cluster.namespace,
                    log_to_driver=False,
                    logging_level=logging.CRITICAL,
                    configure_logging=False,
                )
            _log_errors()
            return
        except (ConnectionError, RuntimeError, OSError, ValueError, RayError) as error:
            if time.monotonic() > deadline_s:
                raise ClusterError(
                    f"The Ray cluster at {address} did not accept this process: "
                    f"{str(error).strip().splitlines()[0][:200]!r}; check the address."
                ) from None
            time.sleep(0.2)


def current_address() -> str:
    """The address of the cluster that this process is attached to."""
    return str(ray.get_runtime_context().gcs_address)


def _resolve(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"{socket.gethostbyname(host)}:{port}"


def _ask_head(address: str) -> None:
    """Have Ray's own client of the head try the token, in milliseconds: `ray.init` tries a bad one for 20 s.

    Raises ClusterError if it is missing or wrong.
    """
    registry.check_token_file()
    try:
        raylet: Any = importlib.import_module("ray._raylet")
        with contextlib.suppress(
            AttributeError
        ):  # Ray has read RAY_AUTH_MODE on import; a token may be newer
            raylet.Config.initialize("")
            raylet.AuthenticationTokenLoader.instance().reset_cache()
        with _without_ray_lines():
            raylet.GcsClient(address=address)
    except AuthenticationError:
        raise ClusterError(_refusal(address)) from None
    except (AttributeError, RayError):
        pass  # private to Ray, and a test fails if it disappears; `ray.init` names other troubles


def _refusal(address: str) -> str:
    source = registry.describe_source()
    if not source:
        return (
            f"The cluster at {address} requires its token, and this process has none; set {registry.TOKEN_PATH} to "
            "the file that `tandem up` named when it started the cluster."
        )
    recorded = registry.recorded_token(address)
    remedy = f"set {registry.TOKEN_PATH} to the file that `tandem up` named when it started the cluster"
    if recorded and recorded != os.environ.get(registry.TOKEN):
        remedy = f"unset {source.partition('=')[0]} to use the token that `tandem up` recorded here"
    return f"The cluster at {address} does not accept the token of this process ({source}); {remedy}."


@contextlib.contextmanager
def _without_ray_lines() -> Iterator[None]:
    """Hold back what is written to stderr meanwhile, also by C++; then pass on all but Ray's own lines."""
    try:
        original = os.dup(2)
    except OSError:  # there is no stderr
        yield
        return
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(original, 2)
            os.close(original)
            written.seek(0)
            os.write(2, b"".join(line for line in written if not RAY_LINE.match(line)))


@contextlib.contextmanager
def _own_termination() -> Iterator[None]:
    """Keep this process's handler of SIGTERM, if it has one: Ray's aborts it 3 s after the signal."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(handler) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def _replaced(module: str, name: str, value: object) -> Iterator[None]:
    """Have Ray use `value` meanwhile in the place of something private; a test fails where there is no such name."""
    place: Any = importlib.import_module(module)
    original = getattr(place, name, None)
    if original is None:
        yield
        return
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, original)


def _log_errors() -> None:
    """Log what Ray has to say of the cluster's troubles, which it would print among this process's output."""
    worker: Any = importlib.import_module("ray._private.worker")

    def log(data: Mapping[str, Any], **_: Any) -> None:
        _log.info("Ray: %s", "\n".join(data["lines"]))

    if hasattr(worker, "print_to_stdstream"):  # private to Ray; a test fails if it disappears
        worker.print_to_stdstream = log


def wait_for_roles(roles: Sequence[str], limit_s: float, still_running: Callable[[], None]) -> None:
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


def wait_for_node(node: NodeInfo, limit_s: float) -> None:
    """Wait until the cluster that this process is attached to lists a node. Raises ClusterError if it never does."""
    deadline_s = time.monotonic() + limit_s
    while not any(each["Alive"] and node.resource in each["Resources"] for each in ray.nodes()):
        if not node.is_running() or time.monotonic() > deadline_s:
            raise ClusterError(
                f"The {node.party}'s node did not join the cluster at {node.address}; check that both machines reach "
                "each other, and start it again."
            )
        time.sleep(0.05)
