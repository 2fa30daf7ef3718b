"""Bytes on the link while each question was asked: what the device's interface carried, by sender and port.

Only the headers of packets are needed. Link and TCP/IP headers and acknowledgements count too. Knows captured
files and TCP ports; nothing of frames.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import inet_aton
from typing import Literal

from tandem.topology import PARTIES, Party
from tandem_lab.netlab.pcap import reading

Port = Literal["data", "ray", "other"]
"""The data plane's connection, every other TCP connection, and what is not TCP."""
HEADER_BYTES = 96
"""Of each packet: Ethernet, IPv4 and TCP with its options."""
_ETHERNET = 14


@dataclass(frozen=True, slots=True)
class Packet:
    """One packet on the device's interface."""

    at_s: float  # of time.time()
    sender: Party
    port: Port
    num_bytes: int


def read_packets(path: Path, device: str, data_port: int) -> list[Packet]:
    """All IPv4 packets of a pcap file, by time. device: its address. Raises NetLabError as `reading` does."""
    with reading(path) as packets:
        found = list(_packets(packets, inet_aton(device), data_port))
    return sorted(found, key=lambda packet: packet.at_s)


def _packets(reader: Iterable[tuple[float, bytes]], device: bytes, data_port: int) -> Iterator[Packet]:
    for at_s, packet in reader:
        if packet[12:14] != b"\x08\x00":
            continue
        ip = packet[_ETHERNET:]
        sender = Party.DEVICE if ip[12:16] == device else Party.CLOUD
        whole = _ETHERNET + int.from_bytes(ip[2:4], "big")
        yield Packet(float(at_s), sender, _port(ip, data_port), whole)


def _port(ip: bytes, data_port: int) -> Port:
    """Read by hand, as a packet that was cut after its headers is no whole packet to a parser."""
    tcp = ip[4 * (ip[0] & 0x0F) :]
    if ip[9] != 6 or len(tcp) < 4:
        return "other"
    ports = (int.from_bytes(tcp[0:2], "big"), int.from_bytes(tcp[2:4], "big"))
    return "data" if data_port in ports else "ray"


class LinkTraffic:
    """Packets, by time."""

    def __init__(self, seen: Sequence[Packet]) -> None:
        self._seen = seen
        self._times = [packet.at_s for packet in seen]

    def of(self, asked_s: float, done_s: float, settled_s: float) -> dict[str, dict[str, int]]:
        """Bytes by sender and port that one question cost; empty if nothing was captured at all.

        Its last frames come after its answer is done, and until `settled_s` the data plane has nothing else to send.
        Ray has: whoever measures asks the actors for their counters then.
        """
        if not self._seen:
            return {}
        found = {str(party): {"data": 0, "ray": 0, "other": 0} for party in PARTIES}
        for packet in self._seen[bisect_left(self._times, asked_s) : bisect_right(self._times, settled_s)]:
            if packet.port == "data" or packet.at_s <= done_s:
                found[packet.sender][packet.port] += packet.num_bytes
        return found
