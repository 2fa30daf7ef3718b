"""Runs the programs that build the network, and says what to install where one is missing.

Knows how to call a program and what Debian calls its package; not what the calls mean.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tandem_lab.errors import NetLabError

Runner: TypeAlias = Callable[[Sequence[str]], str]
"""Runs a command and gives its stdout; raises NetLabError if it fails."""

PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "linux.uml": "user-mode-linux",
    "nft": "nftables",
    "insmod": "kmod",
    "ping": "iputils-ping",
    "ss": "iproute2",
    "taskset": "util-linux",
}
"""Program -> Debian package that brings it."""

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
TIMEOUT_S = 30.0


def run(command: Sequence[str]) -> str:
    """Runs a command to its end. Raises NetLabError with what it said on stderr, or with what to install."""
    require_root()
    program = which(command[0])
    try:
        done = subprocess.run(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NetLabError(
            f"`{' '.join(command)}` should end at once, but did not within {TIMEOUT_S:g} s."
        ) from error
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise NetLabError(f"`{' '.join(command)}` must succeed, but it said: {said}")
    return done.stdout


def which(program: str) -> str:
    """Where a program is. Raises NetLabError with the package to install."""
    found = find(program)
    if found is None:
        package = PACKAGES.get(program, program)
        raise NetLabError(
            f"The test network needs the program `{program}`, but it was not found; "
            f"install it with `apt-get install {package}`."
        )
    return found


def find(program: str) -> str | None:
    """Where a program is, also outside of a plain user's PATH; None if nowhere."""
    return shutil.which(program) or shutil.which(program, path=PATH)


def require() -> None:
    """Raises NetLabError unless this is root and the programs that every network needs are there.

    Whether it needs a router as well shows only in a namespace.
    """
    require_root()
    for program in ("ip", "tc", "unshare"):
        which(program)


def require_root() -> None:
    """Raises NetLabError unless this process is root's."""
    if os.geteuid() != 0:
        raise NetLabError(
            f"Network namespaces and links are made by root alone, but this process belongs to user {os.geteuid()}; "
            "run it with sudo."
        )
