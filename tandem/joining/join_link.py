"""A join link, `tandem://HOST:PORT/#FINGERPRINT.TOKEN`: where a cloud is, how to know it, and who may use it."""

from __future__ import annotations

import binascii
import hmac
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from tandem.errors import ConfigError
from tandem.system.files import read_private

SCHEME = "tandem"
FINGERPRINT_BYTES = 32
SECRET_BYTES = 16
CHECK_BYTES = 2
"""Of the end of a token: they tell a mistyped link from one that was revoked."""
EXAMPLE = "tandem://cloud.example:7800/#FINGERPRINT.TOKEN"
_AROUND = " \t\r\n<>\"'.,\u201c\u201d\u201e\u2018\u2019\u00ab\u00bb\u200b\ufeff"  # put there by mail, chats and editors
MAX_SHOWN = 60
"""Characters of a link's address that a sentence quotes; never its token."""


@dataclass(frozen=True, slots=True)
class JoinLink:
    """The address, key and token by which a device joins a cloud."""

    host: str
    port: int
    fingerprint: bytes  # SHA-256 of the cloud's public key
    secret: bytes = field(repr=False)  # of one device

    def __str__(self) -> str:
        """The link as it is given to its device, with the secret."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        token = self.secret + _check(self.fingerprint, self.secret)
        return f"{SCHEME}://{host}:{self.port}/#{_encode(self.fingerprint)}.{_encode(token)}"

    @property
    def address(self) -> str:
        """The cloud's host:port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> JoinLink:
        """The parts of a link. Raises ConfigError, one sentence that does not quote the token."""
        address, _, secret_part = text.strip(_AROUND).partition("#")
        host, port = _address(address)
        fingerprint_text, dot, token_text = secret_part.partition(".")
        if not dot:
            raise ConfigError(
                f"A join link looks like {EXAMPLE}, but the one for {_shown(address)} has no fingerprint and token; "
                "copy it whole, in quotes."
            )
        fingerprint = _decode(fingerprint_text, FINGERPRINT_BYTES)
        token = _decode(token_text, SECRET_BYTES + CHECK_BYTES)
        if fingerprint is None or token is None:
            which, got = ("fingerprint", fingerprint_text) if fingerprint is None else ("token", token_text)
            raise ConfigError(
                f"The {which} in the join link for {_shown(address)} is damaged ({len(got)} characters); copy the link "
                "again from the cloud."
            )
        secret, check = token[:SECRET_BYTES], token[SECRET_BYTES:]
        if not hmac.compare_digest(check, _check(fingerprint, secret)):
            raise ConfigError(
                f"The join link for {_shown(address)} was mistyped: its last characters do not fit the rest; copy it "
                "again from the cloud."
            )
        return cls(host, port, fingerprint, secret)


def read_link(text: str) -> JoinLink:
    """A link as it is written, or from a file that this user alone may read. Raises ConfigError."""
    if text.strip(_AROUND).startswith(f"{SCHEME}:"):
        return JoinLink.parse(text)
    content = read_private(Path(text).expanduser())
    if content is None:
        raise ConfigError(
            f"A join link looks like {EXAMPLE}, and there is no file {_shown(text)!r} that holds one; copy the link "
            "from the cloud."
        )
    return JoinLink.parse(content.decode("utf-8", "replace"))


def _address(text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")  # as it is looked up
    except ValueError:  # a port that is no number, half an address of IPv6, or no name of a host
        parts, host, port = None, None, None
    plain = parts is not None and parts.path in ("", "/") and not (parts.query or parts.username)
    if parts is None or parts.scheme != SCHEME or not host or not port or not plain or re.search(r"\s", text):
        raise ConfigError(f"A join link looks like {EXAMPLE} (got {_shown(text)!r}); copy it from the cloud.")
    return host, port


def _check(fingerprint: bytes, secret: bytes) -> bytes:
    return sha256(b"tandem join link" + fingerprint + secret).digest()[:CHECK_BYTES]


def _encode(value: bytes) -> str:
    return urlsafe_b64encode(value).rstrip(b"=").decode()


def _decode(text: str, num_bytes: int) -> bytes | None:
    """Exactly `num_bytes`, written in the one way in which they are written."""
    try:
        value = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return None
    return value if len(value) == num_bytes and _encode(value) == text else None


def _shown(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"
