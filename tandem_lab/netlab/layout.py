"""Names and addresses of one test network. Makes nothing; every other module asks here what a thing is called.

With the User-Mode-Linux router, where each `=` is a bridge in the namespace `router`:

    namespace device                  namespace router                     namespace cloud
    eth0 ------------- to-device = tap-device [UML] tap-cloud = to-cloud ------------- eth0

With the host's own netem the two eth0 are the ends of one veth pair, and there is no router.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from tandem_lab.errors import NetLabError
from tandem_lab.netlab.tools import Runner

HOSTS = ("device", "cloud")
ROLES = (*HOSTS, "router")
PREFIX = "tandem-"
INTERFACE = "eth0"
"""What the interface of a host is called, inside of its namespace."""
CANDIDATES = tuple(IPv4Network(f"198.18.{number}.0/24") for number in range(64))
"""Ranges to choose from: of 198.18.0.0/15, which RFC 2544 sets aside for tests of network equipment."""

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,18}[a-z0-9])?")
_MARK = "tandem-netlab"


@dataclass(frozen=True, slots=True)
class Layout:
    """What everything in one network is called. Raises NetLabError for a bad name or range."""

    name: str
    subnet: IPv4Network = CANDIDATES[0]  # its lower half is the device's, its upper half the cloud's

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise NetLabError(
                f"A test network's name has 1 to 20 small letters, digits and inner hyphens, but it is {self.name!r}; "
                "choose another."
            )
        if self.subnet.prefixlen > 28:
            raise NetLabError(
                f"A test network needs a range of /28 or wider, but it is {self.subnet}; give another."
            )

    def namespace(self, role: str) -> str:
        """The network namespace of `device`, `cloud` or `router`. Raises NetLabError for another word."""
        if role not in ROLES:
            raise NetLabError(
                f"A test network has the hosts device and cloud, but {role!r} was asked for; name one."
            )
        return f"{PREFIX}{self.name}-{role}"

    def mark(self, role: str) -> str:
        """What a namespace of this network bears as the alias of its loopback: the proof that Tandem made it."""
        return f"{_MARK}:{self.name}:{role}"

    def half(self, host: str) -> IPv4Network:
        """A host's half of the range."""
        return list(self.subnet.subnets(prefixlen_diff=1))[HOSTS.index(host)]

    def address(self, host: str) -> IPv4Address:
        """A host's address, the same with either kind of link."""
        return self.half(host)[2]

    def gateway(self, host: str) -> IPv4Address:
        """The router's address on a host's side."""
        return self.half(host)[1]

    def mac(self, host: str) -> str:
        """A host's hardware address: of the locally administered ones, fixed so that nobody has to ask for it."""
        return f"02:54:00:00:00:{1 + HOSTS.index(host):02x}"

    def router_mac(self, host: str) -> str:
        """The router's hardware address on a host's side."""
        return f"02:54:00:00:01:{1 + HOSTS.index(host):02x}"


def other(host: str) -> str:
    """The host at the other end."""
    return HOSTS[1 - HOSTS.index(host)]


def owner(mark: str) -> tuple[str, str] | None:
    """Network and role that a mark names; None if it is no mark."""
    kind, _, rest = mark.partition(":")
    name, _, role = rest.partition(":")
    return (name, role) if kind == _MARK and role in ROLES and _NAME.fullmatch(name) else None


def parse_subnet(text: str) -> IPv4Network:
    """A range such as 10.99.0.0/24, of addresses that are private or set aside for tests. Raises NetLabError."""
    try:
        subnet = IPv4Network(text)
    except ValueError as error:
        raise NetLabError(
            f"An address range is written like 10.99.0.0/24, but it is {text!r}; write it so."
        ) from error
    if not subnet.is_private:
        raise NetLabError(
            f"A test network uses addresses that nobody owns, but {subnet} is public; take one of 10.0.0.0/8."
        )
    return subnet


def choose_subnet(wanted: IPv4Network | None, run: Runner, taken: Iterable[IPv4Network] = ()) -> IPv4Network:
    """The wanted range, or the first free one. taken: those of other test networks.

    Raises NetLabError if the range overlaps one that this machine has an address in or a route to: nothing would
    break, since the hosts cannot reach it, but one address would mean two things.
    """
    used = [*_used(run), *taken]
    candidates = CANDIDATES if wanted is None else (wanted,)
    for subnet in candidates:
        if not any(subnet.overlaps(each) for each in used):
            return subnet
    clash = next(each for each in used if candidates[0].overlaps(each))
    raise NetLabError(
        f"A test network's addresses must be unused, but {candidates[0]} overlaps {clash}, which this machine uses; "
        "give another range with --subnet, such as 172.31.99.0/24."
    )


def _used(run: Runner) -> list[IPv4Network]:
    """What this machine has addresses in or routes to."""
    found = []
    for link in _objects(run(["ip", "-json", "-4", "address", "show"])):
        for each in link.get("addr_info", []):
            found.append(IPv4Network(f"{each['local']}/{each['prefixlen']}", strict=False))
    for route in _objects(run(["ip", "-json", "-4", "route", "show"])):
        if route.get("dst", "default") != "default":
            found.append(IPv4Network(str(route["dst"])))
    return [each for each in found if not each.is_loopback]


def _objects(text: str) -> list[dict[str, Any]]:
    """What `ip -json` printed; it prints nothing, or empty objects, where there is nothing."""
    return [each for each in json.loads(text or "[]") if each]
