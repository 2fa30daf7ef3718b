"""A join link, `tandem://HOST:PORT/#FINGERPRINT.TOKEN`, the cloud's identity in it, and the devices that have one.

Devices know the key by its fingerprint, the SHA-256 of the public key as X.509 writes it (SubjectPublicKeyInfo), so a
renewed certificate needs no new join links.
"""

from __future__ import annotations

import binascii
import contextlib
import datetime as dt
import hmac
import json
import re
import secrets
import ssl
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tandem.errors import ConfigError, ProtocolError, nearest
from tandem.system.paths import locked, make_folder, read_private, write_private

KEY_FILE, CERTIFICATE_FILE = "cloud.key", "cloud.pem"
VALID = dt.timedelta(days=365)
BACKDATED = dt.timedelta(days=1)
"""A new certificate is valid for clocks that are a little behind."""
RENEWED_BEFORE = dt.timedelta(days=30)
"""A certificate is replaced when it has less time left."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A cloud's key and certificate, as files."""

    key_file: Path
    certificate_file: Path
    fingerprint: bytes

    def server_context(self) -> ssl.SSLContext:
        """TLS 1.3 with this certificate; devices show none, their token comes afterwards."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0  # no resumption: every connection shows the certificate
        context.load_cert_chain(self.certificate_file, self.key_file)
        return context


def load_identity(folder: Path, now: dt.datetime | None = None) -> Identity:
    """The identity kept in `folder`; made at first, its certificate renewed before it expires. Raises ConfigError."""
    now = now or dt.datetime.now(dt.UTC)
    make_folder(folder)
    key_file, certificate_file = folder / KEY_FILE, folder / CERTIFICATE_FILE
    key = _load_key(key_file)
    certificate = _load_certificate(certificate_file)
    if (
        certificate is None
        or certificate.public_key() != key.public_key()
        or now + RENEWED_BEFORE > certificate.not_valid_after_utc
        or now < certificate.not_valid_before_utc
    ):
        certificate = _certify(key, now)
        write_private(certificate_file, certificate.public_bytes(serialization.Encoding.PEM))
    return Identity(key_file, certificate_file, fingerprint_of(certificate))


def client_context() -> ssl.SSLContext:
    """TLS 1.3; the certificate is for `check_certificate`, since no authority stands behind it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def check_certificate(
    shown: bytes | None, fingerprint: bytes, address: str, now: dt.datetime | None = None
) -> None:
    """Raises ProtocolError unless what a server showed (DER) is the cloud with this fingerprint, and valid now.

    TLS has made sure that the server holds the key.
    """
    now = now or dt.datetime.now(dt.UTC)
    try:
        certificate = x509.load_der_x509_certificate(shown or b"")
        is_cloud = fingerprint_of(certificate) == fingerprint
    except ValueError:
        is_cloud = False
    if not is_cloud:
        raise ProtocolError(
            f"The server at {address} is not the cloud of this join link: its key has another fingerprint; ask the "
            "cloud's owner for a new link, and do not use this network if the cloud has not changed."
        )
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not first <= now <= last:
        raise ProtocolError(
            f"The certificate of the cloud at {address} is valid from {first:%Y-%m-%d} to {last:%Y-%m-%d}, but this "
            f"machine's clock says {now:%Y-%m-%d %H:%M} UTC; set the clock, or restart the cloud, which renews it."
        )


def fingerprint_of(certificate: x509.Certificate) -> bytes:
    """SHA-256 of the certificate's public key, 32 bytes."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return sha256(certificate.public_key().public_bytes(serialization.Encoding.DER, form)).digest()


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    content = read_private(path)
    if content is None:
        key, form = ec.generate_private_key(ec.SECP256R1()), serialization.PrivateFormat.PKCS8
        write_private(path, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
        return key
    try:
        loaded = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError):
        loaded = None
    if not isinstance(loaded, ec.EllipticCurvePrivateKey):
        raise ConfigError(
            f"{path} holds no key that this cloud has made; restore it, or delete it and give every device a new link."
        )
    return loaded


def _load_certificate(path: Path) -> x509.Certificate | None:
    """None where there is none, or none that can be read: another one is made."""
    content = read_private(path)
    try:
        return None if content is None else x509.load_pem_x509_certificate(content)
    except ValueError:
        return None


def _certify(key: ec.EllipticCurvePrivateKey, now: dt.datetime) -> x509.Certificate:
    """A certificate that says nothing of the machine: only the key counts."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tandem cloud")])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + VALID)
        .sign(key, hashes.SHA256())
    )


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


