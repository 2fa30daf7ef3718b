"""Which data plane an actor gets: sockets, Ray calls, or, where a site is one process, the link to its peers alone."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass

from tandem.config.schema import Config
from tandem.transport.port import DataPlane, OpenLink, PlaneOwner


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What an actor is created with, besides its party."""

    secret: bytes  # of the cluster's data plane
    directory: str  # for Unix-domain sockets; created if missing
    config: Config
    host: str | None = None  # address on which the draft queue waits for its peer; None: the node's
    open_link: OpenLink | None = None  # of a site that is one process; None: sockets or Ray calls
    role: str = ""  # of one of several decoders, such as "decoder-1"; empty: as its kind is called
    spans_nodes: bool = False  # whether decoders may be on other nodes than the party's other actors


def make_plane(
    owner: PlaneOwner, runtime: Runtime, *, has_peers: bool, host: str | None = None
) -> DataPlane | None:
    """The data plane of one actor; None where all that it talks to shares its process.

    has_peers: whether it talks to other sites. host: address on which it awaits them, or actors of this site on other
    nodes; None if it does not.
    """
    if runtime.open_link is not None:
        return runtime.open_link(owner) if has_peers else None
    os.makedirs(runtime.directory, mode=0o700, exist_ok=True)
    if runtime.config.link.data_plane == "ray":
        from tandem.actors.ray_plane import RayPlane

        return RayPlane(owner.name, runtime.config.cluster.namespace, owner.on_connected, owner.on_lost)
    from tandem.transport.handshake import with_secret
    from tandem.transport.sockets import SocketPlane

    server_tls, client_tls = _cluster_tls()
    return SocketPlane(
        owner.name,
        owner.on_frames,
        handshake=with_secret(owner.name, runtime.secret, spans_nodes=runtime.spans_nodes),
        directory=runtime.directory if has_peers or host is None else None,
        on_connected=owner.on_connected,
        on_lost=owner.on_lost,
        host=host,
        port=runtime.config.link.port if has_peers else 0,
        server_tls=server_tls,
        client_tls=client_tls,
    )


def own_address() -> str:
    """The address of this process's Ray node."""
    from tandem.actors.ray_handles import node_address

    return node_address()


def _cluster_tls() -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """The cluster's certificates, if Ray uses TLS."""
    from tandem.transport.sockets import tls_contexts, uses_tls

    if not uses_tls():
        return None, None
    names = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
    return tls_contexts(*(os.environ[name] for name in names))
