"""The token that a process needs to take part in a cluster, by Ray's own environment variables.

A user's own choice of RAY_AUTH_MODE, RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH always counts, also one made after Ray was
imported. Otherwise a new cluster gets a fresh token, which the registry keeps in a private file; later commands on this
machine find it there. Ray's own file ~/.ray/auth_token comes last.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tandem.config.schema import Config
from tandem.errors import ClusterError
from tandem.plugins.ray import registry
from tandem.system.addresses import is_loopback
from tandem.transport.sockets import uses_tls

MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
TOKEN_BYTES = 32


def create_token() -> str | None:
    """Set up a new cluster's token. Returns None where the user's environment provides it in another way."""
    if _is_configured() or _use_default_file():
        return os.environ.get(TOKEN)
    return _use(secrets.token_hex(TOKEN_BYTES))


def find_token(address: str) -> str | None:
    """Set up the token of the running cluster at `address`, if the environment, the registry or Ray's file has one."""
    if _is_configured():
        return os.environ.get(TOKEN)
    if token := recorded_token(address):
        return _use(token)
    _use_default_file()
    return None


def recorded_token(address: str) -> str | None:
    """The token that `tandem up` recorded on this machine for the cluster at `address`."""
    return next((node.token for node in registry.running_nodes() if node.address == address), None)


def check_token_file() -> None:
    """Ray ends the process if the file that RAY_AUTH_TOKEN_PATH names cannot be read: a ClusterError instead."""
    if os.environ.get(MODE) == "token" and not os.environ.get(TOKEN) and TOKEN_PATH in os.environ:
        _read_token(Path(os.environ[TOKEN_PATH]))


def describe_source() -> str:
    """The source of this process's token, for a sentence; empty if it has none."""
    if os.environ.get(MODE, "token") != "token":
        return f"{MODE}={os.environ[MODE]}"
    if os.environ.get(TOKEN):
        return TOKEN
    return f"{TOKEN_PATH}={os.environ[TOKEN_PATH]}" if os.environ.get(TOKEN_PATH) else ""


@contextmanager
def kept_environment(names: Iterable[str] = (MODE, TOKEN, TOKEN_PATH)) -> Iterator[None]:
    """Put variables back as they were, so that the next cluster's token is looked up again."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def require_token(address: str, file: str | None) -> str | None:
    """Set up the token for joining the cluster at `address`. file: where to read it, None: as `find_token`.

    Returns None where Ray reads the token itself. Raises ClusterError if there is none.
    """
    if file is not None:
        return _use(_read_token(Path(file).expanduser()))
    token = find_token(address)
    if token is None and not describe_source():
        raise ClusterError(
            f"Joining the cluster at {address} requires its token; copy the token file that `tandem up` named on the "
            f"other machine and pass --token-file FILE, or set {TOKEN_PATH}."
        )
    return token


def require_protection(host: str, config: Config) -> None:
    """Nobody on the way may read or change what a node and other machines send. Raises ClusterError.

    host: where the node is reached, or what it joins; empty: Ray's choice, this machine alone.
    """
    lacks = [] if uses_tls() else ["TLS (RAY_USE_TLS=1 and certificates)"]
    lacks += ["a token (RAY_AUTH_MODE=token)"] if os.environ.get(MODE, "token") != "token" else []
    if lacks and host and not is_loopback(host) and not config.link.allow_plain:
        raise ClusterError(
            f"A node that other machines reach ({host}) needs {' and '.join(lacks)}, since questions, answers and "
            "distributions cross the network; set that up on each machine, or within a VPN pass --set "
            "link.allow_plain=true."
        )


def _read_token(path: Path) -> str:
    try:
        token = path.read_text("utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise ClusterError(f"The token file {path} cannot be read ({reason}); check the path.") from None
    if not token:
        raise ClusterError(f"The token file {path} is empty; copy it again from the other machine.")
    return token


def _is_configured() -> bool:
    """Whether the environment already says how to take part; it then also says that there are tokens."""
    if os.environ.get(MODE, "token") != "token":
        return True
    if not os.environ.get(TOKEN) and not os.environ.get(TOKEN_PATH):
        return False
    os.environ[MODE] = "token"
    return True


def _use_default_file() -> bool:
    """Use Ray's own token file, if there is one."""
    default = Path.home() / ".ray" / "auth_token"
    if default.is_file():
        os.environ[MODE], os.environ[TOKEN_PATH] = "token", str(default)
    return default.is_file()


def _use(token: str) -> str:
    os.environ[MODE] = "token"
    os.environ[TOKEN] = token
    return token
