"""Network namespaces that bear a mark: made, found, recognised as Tandem's own, removed with what runs in them.

Knows nothing of links. A namespace without its mark is somebody else's and is never touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from tandem_lab.errors import NetLabError
from tandem_lab.netlab.layout import PREFIX, ROLES, Layout, owner
from tandem_lab.netlab.tools import Runner

PATIENCE_S = 2.0
"""How long a process in a host has to end by itself."""
POLL_S = 0.02

# The mark comes before the name, so that no crash can leave a namespace that has a name and no mark. Without IPv6
# an interface sends nothing by itself; loopback keeps it.
_MAKE = """
ip link set lo alias "$1"
ip link set lo up
ipv6=/proc/sys/net/ipv6/conf/default/disable_ipv6
[ ! -e "$ipv6" ] || echo 1 >"$ipv6"
ip netns attach "$2" $$
"""

Sleep = Callable[[float], None]


def make(layout: Layout, role: str, run: Runner) -> None:
    """A new namespace with its mark, holding a loopback only. Raises NetLabError."""
    name = layout.namespace(role)
    try:
        run(["unshare", "--net", "sh", "-e", "-c", _MAKE, "sh", layout.mark(role), name])
    except NetLabError as error:
        if "not permitted" in str(error):
            raise NetLabError(
                f"Making the network namespace {name} needs the rights CAP_SYS_ADMIN and CAP_NET_ADMIN, but they were "
                "refused; in a container, start it with --privileged."
            ) from error
        raise


def names(run: Runner) -> list[str]:
    """All named network namespaces of this machine, anybody's."""
    return [str(each["name"]) for each in json.loads(run(["ip", "-json", "netns", "list"]) or "[]") if each]


def is_ours(layout: Layout, role: str, run: Runner) -> bool:
    """Whether a namespace that exists is one that Tandem made for this network and role."""
    return mark_of(layout.namespace(role), run) == layout.mark(role)


def mark_of(name: str, run: Runner) -> str:
    """The alias of a namespace's loopback; empty if there is none or no such namespace."""
    try:
        links = json.loads(run(["ip", "-n", name, "-json", "link", "show", "lo"]) or "[]")
    except NetLabError:
        return ""
    return str(links[0].get("ifalias", "")) if links else ""


def marked(run: Runner) -> Iterator[tuple[str, str]]:
    """Network and role of every namespace that Tandem made on this machine."""
    for name in names(run):
        found = owner(mark_of(name, run)) if name.startswith(PREFIX) else None
        if found and Layout(found[0]).namespace(found[1]) == name:
            yield found


def present(layout: Layout, run: Runner) -> list[str]:
    """Roles of this network whose namespaces exist and are Tandem's. Raises NetLabError if one is somebody else's."""
    there = set(names(run))
    roles = [role for role in ROLES if layout.namespace(role) in there]
    for role in roles:
        if not is_ours(layout, role, run):
            raise NetLabError(
                f"Tandem removes only namespaces that it made, but {layout.namespace(role)} does not bear its mark; "
                f"choose another --name, or remove it yourself: ip netns delete {layout.namespace(role)}"
            )
    return roles


def processes(layout: Layout, role: str, run: Runner) -> list[int]:
    """Ids of what runs in a namespace."""
    return [int(word) for word in run(["ip", "netns", "pids", layout.namespace(role)]).split()]


def remove(layout: Layout, role: str, run: Runner, sleep: Sleep) -> int:
    """Removes a namespace of Tandem's and ends what runs in it, as if it were switched off.

    Returns how many processes there were. Raises NetLabError if one cannot be ended, or if it is the caller.
    """
    found = processes(layout, role, run)
    if os.getpid() in found:
        raise NetLabError(
            f"A host cannot remove itself, but this process runs in {layout.namespace(role)}; leave it first."
        )
    _signal(found, signal.SIGKILL if role == "router" else signal.SIGTERM)
    left = _wait_until_empty(layout, role, run, sleep)
    _signal(left, signal.SIGKILL)
    left = left and _wait_until_empty(layout, role, run, sleep)
    if left:
        raise NetLabError(
            f"Everything in {layout.namespace(role)} must end before it is removed, but process {left[0]} does not; "
            "look at what holds it, then try again."
        )
    _wait_until_gone(found, sleep, is_reaping=role == "router")
    run(["ip", "netns", "delete", layout.namespace(role)])
    return len(found)


def _wait_until_empty(layout: Layout, role: str, run: Runner, sleep: Sleep) -> list[int]:
    """What still runs there after some patience; usually nothing."""
    left = processes(layout, role, run)
    for _ in range(round(PATIENCE_S / POLL_S)):
        if not left:
            break
        sleep(POLL_S)
        left = processes(layout, role, run)
    return left


def _wait_until_gone(pids: list[int], sleep: Sleep, *, is_reaping: bool) -> None:
    """A process leaves its namespace before it has quite ended; after this nothing of it is left, its memory included.

    is_reaping: take notice of the end of our own children, as a zombie stays otherwise. Those in the hosts belong
    to whoever started them there and waits for their exit codes.
    """
    for _ in range(round(PATIENCE_S / POLL_S)):
        for pid in pids if is_reaping else ():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if not any(is_running(pid) for pid in pids):
            return
        sleep(POLL_S)


def is_running(pid: int) -> bool:
    """Whether a process is there and more than a zombie."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return after_name.split()[0] != "Z"


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
