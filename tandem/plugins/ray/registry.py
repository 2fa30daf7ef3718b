"""The nodes that `tandem up` started on this machine, a small private file per party, and which cluster is meant.

A file holds the node, its cluster's token and the start time of its process, so that `tandem down` never stops another
process that was given the same id.

The token that a process needs to take part in a cluster goes by Ray's own environment variables. A user's own choice of
RAY_AUTH_MODE, RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH always counts, also one made after Ray was imported. Otherwise a
new cluster gets a fresh token, which is kept in a private file; later commands on this machine find it there. Ray's own
file ~/.ray/auth_token comes last.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import psutil

from tandem.config.schema import Config, explain_ignored
from tandem.errors import ClusterError
from tandem.plugins.ray.nodes import NodeInfo, is_listening
from tandem.system.addresses import is_loopback
from tandem.system.paths import state_folder, write_private
from tandem.topology import PARTIES
from tandem.transport.sockets import uses_tls

_SUFFIX = ".json"
"""After the name of the party, in the name of its file."""


def token_file(party: str) -> Path:
    """The file that holds the token of the cluster whose head is this machine's node of `party`."""
    return state_folder() / f"{party}.token"


def running_nodes() -> list[NodeInfo]:
    """The nodes started here that still run, device first."""
    return [node for node, is_running in recorded_nodes() if is_running]


def recorded_nodes() -> list[tuple[NodeInfo, bool]]:
    """The nodes started here and not stopped by `tandem down`, device first, each with whether it still runs."""
    others = sorted({path.stem for path in state_folder().glob(f"*{_SUFFIX}")} - set(PARTIES))
    return [recorded for party in (*PARTIES, *others) if (recorded := _read(party)) is not None]


def running_node(party: str) -> NodeInfo | None:
    """The node of `party` that was started here, if it still runs."""
    return next((node for node in running_nodes() if node.party == party), None)


def register(node: NodeInfo) -> None:
    """Record a node for this user alone, and a head's token in a file to be copied. Raises ConfigError if it cannot."""
    fields = asdict(node)
    about = {name: fields.pop(name) for name in ("token", "settings")}
    content = {"node": fields, **about, "started_s": _seconds_after_boot(node.pid)}
    write_private(_entry_file(node.party), json.dumps(content, indent=2).encode() + b"\n")
    if node.is_head and node.token:
        write_private(token_file(node.party), node.token.encode() + b"\n")


def unregister(party: str) -> None:
    """Forget the node of a party and its token file, if there are any."""
    _entry_file(party).unlink(missing_ok=True)
    token_file(party).unlink(missing_ok=True)


def find_address(address: str | None, config: Config, progress: Callable[[str], None]) -> str:
    """The address of the cluster to use, by default that of the registry. Raises ClusterError if there is none."""
    address = address or find_local(config, progress)
    if not address:
        raise ClusterError(
            "No address of a cluster was given, and none that `tandem up` started runs on this machine; start one with "
            "`tandem up`, or name one as HOST:PORT."
        )
    return address


def find_local(config: Config, progress: Callable[[str], None]) -> str | None:
    """The address of the running cluster whose node `tandem up` started here for one of the settings' parties.

    Says so, and which settings count for nothing there; None if there is none.
    """
    gone: set[str] = set()
    recorded = [each for each in recorded_nodes() if each[0].party in config.parties]
    for node, is_running in recorded:
        if is_running and node.address not in gone and is_listening(node.address):
            progress(f"cluster: {node.address} is running here (tandem up {node.party})")
            beside = [other for other, runs in recorded if runs and other.address == node.address]
            if ignored := explain_ignored(config, [(other.party, other.settings) for other in beside]):
                progress(ignored)
            return node.address
        if node.address not in gone:
            progress(
                f"cluster: {node.address}, which `tandem up {node.party}` started here, no longer answers; "
                "`tandem down` forgets it"
            )
        gone.add(node.address)
    return None


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Keep two commands from starting or stopping nodes at once. Raises ClusterError if the folder is not writable."""
    folder = state_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "lock").open("w")
    except OSError as error:
        raise ClusterError(
            f"The registry of running nodes cannot be kept in {folder} ({error.strerror}); check its permissions or "
            "set XDG_STATE_HOME."
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("tandem: waiting for another `tandem up` or `tandem down`", file=sys.stderr)  # noqa: T201
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read(party: str) -> tuple[NodeInfo, bool] | None:
    """The recorded node of a party, and whether its process still runs; None if there is none or it is damaged."""
    try:
        content = json.loads(_entry_file(party).read_text("utf-8"))
        node = NodeInfo(**content["node"], token=content["token"], settings=dict(content["settings"]))
        started_s = content["started_s"]
        is_running = started_s is not None and _seconds_after_boot(node.pid) == started_s
        return (node, is_running) if node.address else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _entry_file(party: str) -> Path:
    return state_folder() / f"{party}{_SUFFIX}"


def _seconds_after_boot(pid: int) -> float | None:
    """The time when a process started, whatever happens to the clock; None if it does not run."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            return round(float(process.create_time() - psutil.boot_time()), 2)
    return None


# ---- Tokens ------------------------------------------------------------------------------------------------


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
    return next((node.token for node in running_nodes() if node.address == address), None)


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


@contextlib.contextmanager
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
    default = Path.home() / ".ray" / "auth_token"
    if default.is_file():
        os.environ[MODE], os.environ[TOKEN_PATH] = "token", str(default)
    return default.is_file()


def _use(token: str) -> str:
    os.environ[MODE] = "token"
    os.environ[TOKEN] = token
    return token
