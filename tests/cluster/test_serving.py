"""The server over a real cluster: a client that leaves ends its query there, and metrics are those of both nodes."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

pytest.importorskip("fastapi", reason="fastapi is not installed (extra [server])")

from prometheus_client.parser import text_string_to_metric_families

from tandem import Tandem
from tests.server import running
from tests.server.running import Served, serving


@pytest.fixture(scope="module")
def served(rag: Tandem) -> Iterator[Served]:
    with serving(rag) as server:
        yield server


def test_a_client_that_leaves_ends_its_query_on_both_nodes(served: Served) -> None:
    body = {"model": "tandem", "messages": [{"role": "user", "content": running.QUESTION}], "stream": True}
    body |= {"seed": running.LONG_SEEDS[0], **running.LONG}
    with httpx.stream("POST", f"{served.url}/v1/chat/completions", json=body, timeout=300) as response:
        lines = response.iter_lines()  # kept, for without it httpx closes the connection
        next(lines)
        assert served.num_open() == 1
    served.wait_until_idle()


def test_metrics_are_those_of_both_nodes(served: Served) -> None:
    served.tandem.query(running.QUESTION, max_new_tokens=2)
    samples = [
        sample
        for family in text_string_to_metric_families(httpx.get(f"{served.url}/metrics", timeout=60).text)
        for sample in family.samples
    ]
    alive = {
        (sample.labels["party"], sample.labels["actor"]): sample.value
        for sample in samples
        if sample.name == "tandem_actor_up"
    }
    assert set(alive.values()) == {1}
    assert len(alive) == 12
    sent = {
        sample.labels["party"]: sample.value
        for sample in samples
        if sample.name == "tandem_link_bytes_total" and sample.labels["direction"] == "sent"
    }
    assert set(sent) == {"device", "cloud"}
    assert min(sent.values()) > 0
