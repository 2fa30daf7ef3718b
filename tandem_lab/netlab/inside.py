"""Runs a command in the device's host of a network that exists only for it, and removes all that either leaves.

The process that calls this stays outside: it outlives whatever happens to the command, and cleans up after it.
Knows processes and networks; nothing of what the command does.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tandem.topology import Party
from tandem_lab.netlab import NetLab, Shape

PATIENCE_S = 180.0
"""How long the command has to write what it saw and to stop its cluster when it is asked to end. A second
interruption ends it at once."""


def inside(lab: NetLab, arguments: Sequence[str], shape: Shape = Shape()) -> int:  # noqa: B008 - it is frozen
    """`python -m tandem ARGUMENTS` in the device's host; returns its exit code. Raises NetLabError."""
    return run_inside(lab, [sys.executable, "-m", "tandem", *arguments], shape)


def run_inside(lab: NetLab, command: Sequence[str], shape: Shape = Shape()) -> int:  # noqa: B008 - it is frozen
    """Any command, with stdout and stderr of this process; ended if this process is interrupted or terminated.

    The network is up meanwhile, and gone afterwards with everything that ran in it; so is the command's folder for
    temporary files. Raises NetLabError.
    """
    with _temporary_folder() as folder, lab.while_up(shape):
        environment = {**os.environ, "TMPDIR": str(folder)}
        # In a session of its own: Ctrl-C comes to us alone, and the command is told once, in a way that Ray leaves.
        process = subprocess.Popen(
            [*lab.enter(Party.DEVICE), *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = process.wait()
        finally:
            _end(process)
        return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    """A new folder, removed however the block ends. Its name is known before it is made, unlike that of a
    `TemporaryDirectory`, so that an interruption in between leaves nothing either.
    """
    # A short name: sockets of Ray lie deep below it, and their paths have at most 107 characters.
    while (folder := Path(tempfile.gettempdir(), f"td-{secrets.token_hex(4)}")).exists():
        pass
    try:
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Asks it to end, and kills it after a while, or at once if this process is interrupted again."""
    try:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.wait()
