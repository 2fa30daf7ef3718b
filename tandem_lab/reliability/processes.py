"""A cloud and a device as processes of their own, which say what they hold, and may be killed at any moment.

    python -m tandem_lab.reliability.processes cloud KEYS PORT SETTING...
    python -m tandem_lab.reliability.processes device LINK FOLDER SETTING...

Both print one line of JSON when they are ready, and one for each line on their standard input.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tandem.client.tandem import Tandem
from tandem.config.schema import Config, DevicesConfig
from tandem.joining.join_link import JoinLink
from tandem.plugins.server.app import create_app
from tandem.plugins.server.client import reserved
from tandem.plugins.server.runner import Server
from tandem.sites.host import Address, served

ROOT = Path(__file__).parents[2]


class Child:
    """A process of this module."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._process = self._start()
        self.hello = self._read()

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        return self._process.pid

    def measure(self) -> dict[str, Any]:
        """What it holds: resident bytes, file descriptors, sessions, connections turned away, malformed frames."""
        assert self._process.stdin is not None
        self._process.stdin.write("measure\n")
        self._process.stdin.flush()
        return self._read()

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self._process.kill()
        self._process.communicate()

    def fix_port(self, port: int) -> None:
        """A cloud that is started again listens at this port."""
        kind, keys, _, *settings = self._arguments
        self._arguments = (kind, keys, str(port), *settings)

    def restart(self) -> None:
        """Another process with the same arguments."""
        self._process = self._start()
        self.hello = self._read()

    def close(self) -> None:
        """Ask it to end, and wait."""
        if self._process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
                self._process.communicate("", timeout=30)
        if self._process.poll() is None:
            self.kill()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", __name__, *self._arguments],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"The process {' '.join(self._arguments)!r:.200} has ended.")
        values: dict[str, Any] = json.loads(line)
        return values


@contextlib.contextmanager
def child(*arguments: str) -> Iterator[Child]:
    """A process that is asked to end at the end."""
    process = Child(*arguments)
    try:
        yield process
    finally:
        process.close()


def cloud_arguments(keys: Path, port: int, settings: Sequence[str] = ()) -> tuple[str, ...]:
    """Of a child that serves the devices of a folder of keys; port 0: any free one, which it says."""
    return ("cloud", str(keys), str(port), *settings)


def device_arguments(
    link: JoinLink, port: int, folder: Path, settings: Sequence[str] = ()
) -> tuple[str, ...]:
    """Of a child that joins through another port than its link says, and is asked through a folder."""
    file = folder / "link"
    folder.mkdir(mode=0o700, exist_ok=True)
    file.touch(mode=0o600)
    file.write_text(str(JoinLink(link.host, port, link.fingerprint, link.secret)))
    return ("device", str(file), str(folder), *settings)


def _measure(actors: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    process, queue = psutil.Process(), next(actor for actor in actors if "draft_queue" in actor["name"])
    return {
        "rss_bytes": process.memory_info().rss,
        "files": process.num_fds(),
        "threads": process.num_threads(),
        "sessions": max(actor["num_sessions"] for actor in actors),
        "tasks": sum(len(actor["tasks"]) for actor in actors),
        "malformed": queue["num_malformed"],
        "turned_away": queue["extra"].get("num_turned_away", 0),
        "foreign": queue["extra"].get("num_foreign", 0),
        "received_frames": {name: link["received_frames"] for name, link in queue["links"].items()},
        "cpu_s": sum(process.cpu_times()[:2]),
    }


def _say(values: Mapping[str, Any]) -> None:
    print(json.dumps(values), flush=True)


def _serve(keys: Path, port: int, config: Config) -> None:
    """Frames are read as fast as they come."""
    DevicesConfig.max_bytes_per_s = 1 << 30
    with served(config, Address("127.0.0.1", port), keys) as cloud:
        known = {device.name for device in cloud.admission.devices.all()}
        _say({"port": cloud.port, "link": "" if "device" in known else str(cloud.link_for("device"))})
        for _ in sys.stdin:
            _say(_measure(cloud.list_actors()))


def _join(link: str, folder: Path, config: Config) -> None:
    with reserved(folder, {}) as listener, Tandem.join(link, config) as device:
        server = Server(create_app(device), lambda: _say({"pid": os.getpid()}))
        serving = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        serving.start()
        for _ in sys.stdin:
            _say(_measure(device.status()["actors"]))
        server.should_exit = True
        serving.join()


def main(arguments: Sequence[str]) -> None:
    """Run one of both until standard input ends."""
    kind, first, second, *settings = arguments
    config = Config.load(None, settings)
    if kind == "cloud":
        _serve(Path(first), int(second), config)
    else:
        _join(first, Path(second), config)


if __name__ == "__main__":
    main(sys.argv[1:])
