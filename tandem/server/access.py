"""Who may use the server: requests with its API key, or from this machine where it has none."""

from __future__ import annotations

import hmac
import os
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from tandem.errors import ConfigError
from tandem.server.errors import ApiError
from tandem.system.addresses import is_loopback
from tandem.system.files import read_private

KEY_VARIABLE = "TANDEM_API_KEY"
MIN_KEY_CHARS = 16
GUARDED_PREFIXES = ("/v1/", "/metrics")
"""What needs the key: everything but the page, which holds nothing private, and the health check."""
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def load_key(file: Path | None) -> str:
    """The API key of a file that only this user can read, or of TANDEM_API_KEY; empty if there is none.

    Raises ConfigError.
    """
    if file is not None:
        content = read_private(file)
        if content is None:
            raise ConfigError(
                f"The API key is read from {file}, but there is no such file; write the key to it."
            )
        source, key = str(file), content.decode("utf-8", "replace").strip()
    else:
        source, key = KEY_VARIABLE, os.environ.get(KEY_VARIABLE, "").strip()
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise ConfigError(f"The API key in {source} must be printable ASCII without spaces; make a new one.")
    if (key or file is not None) and len(key) < MIN_KEY_CHARS:
        raise ConfigError(
            f"The API key in {source} has {len(key)} characters, fewer than {MIN_KEY_CHARS}; make one with "
            "`openssl rand -hex 32`."
        )
    return key


def check_listener(host: str, key: str) -> None:
    """Other machines may connect only with a key. Raises ConfigError."""
    if not key and not is_loopback(host):
        raise ConfigError(
            f"Listening on {host}, which other machines can reach, needs an API key; pass --api-key-file FILE or set "
            f"{KEY_VARIABLE}, or listen on 127.0.0.1."
        )


class Guard:
    """Checks the headers of each request."""

    def __init__(self, key: str, host: str) -> None:
        """key: empty where none is needed. host: where the server listens."""
        self._key = key.encode()
        self._names = LOCAL_NAMES | {host}

    def check(self, path: str, headers: Headers) -> None:
        """Raises ApiError: 401 for a wrong key, 403 for a request that a foreign web page has made.

        Where no key is needed, a web page must not reach the server by a name of its own that leads to this machine
        (DNS rebinding), so the name must be a local one.
        """
        host = headers.get("host", "")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            raise ApiError(
                403,
                f"Web pages of {origin:.100} may not use this server; open its own page.",
                code="foreign_origin",
            )
        if not self._key:
            self._check_name(host)
        elif path.startswith(GUARDED_PREFIXES):
            self._check_key(headers.get("authorization", ""))

    def _check_name(self, host: str) -> None:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            name = ""
        if name not in self._names:
            raise ApiError(
                403,
                f"This server is for its own machine, but was asked for as {host!r:.100}; use 127.0.0.1, or start it "
                "with an API key.",
                code="foreign_host",
            )

    def _check_key(self, authorization: str) -> None:
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._key):
            problem = "is wrong" if given else "is missing"
            raise ApiError(
                401,
                f"The API key {problem}; send the server's own as `Authorization: Bearer KEY`.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
