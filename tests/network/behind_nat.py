"""Three hosts: a device behind a router that masquerades, and a cloud outside. Nobody outside can dial the device."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tandem_lab.netlab import tools

DEVICE, INSIDE, OUTSIDE, CLOUD = "10.77.0.2", "10.77.0.1", "203.0.113.1", "203.0.113.2"
_RULES = """
table ip nat {
    chain postrouting {
        type nat hook postrouting priority srcnat
        oifname "outside" masquerade
    }
}
table ip filter {
    chain forward {
        type filter hook forward priority filter; policy drop
        iifname "inside" accept
        ct state established,related accept
    }
}
"""


def why_not() -> str:
    """Why there can be no such network here; empty if there can."""
    return "" if tools.find("nft") else "no nft: apt-get install nftables"


@dataclass(frozen=True)
class Home:
    """The names of the three hosts' network namespaces."""

    device: str
    router: str
    cloud: str

    def enter(self, host: str) -> list[str]:
        """Begins a command that runs in a host."""
        return ["ip", "netns", "exec", getattr(self, host)]

    def run(
        self, host: str, *command: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """What a command in a host prints."""
        return subprocess.run(
            [*self.enter(host), *command], capture_output=True, text=True, timeout=300, check=False, env=env
        )

    def listening(self, host: str) -> list[str]:
        """Addresses of a host at which somebody listens, TCP and UDP, as "tcp 0.0.0.0:7800"."""
        out = self.run(host, "ss", "--no-header", "--listening", "--numeric", "--tcp", "--udp").stdout
        return sorted(f"{fields[0]} {fields[4]}" for fields in map(str.split, out.splitlines()))

    def set_link(self, *, up: bool) -> None:
        """The wire between router and cloud."""
        tools.run(["ip", "-n", self.router, "link", "set", "outside", "up" if up else "down"])
        if up:
            tools.run(["ip", "-n", self.router, "neighbour", "flush", "all"])


@contextlib.contextmanager
def home_network() -> Iterator[Home]:
    """Up, and removed afterwards. What runs in the hosts must have ended."""
    home = Home(*(f"tandem-nat-{os.getpid()}-{role}" for role in ("device", "router", "cloud")))
    made = []
    try:
        for name in (home.device, home.router, home.cloud):
            tools.run(["ip", "netns", "add", name])
            made.append(name)
            tools.run(["ip", "-n", name, "link", "set", "lo", "up"])
        for end, near, far, address, gateway in (
            (home.device, "net", "inside", DEVICE, INSIDE),
            (home.cloud, "net", "outside", CLOUD, OUTSIDE),
        ):
            wire = f"{near} netns {end} type veth peer name {far} netns {home.router}"
            tools.run(["ip", "link", "add", *wire.split()])
            for name, interface, own in ((end, near, address), (home.router, far, gateway)):
                tools.run(["ip", "-n", name, "address", "add", f"{own}/24", "dev", interface])
                tools.run(["ip", "-n", name, "link", "set", interface, "up"])
        tools.run(["ip", "-n", home.device, "route", "add", "default", "via", INSIDE])
        tools.run(["ip", "netns", "exec", home.router, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1"])
        subprocess.run([*home.enter("router"), "nft", "-f", "-"], input=_RULES, text=True, check=True)
        yield home
    finally:
        for name in made:
            tools.run(["ip", "netns", "delete", name])
