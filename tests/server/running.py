"""A server that runs in a thread of the tests, and what they ask of it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tandem import Tandem
from tandem.plugins.server.app import create_app
from tandem.plugins.server.http import ServerLimits
from tandem.plugins.server.runner import Server, bind

KEY = "a-key-of-the-tests-only"
QUESTION = "Which games does Mira like?"
LONG = {"temperature": 20.0, "max_tokens": 300}
"""With the seeds 0, 1 and 2 an answer of 300 tokens, since at this temperature the end is one token of 1,636."""
LONG_SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Served:
    """A server that runs."""

    url: str
    tandem: Tandem

    def num_sessions(self) -> int:
        """Queries that any actor of any party still holds."""
        return sum(actor["num_sessions"] for actor in self.tandem.status()["actors"])

    def wait_until_idle(self, limit_s: float = 180.0) -> None:
        wait_until(lambda: self.num_sessions() == 0, limit_s)

    def num_open(self) -> int:
        """Queries of HTTP clients."""
        return int(httpx.get(f"{self.url}/v1/tandem/status").json()["queries"]["num_open"])


def wait_until(condition: Callable[[], bool], limit_s: float = 180.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "it took too long"
        time.sleep(0.02)


def read_metrics(text: str) -> dict[str, float]:
    """Each sample of a page of metrics, by its name and labels."""
    return {
        sample.name + json.dumps(sample.labels, sort_keys=True): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def read_events(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Names and values of server-sent events."""
    blocks = [block.split("\n") for block in text.strip().split("\n\n")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]


@contextmanager
def serving(tandem: Tandem, **options: Any) -> Iterator[Served]:
    """A server on a free port. options: of `create_app`."""
    ready = threading.Event()
    limits = options.get("limits", ServerLimits(drain_timeout_s=5.0))
    with closing(bind("127.0.0.1", 0)) as listener:
        server = Server(create_app(tandem, **options), ready.set, limits)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="http", daemon=True)
        port = listener.getsockname()[1]
        thread.start()
        try:
            assert ready.wait(180)
            yield Served(f"http://127.0.0.1:{port}", tandem)
        finally:
            server.should_exit = True
            thread.join(20)
        assert not thread.is_alive()
