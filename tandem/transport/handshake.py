"""How two actors prove to each other that they know the secret of their cluster, before any frame.

Both send a nonce and their name, then a keyed digest over both nonces and both names; what does not fit is refused.
Pure: bytes in, bytes out. Knows nothing of sockets. Secrecy of the frames themselves is TLS's business.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from hashlib import sha256

from tandem.errors import ProtocolError

MAGIC = b"tandem/1"
NONCE_BYTES = 16
MAX_NAME_BYTES = 64


@dataclass(frozen=True, slots=True)
class Greeting:
    """The first frame of either end."""

    name: str  # "side/role"
    nonce: bytes

    def encode(self) -> bytes:
        """Magic, nonce, name."""
        return MAGIC + self.nonce + self.name.encode()

    @classmethod
    def decode(cls, frame: bytes) -> Greeting:
        """ProtocolError where `frame` is no greeting of this version."""
        name = frame[len(MAGIC) + NONCE_BYTES :]
        if not frame.startswith(MAGIC) or not 0 < len(name) <= MAX_NAME_BYTES or not name.isascii():
            raise ProtocolError(
                f"A connection must open with Tandem's greeting {MAGIC.decode()!r}, not {frame[:12]!r}; "
                "check what connects to this port and that both sides run the same version."
            )
        return cls(name.decode(), frame[len(MAGIC) : len(MAGIC) + NONCE_BYTES])


def proof(secret: bytes, own: Greeting, other: Greeting) -> bytes:
    """HMAC-SHA256 over both greetings, own first: the second frame of either end (32 bytes)."""
    return hmac.new(secret, own.encode() + b"\0" + other.encode(), sha256).digest()


def is_proven(secret: bytes, received: bytes, own: Greeting, other: Greeting) -> bool:
    """Whether `received` is the other end's proof."""
    return hmac.compare_digest(received, proof(secret, other, own))
