"""What nobody foresaw is an error in OpenAI's form, and its message, which may quote anything, stays out of both."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, NoReturn

import httpx
import pytest

from tandem import Config
from tandem.errors import QueryError
from tandem.server.app import create_app
from tandem.server.errors import failure

SECRET = "a line of a private note"


def fail() -> NoReturn:
    raise KeyError(SECRET)


@pytest.mark.asyncio
async def test_an_unforeseen_error(caplog: pytest.LogCaptureFixture) -> None:
    broken: Any = SimpleNamespace(config=Config(), actors={}, described={}, status=fail)
    transport = httpx.ASGITransport(app=create_app(broken))
    with caplog.at_level(logging.INFO, "tandem.server"):
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            response = await client.get("/v1/tandem/status")
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
    assert response.json()["error"]["type"] == "server_error"
    assert SECRET not in response.text
    failure, request = (record.fields for record in caplog.records if record.name == "tandem.server")
    assert failure["error"] == "KeyError"
    assert any("test_failures.py" in place for place in failure["where"])
    assert request["status"] == 500
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("sentence", "status"),
    [
        (
            "The cloud gave the query up: This cloud allows at most 20 for max_new_tokens (got 21); ask for less.",
            400,
        ),
        (
            "The cloud gave the query up: This device has 8 queries open at the cloud, as many as it may; wait for one "
            "to end.",
            429,
        ),
        (
            "The cloud gave the query up: The cloud is busy: 32 queries are open and 256 wait; retry after 30 s, or "
            "ask its owner to raise cluster.max_sessions.",
            429,
        ),
        ("The cloud gave the query up: The cloud's decoder has stopped; start it again.", 500),
    ],
)
def test_what_a_cloud_refuses_is_the_clients_fault_or_a_matter_of_time(sentence: str, status: int) -> None:
    refused = failure(QueryError(sentence))
    assert refused.status == status
    wait_s = "30" if "after 30 s" in sentence else "1"
    assert refused.headers.get("Retry-After") == (wait_s if status == 429 else None)
