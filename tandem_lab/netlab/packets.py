"""What a captured file of packets holds: bytes on the wire by connection or question, streams, Tandem's frames.

Link and TCP/IP headers and acknowledgements count too. Knows Ethernet, IPv4, TCP and Tandem's own framing; captures
nothing. Needs dpkt (the extra `lab`).
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from socket import inet_aton, inet_ntoa
from typing import Any, Literal, NamedTuple

from tandem.errors import install_line
from tandem.messages import LinkFrame, Resync, Verdict, Vote, decode
from tandem.messages.wire import write_varint
from tandem.topology import PARTIES, Party
from tandem.transport.port import MAGIC, FrameSplitter
from tandem_lab.errors import NetLabError

_WRAP = 1 << 32
_FRAMES_OF_A_HANDSHAKE = 2
Port = Literal["data", "ray", "other"]
"""The data plane's connection, every other TCP connection, and what is not TCP."""
HEADER_BYTES = 96
"""Of each packet: Ethernet, IPv4 and TCP with its options."""
_ETHERNET = 14


def check_dpkt() -> None:
    """Raises NetLabError without dpkt: before anything is captured that could not be read then."""
    if find_spec("dpkt") is None:
        raise NetLabError(f"Reading packets needs dpkt, which is not installed; run `{install_line('lab')}`.")


@contextlib.contextmanager
def reading(path: Path) -> Iterator[Iterable[tuple[float, bytes]]]:
    """Time and bytes of each packet. Raises NetLabError without dpkt, or if the file, or a packet that the block looks
    into with dpkt, cannot be read.
    """
    check_dpkt()
    import dpkt  # type: ignore[import-untyped, unused-ignore]

    try:
        with path.open("rb") as file:
            yield dpkt.pcap.Reader(file)
    except (OSError, ValueError, dpkt.Error) as error:
        raise NetLabError(
            f"Captured packets stand in a pcap file, but {path} cannot be read: {error}"
        ) from error


# ---- Bytes by question -------------------------------------------------------------------------------------------


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


# ---- Streams and frames ------------------------------------------------------------------------------------------


class Flow(NamedTuple):
    """One direction of a TCP connection."""

    source: str
    source_port: int
    target: str
    target_port: int

    @property
    def back(self) -> Flow:
        """The other direction."""
        return Flow(self.target, self.target_port, self.source, self.source_port)


@dataclass(slots=True)
class Stream:
    """One direction of one connection, as its packets carried it."""

    flow: Flow
    wire_bytes: int = 0  # headers of link, IP and TCP, acknowledgements and repetitions included
    num_packets: int = 0
    first: int | None = None  # sequence number of the first byte
    segments: list[tuple[int, bytes]] = field(default_factory=list)  # offset from `first`, bytes

    def pieces(self) -> list[bytes]:
        """The bytes that were carried, once each and in order; several pieces where some were not captured."""
        found: list[bytearray] = []
        end = None
        for offset, data in sorted(self.segments, key=lambda segment: segment[0]):
            if end is None or offset > end:
                found.append(bytearray(data))
                end = offset + len(data)
            elif offset + len(data) > end:
                found[-1] += data[end - offset :]
                end = offset + len(data)
        return [bytes(piece) for piece in found]


@dataclass(slots=True)
class Capture:
    """All packets of a file."""

    streams: list[Stream] = field(default_factory=list)
    num_packets: int = 0
    wire_bytes: int = 0  # of every packet, TCP or not

    def bytes_of(self, flows: Iterable[Flow]) -> int:
        """Bytes on the wire of these directions; of all connections with the same ends."""
        wanted = set(flows)
        return sum(stream.wire_bytes for stream in self.streams if stream.flow in wanted)

    def bytes_by_port(self, port: int) -> tuple[int, int]:
        """Bytes on the wire to a TCP port, and from it."""
        to = sum(stream.wire_bytes for stream in self.streams if stream.flow.target_port == port)
        return to, sum(stream.wire_bytes for stream in self.streams if stream.flow.source_port == port)

    def holding(self, needle: bytes) -> list[Flow]:
        """The directions whose stream holds some bytes."""
        return [stream.flow for stream in self.streams if any(needle in piece for piece in stream.pieces())]

    def frames(self, flows: Iterable[Flow]) -> list[LinkFrame]:
        """Tandem's own frames on these connections of the socket data plane, both directions of each.

        Raises NetLabError where a part of them was not captured, or something else was.
        """
        wanted = {direction for flow in flows for direction in (flow, flow.back)}
        return [frame for stream in self.streams if stream.flow in wanted for frame in _frames(stream)]


