"""Planes on short socket paths, and a check that a test leaves nothing behind."""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tandem.transport import sockets
from tandem.transport.port import with_secret
from tandem.transport.sockets import SocketPlane

SECRET = b"the secret of this cluster"


PLANES: list[Any] = []
"""Planes, or actors, of the test that runs: they are closed at its end."""


class Recorder:
    """A plane and what it heard."""

    def __init__(self, name: str, directory: str, **options: Any) -> None:
        self.name = name
        self.frames: list[tuple[str, list[bytes]]] = []
        self.connected: list[str] = []
        self.lost: list[str] = []
        options = {"secret": SECRET, "directory": directory, **options}
        self.plane = SocketPlane(
            self,
            handshake=with_secret(name, options.pop("secret")),
            **options,
        )
        PLANES.append(self.plane)

    def on_frames(self, source: str, frames: list[bytes]) -> None:
        self.frames.append((source, frames))

    def on_connected(self, name: str) -> None:
        self.connected.append(name)

    def on_lost(self, name: str) -> None:
        self.lost.append(name)

    def send(self, to: str, *frames: bytes) -> None:
        """Send frames in one turn."""
        for frame in frames:
            self.plane.send(to, frame)
        self.plane.flush()

    @property
    def received(self) -> list[bytes]:
        """All frames, in order."""
        return [frame for _, frames in self.frames for frame in frames]


async def until(condition: Callable[[], object], limit_s: float = 60.0) -> None:
    """Wait for `condition`; TimeoutError names nothing, the test's line does."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - what is waited for is the state of two planes
            await asyncio.sleep(0.002)


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function; see `run`."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    run(lambda: pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def run(work: Callable[[], Awaitable[None]]) -> None:
    """Run a test and close its planes; afterwards no task and no warning of the event loop may be left."""

    async def guarded() -> None:
        problems: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
        try:
            await work()
        finally:
            await asyncio.sleep(0)  # a task that has not begun cannot be awaited
            while PLANES:
                await PLANES.pop().close()
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left
        assert not problems, problems

    asyncio.run(guarded())


@pytest.fixture
def directory() -> Iterator[str]:
    """A short path: a Unix-domain socket's has at most 107 bytes. No socket file may be left in it."""
    path = tempfile.mkdtemp(prefix="tandem-")
    yield path
    left = os.listdir(path)
    shutil.rmtree(path)
    assert not left


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry and give up sooner than in earnest."""
    monkeypatch.setattr(sockets, "RETRY_S", 0.05)
    monkeypatch.setattr(sockets, "MAX_HANGING_S", 0.15)
    monkeypatch.setattr(sockets, "DIAL_LIMIT_S", 0.5)
