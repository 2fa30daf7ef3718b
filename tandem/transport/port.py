"""The port of the data plane: what an actor needs of whatever delivers its frames.

Actors are named "party/role"; frames are bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Protocol

from tandem.errors import ProtocolError
from tandem.messages.wire import MAX_FRAME_BYTES, read_varint, write_varint


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of an actor. Travels on the control plane."""

    name: str  # "party/role"
    unix_path: str | None = None  # within the node
    host: str | None = None  # from another node
    port: int | None = None


@dataclass(slots=True)
class LinkCounters:
    """Traffic of all connections to one actor."""

    sent_frames: int = 0
    sent_bytes: int = 0  # frames and their length prefixes
    received_frames: int = 0
    received_bytes: int = 0
    writes: int = 0
    dropped_frames: int = 0  # the connection was down or its buffer full; the protocol resends
    connections: int = 0
    pauses: int = 0  # of reading, where the other end sent more per second than it may


def add_counters(first: LinkCounters, second: LinkCounters) -> LinkCounters:
    """The traffic of two links together."""
    names = [field.name for field in fields(LinkCounters)]
    return LinkCounters(**{name: getattr(first, name) + getattr(second, name) for name in names})


class PlaneOwner(Protocol):
    """The owner of a data plane: the actor whose frames it carries."""

    @property
    def name(self) -> str:
        """The name as "party/role"."""

    def on_frames(self, source: str, frames: list[bytes]) -> None:
        """Frames of `source` arrived together, in order."""

    def on_connected(self, name: str) -> None:
        """There is a new connection to an actor."""

    def on_lost(self, name: str) -> None:
        """The last connection to an actor broke."""


class DataPlane(Protocol):
    """Delivers frames, each at most once, in order as long as a connection lasts."""

    counters: dict[str, LinkCounters]

    async def start(self) -> Endpoint:
        """Start listening."""

    async def connect(self, endpoint: Endpoint) -> None:
        """Make an actor known and open a connection to it; ProtocolError if it refuses this one."""

    def send(self, to: str, frame: bytes) -> None:
        """Hand one frame over; it leaves with the next `flush`. Never blocks, never raises."""

    def flush(self) -> None:
        """Send what was handed over, the frames to one actor together. Never blocks, never raises."""

    def is_connected(self, to: str) -> bool:
        """Whether a frame handed over now has a connection to go out on."""

    def refusal_of(self, to: str) -> str | None:
        """The sentence with which an actor has refused this one since the last connection, if any."""

    def renew(self, to: str) -> None:
        """Re-dial a silent actor unless a dial is already in progress."""

    async def close(self) -> None:
        """Stop listening and drop all connections."""


NewPlane = Callable[[PlaneOwner], DataPlane]
"""Makes the data plane on which an actor of a site in one process talks to other sites."""


# ---- Frames in a byte stream: each is preceded by its length as a varint -----------------------------------


_LENGTH_BITS = 35
"""Five bytes of a varint: more than any length that is accepted."""


def join_frames(frames: list[bytes]) -> bytes:
    """One write for all `frames`."""
    out = bytearray()
    for frame in frames:
        write_varint(out, len(frame))
        out += frame
    return bytes(out)


class FrameSplitter:
    """Cuts a received byte stream into frames of at most `max_frame_bytes`, which may change on the way."""

    __slots__ = ("_buffer", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()

    @property
    def num_buffered(self) -> int:
        """Bytes that wait for the rest of their frame, or to be taken."""
        return len(self._buffer)

    def append(self, received: bytes) -> None:
        """More bytes of the stream."""
        self._buffer += received

    def take(self) -> bytes | None:
        """The next whole frame; ProtocolError where a length exceeds `max_frame_bytes`."""
        frames, end = self._parse(1)
        del self._buffer[:end]
        return frames[0] if frames else None

    def take_all(self) -> list[bytes]:
        """All whole frames; ProtocolError where a length exceeds `max_frame_bytes`."""
        frames, end = self._parse(None)
        del self._buffer[:end]
        return frames

    def feed(self, received: bytes) -> list[bytes]:
        """The frames that `received` completes; ProtocolError where a length exceeds `max_frame_bytes`."""
        self.append(received)
        return self.take_all()

    def _parse(self, most: int | None) -> tuple[list[bytes], int]:
        frames: list[bytes] = []
        end = 0
        while len(frames) != most and (header := read_varint(self._buffer, end, _LENGTH_BITS)) is not None:
            length, start = header
            if length > self.max_frame_bytes:
                raise ProtocolError(
                    f"A frame of {length} bytes was announced, at most {self.max_frame_bytes} are accepted here; "
                    "check what connects to this port."
                )
            if start + length > len(self._buffer):
                break
            end = start + length
            frames.append(bytes(self._buffer[start:end]))
        return frames, end
