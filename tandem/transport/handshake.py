"""How two actors prove to each other that they know the secret of their cluster, before any frame.

Both send who dials, a nonce and their name, then a keyed digest over both of these greetings; anything else is
refused. A greeting says which end it comes from, so no proof of a listening actor can convince another one, or itself
(a reflection). Bytes in, bytes out; keeping the frames themselves secret is up to TLS.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from hashlib import sha256

from tandem.errors import ProtocolError

MAGIC = b"tandem/1"
NONCE_BYTES = 16
MAX_NAME_BYTES = 64
MAX_HANDSHAKE_BYTES = 128
"""Longest frame before the proof; a greeting has at most 89 bytes, a proof 32."""
_END = (b"a", b"d")  # accepts, dials


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