def read_capture(path: Path) -> Capture:
    """Reads a pcap file of Ethernet packets. Raises NetLabError as `reading` does."""
    capture = Capture()
    open_streams: dict[Flow, Stream] = {}
    with reading(path) as packets:
        import dpkt  # type: ignore[import-untyped, unused-ignore]

        for _, packet in packets:
            capture.num_packets += 1
            capture.wire_bytes += len(packet)
            _add(capture, open_streams, packet, dpkt)
    return capture


def pieces_of(data: bytes, length: int) -> list[bytes]:
    """Every run of `length` bytes; any longer part of `data` holds one of them."""
    return [data[start : start + length] for start in range(max(1, len(data) - length + 1))]


def token_runs(frame: LinkFrame, read_ids: Callable[[bytes], Sequence[int]]) -> Iterator[Sequence[int]]:
    """The token ids that stand in a frame, in the order in which they stand there. read_ids: those of a payload."""
    match frame.body:
        case Vote(tokens=tokens, payloads=payloads):
            yield list(tokens)
            yield from map(read_ids, payloads)
        case Verdict(tokens=tokens):
            yield list(tokens)
            yield from (known.top_ids for known in frame.body.logprobs)
        case Resync(tokens=tokens):
            yield list(tokens)


def as_varints(tokens: Sequence[int]) -> bytes:
    """How token ids stand in a frame where nothing compresses them."""
    out = bytearray()
    for token in tokens:
        write_varint(out, token)
    return bytes(out)


def has_common_run(tokens: Sequence[int], document: Sequence[int], length: int) -> bool:
    """Whether `length` or more consecutive ids of a document stand in `tokens` in a row."""
    runs = {tuple(document[start : start + length]) for start in range(len(document) - length + 1)}
    return any(tuple(tokens[start : start + length]) in runs for start in range(len(tokens) - length + 1))


def _add(capture: Capture, open_streams: dict[Flow, Stream], packet: bytes, dpkt: Any) -> None:
    ip = dpkt.ethernet.Ethernet(packet).data
    if not isinstance(ip, dpkt.ip.IP) or not isinstance(ip.data, dpkt.tcp.TCP):
        return
    tcp = ip.data
    flow = Flow(inet_ntoa(ip.src), tcp.sport, inet_ntoa(ip.dst), tcp.dport)
    stream = open_streams.get(flow)
    is_opening = bool(tcp.flags & dpkt.tcp.TH_SYN)
    if stream is None or (is_opening and stream.first not in (None, (tcp.seq + 1) % _WRAP)):
        stream = open_streams[flow] = Stream(flow)
        capture.streams.append(stream)
    stream.wire_bytes += len(packet)
    stream.num_packets += 1
    if is_opening:
        stream.first = (tcp.seq + 1) % _WRAP
    elif tcp.data:
        stream.first = tcp.seq if stream.first is None else stream.first
        stream.segments.append((_offset(tcp.seq, stream.first), bytes(tcp.data)))


def _offset(sequence: int, first: int) -> int:
    """Of a byte from the first one; below 0 where a packet that was sent earlier came later."""
    offset = (sequence - first) % _WRAP
    return offset if offset < _WRAP // 2 else offset - _WRAP


def _frames(stream: Stream) -> list[LinkFrame]:
    pieces = stream.pieces()
    if not pieces:
        return []
    found = FrameSplitter().feed(pieces[0])
    if len(pieces) != 1 or not found or not found[0].startswith(MAGIC):
        raise NetLabError(
            f"Tandem's frames are read from a connection's first byte on, but of {stream.flow} "
            f"{len(pieces)} parts were captured; capture from before the cluster is started."
        )
    return [decode(frame) for frame in found[_FRAMES_OF_A_HANDSHAKE:]]
