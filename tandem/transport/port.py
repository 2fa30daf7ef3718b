"""The port of the data plane: what an actor needs of whatever delivers its frames, and the handshake of two ends.

Actors are named "party/role"; frames are bytes.

Two actors prove to each other that they know the secret of their cluster. Both send who dials, a nonce and their name,
then a keyed digest over both of these greetings; anything else is refused. A greeting says which end it comes from, so
no proof of a listening actor can convince another one, or itself (a reflection). Bytes in, bytes out; keeping the
frames themselves secret is up to TLS.
"""

from __future__ import annotations

import hmac
import secrets
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from dataclasses import astuple, dataclass
from hashlib import sha256
from operator import add
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
    return LinkCounters(*map(add, astuple(first), astuple(second)))


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


class DataPlane(ABC):
    """Delivers frames, each at most once, in order as long as a connection lasts."""

    def __init__(self, owner: PlaneOwner) -> None:
        self.counters: dict[str, LinkCounters] = defaultdict(LinkCounters)
        self._owner = owner
        self._waiting: dict[str, list[bytes]] = {}  # frames until the next flush

    @abstractmethod
    async def start(self) -> Endpoint:
        """Start listening."""

    @abstractmethod
    async def connect(self, endpoint: Endpoint) -> None:
        """Make an actor known and open a connection to it; ProtocolError if it refuses this one."""

    def send(self, to: str, frame: bytes) -> None:
        """Hand one frame over; it leaves with the next `flush`. Never blocks, never raises."""
        self._waiting.setdefault(to, []).append(frame)

    def flush(self) -> None:
        """Send what was handed over, the frames to one actor together; what cannot be sent is dropped, and the protocol
        resends it. Never blocks, never raises."""
        waiting, self._waiting = self._waiting, {}
        for name, frames in waiting.items():
            counters, data = self.counters[name], join_frames(frames)
            if not self._write(name, data):
                counters.dropped_frames += len(frames)
                continue
            counters.sent_frames += len(frames)
            counters.sent_bytes += len(data)
            counters.writes += 1

    @abstractmethod
    def _write(self, name: str, data: bytes) -> bool:
        """Whether the bytes leave for this actor."""

    @abstractmethod
    def is_connected(self, to: str) -> bool:
        """Whether a frame handed over now has a connection to go out on."""

    def refusal_of(self, to: str) -> str | None:
        """The sentence with which an actor has refused this one since the last connection, if any."""
        return None

    @abstractmethod
    def renew(self, to: str) -> None:
        """Re-dial a silent actor unless a dial is already in progress."""

    @abstractmethod
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

    def feed(self, received: bytes) -> list[bytes]:
        """The frames that `received` completes; ProtocolError where a length exceeds `max_frame_bytes`."""
        self.append(received)
        return self.take()

    def take(self, most: int | None = None) -> list[bytes]:
        """So many whole frames, or all; ProtocolError where a length exceeds `max_frame_bytes`."""
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
        del self._buffer[:end]
        return frames


MAGIC = b"tandem/1"
NONCE_BYTES = 16
MAX_NAME_BYTES = 64
MAX_HANDSHAKE_BYTES = 128
"""Longest frame before the proof; a greeting has at most 89 bytes, a proof 32."""
_END = (b"a", b"d")  # accepts, dials


class Handshake(Protocol):
    """One end of a new connection until it knows the other. Used once."""

    max_frame_bytes: int
    """Longest frame that is accepted before the end of the handshake."""

    def begin(self, certificate: bytes | None) -> list[bytes]:
        """Frames to send first. certificate: the other end's (DER), None without TLS or if it showed none.

        Raises ProtocolError for an end to which nothing may be sent.
        """

    def receive(self, frame: bytes) -> tuple[list[bytes], str | None]:
        """Frames to send in answer, and the other end's name once it is known. Raises ProtocolError."""


