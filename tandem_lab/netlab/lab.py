"""A test network as a whole: up, down, its shape, its state.

`up` notes what it is about to make before it makes anything, and removes it if a step fails. Knows the order of the
steps; each step is in a module of its own. Knows nothing of what runs in the hosts.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from tandem_lab.errors import NetLabError
from tandem_lab.netlab import direct, namespaces, router, tools
from tandem_lab.netlab.layout import HOSTS, INTERFACE, Layout, choose_subnet, other
from tandem_lab.netlab.shape import Shape
from tandem_lab.netlab.state import FOLDER, Kind, State, Store
from tandem_lab.netlab.tools import Runner

DEFAULT_NAME = "lab"

# A connection to a port where nobody listens is refused by the other host, so packets go both ways.
_REACH = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), timeout=float(sys.argv[2])).close()
except ConnectionRefusedError:
    pass
"""
_REACH_S = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What a host's interface has carried, link headers included; from the kernel's counters."""

    sent_bytes: int
    received_bytes: int
    sent_packets: int
    received_packets: int

    def since(self, earlier: Counters) -> Counters:
        """What came on top of an earlier reading."""
        return Counters(
            sent_bytes=self.sent_bytes - earlier.sent_bytes,
            received_bytes=self.received_bytes - earlier.received_bytes,
            sent_packets=self.sent_packets - earlier.sent_packets,
            received_packets=self.received_packets - earlier.received_packets,
        )


class NetLab:
    """One test network of this machine, by name. Made by `up`, it outlives the process until `down`.

    A `NetLab` holds nothing open: any process may have one for the same network. Every method raises NetLabError.
    """

    def __init__(
        self,
        name: str = DEFAULT_NAME,
        *,
        subnet: IPv4Network | None = None,  # None: the first free one
        folder: Path = FOLDER,
        run: Runner = tools.run,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        require: Callable[[], None] = tools.require,
        kernel: str = router.KERNEL,
    ) -> None:
        self.name = Layout(name).name
        self._subnet = subnet
        self._store = Store(folder)
        self._run = run
        self._clock = clock
        self._sleep = sleep
        self._require = require
        self._kernel = kernel

    # ---- making and removing ---------------------------------------------------------------------------------

    def up(self, shape: Shape = Shape()) -> State:  # noqa: B008 - it is frozen
        """Builds hosts and link, shaped. What an earlier crash left of it is removed first."""
        self._require()
        with self._store.locked():
            if self.is_up():
                raise NetLabError(
                    f"A test network is built once, but {self.name!r} is up already; change it with "
                    "`tandem lab netlab shape`, or remove it with `tandem lab netlab down`."
                )
            self._remove()
            state = State(name=self.name, subnet=str(self._choose_subnet()))
            self._store.write(state)
            try:
                return self._build(state, shape)
            except BaseException:
                self._remove()
                raise

    def _build(self, state: State, shape: Shape) -> State:
        layout = state.layout
        for host in HOSTS:
            namespaces.make(layout, host, self._run)
        kind: Kind = "host" if direct.is_supported(layout, self._run) else "router"
        pid = None
        if kind == "host":
            direct.make(layout, self._run)
        else:
            netem = router.module()
            namespaces.make(layout, "router", self._run)
            router.make(layout, self._run)
            pid = self._router(layout).boot(netem, self._kernel)
        state = replace(state, kind=kind, router_pid=pid)
        self._check_reach(layout)
        self._apply(state, shape)
        state = replace(state, shape=shape, is_complete=True)
        self._store.write(state)
        return state

    def _choose_subnet(self) -> IPv4Network:
        """A free range; each network has its own, so that an address in a log tells which."""
        others = [self._store.read(name) for name in self._store.names() if name != self.name]
        return choose_subnet(self._subnet, self._run, [IPv4Network(each.subnet) for each in others if each])

    def down(self) -> int:
        """Removes everything and ends what runs in the hosts; returns how many processes that were in the hosts."""
        self._require()
        with self._store.locked():
            if not self.is_known():
                raise NetLabError(
                    f"`tandem lab netlab down` removes what `tandem lab netlab up` built, but there is no test network "
                    f"{self.name!r} here; nothing was removed."
                )
            return self._remove()

    def _remove(self) -> int:
        """All that is there of this network. Raises NetLabError if something in its place is somebody else's."""
        layout = self._layout()
        roles = namespaces.present(layout, self._run)
        ended = {role: namespaces.remove(layout, role, self._run, self._sleep) for role in roles}
        self._store.forget(self.name)
        return sum(ended.values()) - ended.get("router", 0)

    @contextlib.contextmanager
    def while_up(self, shape: Shape = Shape()) -> Iterator[State]:  # noqa: B008 - it is frozen
        """`up`, and `down` however the block ends; a network that `up` refuses to build is not ours to remove."""
        state = self.up(shape)
        try:
            yield state
        finally:
            if self.is_known():
                self.down()

    # ---- while it is there -----------------------------------------------------------------------------------

    def shape(self, shape: Shape) -> None:
        """Changes the link at once; packets that are on the way keep the time that they were given."""
        state = self._state()
        self._apply(state, shape)
        self._store.rewrite(replace(state, shape=shape))

    def _apply(self, state: State, shape: Shape) -> None:
        if state.kind == "host":
            direct.shape(state.layout, shape, self._run)
        elif state.router_pid is not None:
            self._router(state.layout).shape(state.router_pid, shape)

    def current_shape(self) -> Shape:
        """The shape that was asked for last."""
        return self._state().shape

    def enter(self, host: str) -> list[str]:
        """What to put before a command so that it runs in `device` or `cloud`."""
        return [tools.which("ip"), "netns", "exec", self._layout().namespace(host)]

    def address(self, host: str) -> str:
        """A host's IPv4 address."""
        return str(self._state().layout.address(host))

    def counters(self, host: str) -> Counters:
        """What a host has sent and received so far."""
        namespace = self._layout().namespace(host)
        found = json.loads(self._run(["ip", "-n", namespace, "-json", "-stats", "link", "show", INTERFACE]))
        sent, received = found[0]["stats64"]["tx"], found[0]["stats64"]["rx"]
        return Counters(
            sent_bytes=sent["bytes"],
            received_bytes=received["bytes"],
            sent_packets=sent["packets"],
            received_packets=received["packets"],
        )

    # ---- what is there ---------------------------------------------------------------------------------------

    def is_known(self) -> bool:
        """Whether anything of this network is there, whole or not."""
        return self._store.read(self.name) is not None or bool(namespaces.present(self._layout(), self._run))

    def is_up(self) -> bool:
        """Whether it is there as a whole."""
        state = self._store.read(self.name)
        return state is not None and state.is_complete and not self._lacks(state)

    def status(self) -> dict[str, Any]:
        """State for a person or a script: `up`, `broken` (the remains of a crash) or `absent`, and why."""
        state = self._store.read(self.name)
        if state is None:
            is_there = bool(namespaces.present(self._layout(), self._run))
            return {
                "name": self.name,
                "state": "broken" if is_there else "absent",
                "lacks": ["note"] * is_there,
            }
        lacks = self._lacks(state) if state.is_complete else ["completion"]
        layout = state.layout
        hosts = {
            host: {
                "address": str(layout.address(host)),
                "namespace": layout.namespace(host),
                "enter": f"ip netns exec {layout.namespace(host)}",
            }
            for host in HOSTS
        }
        return {
            "name": self.name,
            "state": "broken" if lacks else "up",
            "lacks": lacks,
            "netem": state.kind,
            "router_pid": state.router_pid,
            "shape": {
                "rtt_s": state.shape.rtt_s,
                "jitter_s": state.shape.jitter_s,
                "rate_bits_per_s": state.shape.rate_bits_per_s,
                "loss": state.shape.loss,
            },
            "hosts": hosts,
        }

    def _lacks(self, state: State) -> list[str]:
        """What should be there and is not."""
        roles = HOSTS if state.kind == "host" else (*HOSTS, "router")
        there = namespaces.present(state.layout, self._run)
        gone = [state.layout.namespace(role) for role in roles if role not in there]
        if state.kind == "router" and "router" in there:
            running = namespaces.processes(state.layout, "router", self._run)
            gone += [] if state.router_pid in running else ["router's process"]
        return gone

    def _check_reach(self, layout: Layout) -> None:
        """Packets go both ways before anybody relies on it."""
        for host in HOSTS:
            peer = str(layout.address(other(host)))
            command = [sys.executable, "-I", "-S", "-c", _REACH, peer, str(_REACH_S)]
            try:
                self._run(["ip", "netns", "exec", layout.namespace(host), *command])
            except NetLabError as error:
                raise NetLabError(
                    f"The hosts of {self.name!r} must reach each other, but {host} does not reach {peer}; "
                    "look whether a packet filter of this machine drops bridged packets (`nft list ruleset`)."
                ) from error

    def _state(self) -> State:
        """The note of a network that is up."""
        state = self._store.read(self.name)
        if state is None or not state.is_complete:
            raise NetLabError(
                f"The test network {self.name!r} must be up, but it is not; start it with "
                f"`tandem lab netlab up --name {self.name}`."
            )
        return state

    def _layout(self) -> Layout:
        state = self._store.read(self.name)
        return Layout(self.name) if state is None else state.layout

    def _router(self, layout: Layout) -> router.Router:
        return router.Router(layout, self._store.workplace(self.name), self._clock, self._sleep)


def lab_names(folder: Path = FOLDER, run: Runner = tools.run) -> list[str]:
    """Every test network of this machine that is noted or that bears Tandem's mark."""
    noted = Store(folder).names()
    return sorted({*noted, *(name for name, _ in namespaces.marked(run))})
