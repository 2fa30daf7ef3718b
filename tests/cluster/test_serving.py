"""The server over a real cluster: its clients get the answers that Python gets, and its metrics are the cluster's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="fastapi is not installed (extra [server])")

from prometheus_client.parser import text_string_to_metric_families

from tandem import Tandem
from tandem.conversation import Message
from tests.server import running
from tests.server.running import Served, serving

QUESTION, FOLLOW_UP = "Which game should Mira try?", "And which film?"
SEED = 7


@pytest.fixture(scope="module")
def served(rag: Tandem) -> Iterator[Served]:
    with serving(rag) as server:
        yield server


def chat(served: Served, *texts: str, **options: Any) -> dict[str, Any]:
    """A completion after turns of user and assistant, in turn."""
    messages = [
        {"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)
    ]
    body = {"model": "tandem", "messages": messages, "seed": SEED, **options}
    response = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=300)
    assert response.status_code == 200, response.text
    return dict(response.json())


def text_of(completion: dict[str, Any]) -> str:
    return str(completion["choices"][0]["message"]["content"])


def test_a_conversation_is_that_of_python(served: Served) -> None:
    first = text_of(chat(served, QUESTION))
    assert first == served.tandem.query(QUESTION, seed=SEED).text
    history = [Message("user", QUESTION), Message("assistant", first)]
    second = served.tandem.query(FOLLOW_UP, seed=SEED, history=history).text
    assert text_of(chat(served, QUESTION, first, FOLLOW_UP)) == second


def test_a_client_that_leaves_ends_its_query_on_both_nodes(served: Served) -> None:
    body = {"model": "tandem", "messages": [{"role": "user", "content": running.QUESTION}], "stream": True}
    body |= {"seed": running.LONG_SEEDS[0], **running.LONG}
    with httpx.stream("POST", f"{served.url}/v1/chat/completions", json=body, timeout=300) as response:
        lines = response.iter_lines()  # kept, for without it httpx closes the connection
        next(lines)
        assert served.num_open() == 1
    served.wait_until_idle()


def test_metrics_are_those_of_both_nodes(served: Served) -> None:
    chat(served, QUESTION, max_tokens=2)
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
