"""The link where this machine's kernel has netem: one veth pair between the hosts, shaped at both ends.

Knows two namespaces that exist. NOT used with the router, where netem must not stand on the veth as well.
"""

from __future__ import annotations

from tandem_lab.errors import NetLabError
from tandem_lab.netlab.layout import HOSTS, INTERFACE, Layout, other
from tandem_lab.netlab.shape import Shape
from tandem_lab.netlab.tools import Runner


def is_supported(layout: Layout, run: Runner) -> bool:
    """Whether this kernel has netem: asks for it on the loopback of a namespace of ours, which loads the module."""
    tc = ["tc", "-n", layout.namespace("device"), "qdisc"]
    try:
        run([*tc, "add", "dev", "lo", "root", "netem", "delay", "0us"])
    except NetLabError as error:
        if "kind is unknown" in str(error) or "No such file" in str(error):
            return False
        raise
    run([*tc, "delete", "dev", "lo", "root"])
    return True


def make(layout: Layout, run: Runner) -> None:
    """Joins the two hosts. Raises NetLabError."""
    device, cloud = (layout.namespace(host) for host in HOSTS)
    peer = ["type", "veth", "peer", "name", INTERFACE, "address", layout.mac("cloud"), "netns", cloud]
    run(["ip", "link", "add", INTERFACE, "netns", device, "address", layout.mac("device"), *peer])
    for host in HOSTS:
        ip = ["ip", "-n", layout.namespace(host)]
        # Packets of the size of the wire, so that rate and loss apply to what a real link would carry.
        run([*ip, "link", "set", INTERFACE, "gso_max_segs", "1"])
        run([*ip, "address", "add", f"{layout.address(host)}/{layout.subnet.prefixlen}", "dev", INTERFACE])
        run([*ip, "link", "set", INTERFACE, "up"])
        add_neighbour(layout, host, str(layout.address(other(host))), layout.mac(other(host)), run)


def add_neighbour(layout: Layout, host: str, address: str, mac: str, run: Runner) -> None:
    """Tells a host the hardware address behind an address for good.

    A link that loses everything then stays silent, as a radio link would; asking would fail after 3 s with
    "no route to host", which ends a connection that only had to wait.
    """
    neighbour = ["neighbour", "replace", address, "lladdr", mac, "dev", INTERFACE, "nud", "permanent"]
    run(["ip", "-n", layout.namespace(host), *neighbour])


def shape(layout: Layout, wanted: Shape, run: Runner) -> None:
    """Shapes both ways; what is on the way stays on the way. Raises NetLabError."""
    for host in HOSTS:
        for command in wanted.commands(INTERFACE):
            run(["tc", "-n", layout.namespace(host), *command])
