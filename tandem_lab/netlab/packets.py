"""What a captured file of packets holds: bytes on the wire by connection, the streams put together, Tandem's frames.

Knows Ethernet, IPv4, TCP and Tandem's own framing; knows neither networks nor clusters, and captures nothing. Needs
dpkt (the extra `lab`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from socket import inet_ntoa
from typing import Any, NamedTuple

from tandem.messages import LinkFrame, Resync, Verdict, Vote, decode
from tandem.messages.wire import write_varint
from tandem.transport.handshake import MAGIC
from tandem.transport.port import FrameSplitter
from tandem_lab.errors import NetLabError
from tandem_lab.netlab.pcap import reading

_WRAP = 1 << 32
_FRAMES_OF_A_HANDSHAKE = 2


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
