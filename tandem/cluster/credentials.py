"""The token that a process needs to take part in a cluster, by Ray's own environment variables.

A user's own choice of RAY_AUTH_MODE, RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH always counts. Otherwise a new cluster gets
a fresh token, which the registry keeps in a private file; later commands on this machine find it there. All of this
must run before Ray is imported.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from tandem.cluster import registry
from tandem.errors import ClusterError

MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
TOKEN_BYTES = 32


def create_token() -> str | None:
    """Set up a new cluster's token. Returns None where the user's environment provides it in another way."""
    if _is_configured():
        return os.environ.get(TOKEN)
    return _use(secrets.token_hex(TOKEN_BYTES))


def find_token(address: str) -> str | None:
    """Set up the token of the running cluster at `address`, if the environment or the registry has one."""
    if _is_configured():
        return os.environ.get(TOKEN)
    for entry in registry.running_nodes():
        if entry.address == address and entry.token:
            return _use(entry.token)
    return None


def require_token(address: str, file: str | None) -> str | None:
    """Set up the token for joining the cluster at `address`. file: where to read it, None: as `find_token`.

    Returns None where Ray reads the token itself. Raises ClusterError if there is none.
    """
    if file is not None:
        return _use(_read_token(Path(file).expanduser()))
    token = find_token(address)
    if token is None and not _is_configured():
        raise ClusterError(
            f"Joining the cluster at {address} requires its token; copy the token file that `tandem up` named on the "
            f"other machine and pass --token-file FILE, or set {TOKEN_PATH}."
        )
    return token


def _read_token(path: Path) -> str:
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise ClusterError(f"The token file {path} cannot be read ({reason}); check the path.") from None
    if not token:
        raise ClusterError(f"The token file {path} is empty; copy it again from the other machine.")
    return token


def _is_configured() -> bool:
    """Whether the environment, or Ray's own token file, already says how to take part."""
    if os.environ.get(MODE, "token") != "token":
        return True
    if TOKEN not in os.environ and TOKEN_PATH not in os.environ:
        default = Path.home() / ".ray" / "auth_token"
        if not default.is_file():
            return False
        os.environ[TOKEN_PATH] = str(default)
    os.environ[MODE] = "token"
    return True


def _use(token: str) -> str:
    os.environ[MODE] = "token"
    os.environ[TOKEN] = token
    return token
