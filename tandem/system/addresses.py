"""Addresses: who can reach them, who counts as one client, and how many connections a process may hold."""

from __future__ import annotations

import ipaddress
import resource
import sys
from collections import Counter
from collections.abc import Mapping
from typing import TypeVar


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches that address. host: a name or an address, without a port."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


T = TypeVar("T")

RESERVED_FILES = 384
"""Files that the rest of a process may have open: models, indexes, links to other parties, documents that are read."""


def client_of(address: str) -> str:
    """The client at an IP address: the address itself, of IPv6 its network of 64 bits, all of which one host may use.

    Empty for what is no such address, as at a Unix-domain socket.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))


def find_surplus(waiting: Mapping[T, str]) -> T:
    """Which of these has to go where there are too many: the oldest one of the client that has most of them.

    waiting: the client of each, oldest first. So a crowd of one client pushes out itself, and nobody else.
    """
    crowd = Counter(waiting.values()).most_common(1)[0][0]
    return next(each for each, client in waiting.items() if client == crowd)


def max_connections() -> int:
    """How many connections leave this process enough files to open, by the limit of the system (`ulimit -n`)."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit - min(RESERVED_FILES, limit // 2)