FILE, LOCK = "devices.json", "devices.lock"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device, as the cloud's file has it. Times are ISO 8601 in UTC, empty if never."""

    name: str
    digest: str  # SHA-256 of its secret, hexadecimal
    added: str
    joined: str = ""  # last
    revoked: str = ""

    @property
    def is_welcome(self) -> bool:
        """Whether its token still opens the cloud."""
        return not self.revoked


class DeviceList:
    """The list in a folder. Every call reads the file, so that a command and a running cloud see the same."""

    def __init__(self, folder: Path) -> None:
        """The folder is made when something is written."""
        self._folder = folder
        self._path = folder / FILE

    def all(self) -> list[Device]:
        """All devices, in the order in which they were added. Raises ConfigError for a damaged file."""
        content = read_private(self._path)
        if content is None:
            return []
        try:
            return [Device(**each) for each in json.loads(content)["devices"]]
        except (ValueError, KeyError, TypeError):
            raise ConfigError(
                f"{self._path} is damaged; restore it, or delete it and give every device a new link."
            ) from None

    def add(self, name: str, now: dt.datetime | None = None) -> bytes:
        """The secret of a new device. Raises ConfigError for a name that is taken or none."""
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"A device's name has up to 32 letters, digits, _ and -, a letter first (got {name!r:.60}); choose "
                "another."
            )
        secret = secrets.token_bytes(SECRET_BYTES)
        with locked(self._folder / LOCK):
            devices = self.all()
            if any(device.name == name and device.is_welcome for device in devices):
                raise ConfigError(
                    f"There is a device {name!r} already; choose another name, or revoke it first with "
                    f"`tandem cloud revoke {name}`."
                )
            kept = [device for device in devices if device.name != name]
            self._write([*kept, Device(name=name, digest=_digest(secret), added=_stamp(now))])
        return secret

    def revoke(self, name: str, now: dt.datetime | None = None) -> Device:
        """The device of that name, which may not join any more. Raises ConfigError if there is none."""
        with locked(self._folder / LOCK):
            devices = {device.name: device for device in self.all()}
            if name not in devices:
                remedy = (
                    f"the nearest is {nearest(name, devices)!r}" if devices else "none has been added yet"
                )
                raise ConfigError(f"This cloud knows no device {name!r:.60}; {remedy}.")
            if devices[name].is_welcome:
                devices[name] = replace(devices[name], revoked=_stamp(now))
            self._write(list(devices.values()))
        return devices[name]

    def recognise(self, secret: bytes) -> Device | None:
        """The device with this secret, also one that was revoked; None for a stranger. Takes the same time for all."""
        digest, recognised = _digest(secret), None
        for device in self.all():
            if hmac.compare_digest(device.digest, digest):
                recognised = device
        return recognised

    def note_joined(self, name: str, now: dt.datetime | None = None) -> None:
        """Record when a device joined."""
        with locked(self._folder / LOCK):
            devices = [
                replace(device, joined=_stamp(now)) if device.name == name else device
                for device in self.all()
            ]
            self._write(devices)

    @property
    def version(self) -> float:
        """Changes whenever the file does."""
        with contextlib.suppress(OSError):
            return self._path.stat().st_mtime_ns
        return 0.0

    def _write(self, devices: list[Device]) -> None:
        text = json.dumps({"devices": [asdict(device) for device in devices]}, indent=1)
        write_private(self._path, text.encode() + b"\n")


def _digest(secret: bytes) -> str:
    return sha256(b"tandem device" + secret).hexdigest()


def _stamp(now: dt.datetime | None) -> str:
    return (now or dt.datetime.now(dt.UTC)).isoformat(timespec="seconds")
