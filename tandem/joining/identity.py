"""The identity of a cloud: a key of its own, and a certificate over it that is renewed while the key stays.

Devices know the key by its fingerprint, the SHA-256 of the public key as X.509 writes it (SubjectPublicKeyInfo), so a
renewed certificate needs no new join links.
"""

from __future__ import annotations

import datetime as dt
import ssl
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tandem.errors import ConfigError, ProtocolError
from tandem.system.files import make_folder, read_private, write_private

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
        or fingerprint_of(certificate) != _fingerprint(key.public_key())
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
        certificate = None if shown is None else x509.load_der_x509_certificate(shown)
        found = None if certificate is None else fingerprint_of(certificate)
    except ValueError:
        certificate = found = None
    if certificate is None or found != fingerprint:
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
    return _fingerprint(certificate.public_key())


def _fingerprint(key: object) -> bytes:
    assert hasattr(key, "public_bytes")
    encoded: bytes = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return sha256(encoded).digest()


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    content = read_private(path)
    if content is None:
        key = ec.generate_private_key(ec.SECP256R1())
        write_private(
            path,
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )
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
    """The certificate says nothing of the machine: only the key counts."""
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
