"""One server for all modules of this folder: the inline runtime with the bundled models, in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest

from tandem import Config, Tandem
from tandem.limits import HttpConfig

pytest.importorskip("fastapi")

from tandem.server.app import create_app
from tandem.server.runner import Server, bind

KEY = "a-key-of-the-tests-only"
QUESTION = "Which games does Mira like?"


@dataclass(frozen=True)
class Served:
    """A server that runs."""

    url: str
    tandem: Tandem

    def num_sessions(self) -> int:
        """Queries that any actor of any party still holds."""
        return sum(actor["num_sessions"] for actor in self.tandem.status()["actors"])

    def wait_until_idle(self, limit_s: float = 10.0) -> None:
        wait_until(lambda: self.num_sessions() == 0, limit_s)

    def num_open(self) -> int:
        """Queries of HTTP clients."""
        return int(httpx.get(f"{self.url}/v1/tandem/status").json()["queries"]["num_open"])


def wait_until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "it took too long"
        time.sleep(0.02)


@contextmanager
def serving(tandem: Tandem, **options: Any) -> Iterator[Served]:
    """A server on a free port. options: of `create_app`."""
    ready = threading.Event()
    with closing(bind("127.0.0.1", 0)) as listener:
        server = Server(create_app(tandem, **options), HttpConfig(drain_timeout_s=5.0), ready.set)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="http")
        port = listener.getsockname()[1]
        thread.start()
        assert ready.wait(10)
        yield Served(f"http://127.0.0.1:{port}", tandem)
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def tandem() -> Iterator[Tandem]:
    config = replace(Config(), http=HttpConfig(max_body_bytes=100_000))
    with Tandem.launch(config, runtime="inline") as launched:
        yield launched


@pytest.fixture(scope="session")
def served(tandem: Tandem) -> Iterator[Served]:
    """Without a key."""
    with serving(tandem) as running:
        yield running


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=60) as client:
        yield client
