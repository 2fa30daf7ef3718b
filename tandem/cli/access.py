"""The token that a process needs to take part in a cluster, by Ray's own environment variables.

A person's own choice of RAY_AUTH_MODE, RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH always counts. Otherwise a new
cluster gets a fresh token, which `tandem up` prints and notes, and later commands on this machine find it there.
Must run before Ray is imported.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from tandem.cli import notes
from tandem.errors import ClusterError

MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
TOKEN_BYTES = 32


def for_new_cluster() -> str | None:
    """Sets up a cluster's token; returns it if it is ours to pass on, None where the person has seen to it."""
    if _is_settled():
        return os.environ.get(TOKEN)
    return _use(secrets.token_hex(TOKEN_BYTES))


def for_cluster(address: str, *, is_needed: bool = False) -> str | None:
    """Finds the token of a running cluster. is_needed: raise ClusterError if there is none to be found."""
    if _is_settled():
        return os.environ.get(TOKEN)
    for note in notes.running():
        if note.address == address and note.token:
            return _use(note.token)
    if is_needed:
        raise ClusterError(
            f"Joining a cluster takes its token, but none was given for {address}; "
            f"set {TOKEN} to what `tandem up` printed on the other machine."
        )
    return None


def _is_settled() -> bool:
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