class Refusal(ProtocolError):
    """A refusal that the other end receives before the connection is closed."""

    def __init__(self, sentence: str, frame: bytes) -> None:
        """frame: what it receives."""
        super().__init__(sentence)
        self.frame = frame


class Refused(ProtocolError):
    """The other end did not take this one; `retry_after_s` is set where it may come back."""

    def __init__(self, sentence: str, retry_after_s: float | None = None) -> None:
        super().__init__(sentence, retry_after_s=retry_after_s)


@dataclass(frozen=True, slots=True)
class Greeting:
    """The first frame of either end."""

    name: str  # "party/role"
    nonce: bytes
    dials: bool  # whether this end opened the connection

    def encode(self) -> bytes:
        """Magic, end, nonce, name."""
        return MAGIC + _END[self.dials] + self.nonce + self.name.encode()

    @classmethod
    def decode(cls, frame: bytes) -> Greeting:
        """ProtocolError where `frame` is no greeting of this version."""
        end, name = frame[len(MAGIC) : len(MAGIC) + 1], frame[len(MAGIC) + 1 + NONCE_BYTES :]
        is_name = 0 < len(name) <= MAX_NAME_BYTES and name.isascii() and name.decode().isprintable()
        if not frame.startswith(MAGIC) or end not in _END or not is_name:
            raise ProtocolError(
                f"A connection must open with Tandem's greeting {MAGIC.decode()!r} (got {frame[:12]!r}); "
                "check what connects to this port and that both parties run the same version."
            )
        return cls(name.decode(), frame[len(MAGIC) + 1 : len(MAGIC) + 1 + NONCE_BYTES], end == _END[True])


def proof(secret: bytes, own: Greeting, other: Greeting) -> bytes:
    """HMAC-SHA256 over both greetings, own first: the second frame of either end (32 bytes)."""
    return hmac.new(secret, own.encode() + b"\0" + other.encode(), sha256).digest()


def is_proven(secret: bytes, received: bytes, own: Greeting, other: Greeting) -> bool:
    """Whether `received` is the other end's proof, and it is not this end's own, reflected."""
    return own.dials is not other.dials and hmac.compare_digest(received, proof(secret, other, own))


class SecretHandshake:
    """Greeting and proof between two actors of one cluster."""

    max_frame_bytes = MAX_HANDSHAKE_BYTES

    def __init__(self, name: str, secret: bytes, *, dials: bool, crosses_sites: bool) -> None:
        """name: of this actor; crosses_sites: the other end must be an actor of another party."""
        self._secret = secret
        self._crosses_sites = crosses_sites
        self._greeting = Greeting(name, secrets.token_bytes(NONCE_BYTES), dials)
        self._other: Greeting | None = None

    def begin(self, certificate: bytes | None) -> list[bytes]:
        """The greeting; certificates are up to TLS."""
        return [self._greeting.encode()]

    def receive(self, frame: bytes) -> tuple[list[bytes], str | None]:
        """The proof in answer to a greeting, and the other's name in answer to its proof. Raises ProtocolError."""
        if self._other is None:
            self._other = Greeting.decode(frame)
            return [proof(self._secret, self._greeting, self._other)], None
        if not is_proven(self._secret, frame, self._greeting, self._other):
            raise ProtocolError(
                f"{self._other.name!r} does not know this cluster's secret; connect only actors of one cluster, "
                "and restart a site that was started with an old secret."
            )
        if self._crosses_sites and _party(self._other.name) == _party(self._greeting.name):
            raise ProtocolError(
                f"{self._other.name!r} is an actor of this site but connects from outside; use its local socket."
            )
        return [], self._other.name


def _party(name: str) -> str:
    return name.partition("/")[0]


NewHandshake = Callable[[bool, bool], Handshake]
"""Makes the handshake of one connection: whether this end dials, whether the other one is at another site."""


def with_secret(name: str, secret: bytes) -> NewHandshake:
    """Handshakes of an actor with others that know the same secret."""
    return lambda dials, crosses: SecretHandshake(name, secret, dials=dials, crosses_sites=crosses)
