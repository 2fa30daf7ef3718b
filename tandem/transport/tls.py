"""TLS of a Ray cluster whose owner has given it certificates."""

from __future__ import annotations

import os
import ssl


def uses_tls() -> bool:
    """Whether Ray encrypts what crosses between processes (RAY_USE_TLS); then the data plane does, too."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


def tls_contexts(certificate: str, key: str, authority: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """(server, client) contexts for mutual TLS from PEM files; names are not checked, as in Ray's own TLS."""
    contexts = []
    for purpose in (ssl.Purpose.CLIENT_AUTH, ssl.Purpose.SERVER_AUTH):
        context = ssl.create_default_context(purpose, cafile=authority)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(certificate, key)
        contexts.append(context)
    return contexts[0], contexts[1]
