"""Captures the packets of the link while something runs, and tells the data plane's connections from Ray's own.

Knows tcpdump, ss, the network and a running cluster; what the packets say is read by `tandem_lab.netlab.packets`.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tandem.client.tandem import Tandem
from tandem.topology import PARTIES, Party
from tandem_lab.errors import NetLabError
from tandem_lab.netlab import NetLab, tools
from tandem_lab.netlab.layout import INTERFACE
from tandem_lab.netlab.packets import Flow

_BUFFER_KIB = 16384
_SETTLE_S = 0.2  # what was on the wire is with tcpdump by then
_DROPPED = re.compile(r"^(\d+) packets? dropped by kernel", re.MULTILINE)
_SOCKET = re.compile(r"\[?(?:::ffff:)?([\d.]+)\]?:(\d+)")


@contextlib.contextmanager
def capturing(
    lab: NetLab, path: Path, party: Party = Party.CLOUD, *, packet_bytes: int | None = None
) -> Iterator[None]:
    """Writes every packet of one side's interface into a pcap file. Raises NetLabError, also if one was missed.

    packet_bytes: how much of each is kept; None: all of it.
    """
    # -Z root: else it changes to a user of its own, who may not write here. Each packet is read and written at once,
    # else the last second of them is still in a buffer when it ends.
    options = ["-i", INTERFACE, "-n", "-U", "-Z", "root", "-B", str(_BUFFER_KIB), "--immediate-mode"]
    options += ["-w", str(path)]
    options += [] if packet_bytes is None else ["-s", str(packet_bytes)]
    command = [*lab.enter(party), tools.which("tcpdump"), *options]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        if "listening on" not in (said := process.stderr.readline()):
            said += process.stderr.readline()
        if "listening on" not in said:
            raise NetLabError(
                f"`tcpdump` must capture the packets of {lab.name}, but it said: {' '.join(said.split())}"
            )
        yield
        time.sleep(_SETTLE_S)
    finally:
        process.terminate()
        _, said = process.communicate(timeout=10)
    if (dropped := _DROPPED.search(said)) and int(dropped[1]):
        raise NetLabError(
            f"Every packet must be captured, but {dropped[1]} were missed; let less run beside it."
        )


def data_plane_flows(lab: NetLab, tandem: Tandem) -> list[Flow]:
    """The connections between the two draft queues, from the device's end."""
    actors = {actor["name"]: int(actor["pid"]) for actor in tandem.status()["actors"]}
    device, cloud = (_connections(lab, party, actors[f"{party}/draft_queue"]) for party in PARTIES)
    return [flow for flow in device if flow.back in cloud]


def _connections(lab: NetLab, party: Party, pid: int) -> list[Flow]:
    """The TCP connections of a process that stand, from its end."""
    said = tools.run([*lab.enter(party), "ss", "-Htnp", "state", "established"])
    found = []
    for line in said.splitlines():
        ends = _SOCKET.findall(line)
        if f"pid={pid}," in line and len(ends) == 2:
            (source, source_port), (target, target_port) = ends
            found.append(Flow(source, int(source_port), target, int(target_port)))
    return found
