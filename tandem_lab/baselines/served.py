"""A cloud that a device joins by a link, with the laboratory's actors, in a process of its own.

    whoever measures --actor, method, arguments--> the cloud's process
    whoever measures <--result or error----------- the cloud's process

These calls cross a pair of sockets that the two processes share, never the link. The product's cloud has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tandem.actors.draft_queue import HostQueue
from tandem.config.schema import Config
from tandem.errors import ClusterError, TandemError
from tandem.sites.host import Address, ServedCloud, served
from tandem.sites.port import ActorClasses, Host, Progress, ignore
from tandem_lab.baselines.actors import BASELINE_ACTORS, BaselineDraftQueue

DEVICE_NAME = "device"
"""Of the one device in the cloud's list."""
END_LIMIT_S = 30.0
"""How long the process may take to stop its actors."""


class BaselineHostQueue(BaselineDraftQueue, HostQueue):
    """The laboratory's draft queue of a cloud that devices join."""


SERVED_ACTORS: ActorClasses = {**BASELINE_ACTORS, "draft_queue": BaselineHostQueue}
"""For `served(actor_classes=...)`."""


class CloudProcess:
    """The process, and calls of its actors, one at a time."""

    def __init__(self, connection: Connection, limit_s: float) -> None:
        """limit_s: how long a call may take."""
        self._connection, self._limit_s = connection, limit_s
        self._lock = threading.Lock()

    async def acall(self, actor: str, method: str, *arguments: Any) -> Any:
        """Async twin of `call`."""
        return await asyncio.to_thread(self.call, actor, method, *arguments)

    def status(self) -> list[dict[str, Any]]:
        """Every actor, as `tandem status` shows it."""
        reports: list[dict[str, Any]] = self.call("site", "status")
        return reports

    def call(self, actor: str, method: str, *arguments: Any) -> Any:
        """What a method of an actor returns; "site" is the cloud as a whole. Raises the TandemError that it raised."""
        with self._lock:
            self._connection.send((actor, method, arguments))
            return self.receive(self._limit_s)

    def receive(self, limit_s: float, progress: Progress = ignore) -> Any:
        """The next result. Raises the TandemError that came instead, or ClusterError if nothing comes."""
        while True:
            try:
                if not self._connection.poll(limit_s):
                    raise ClusterError(
                        f"The cloud's process did not answer within {limit_s:g} s; see its log."
                    )
                kind, value = self._connection.recv()
            except (EOFError, OSError):
                raise ClusterError("The cloud's process has ended; see its log.") from None
            if kind == "error":
                raise value
            if kind == "result":
                return value
            progress(value)


@contextlib.contextmanager
def cloud_process(
    config: Config, host: Host, port: int, progress: Progress = ignore
) -> Iterator[tuple[CloudProcess, str]]:
    """A process that serves until the block ends, and its join link. Raises TandemError; nothing runs then.

    host: where it runs, and the address at which it listens. port: 0 takes any that is free.
    """
    own, theirs = socket.socketpair()
    with own, theirs:
        command = [*host.prefix, sys.executable, "-m", __name__, str(theirs.fileno())]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        theirs.close()  # else its end would not be noticed
        connection = Connection(own.detach())
        try:
            cloud = CloudProcess(connection, config.cluster.query_timeout_s)
            connection.send((config.resolve(Path.cwd()), host.address or "127.0.0.1", port))
            yield cloud, cloud.receive(config.cluster.start_timeout_s, progress)
        finally:
            connection.close()
            _wait_for_end(process)


def _wait_for_end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_LIMIT_S)
    process.kill()
    process.wait()


# ---- in the cloud's process --------------------------------------------------------------------------------------


def main(descriptor: int) -> None:
    """Serve, and answer calls, until the other end of the connection is closed."""
    connection = Connection(descriptor)
    config, address, port = connection.recv()

    def progress(line: str) -> None:
        connection.send(("progress", line))

    try:
        with (
            tempfile.TemporaryDirectory(prefix="tandem-keys-") as keys,
            served(config, Address(address, port), Path(keys), progress, SERVED_ACTORS) as cloud,
        ):
            connection.send(("result", str(cloud.link_for(DEVICE_NAME))))
            with contextlib.suppress(EOFError, OSError):
                while True:
                    connection.send(_answer(cloud, *connection.recv()))
    except TandemError as error:
        connection.send(("error", error))


def _answer(cloud: ServedCloud, actor: str, method: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
    try:
        if actor == "site":
            return "result", cloud.list_actors()
        return "result", cloud.loop.run(cloud.sites["cloud"].call(actor, method, *arguments))
    except TandemError as error:
        return "error", error


if __name__ == "__main__":
    main(int(sys.argv[1]))
