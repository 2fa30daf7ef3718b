"""What nobody foresaw is an error in OpenAI's form, and its message, which may quote anything, stays out of both."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, NoReturn

import httpx
import pytest

from tandem import Config
from tandem.errors import Code, Fault, QueryError
from tandem.events import DoneEvent, SessionStatistics, collect
from tandem.plugins.server.app import create_app
from tandem.plugins.server.http import failure

SECRET = "a line of a private note"


def fail() -> NoReturn:
    raise KeyError(SECRET)


@pytest.mark.asyncio
async def test_an_unforeseen_error(caplog: pytest.LogCaptureFixture) -> None:
    broken: Any = SimpleNamespace(config=Config(), actors={}, described={}, status=fail)
    transport = httpx.ASGITransport(app=create_app(broken))
    with caplog.at_level(logging.INFO, "tandem.plugins.server"):
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            response = await client.get("/v1/tandem/status")
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
    assert response.json()["error"]["type"] == "server_error"
    assert SECRET not in response.text
    failure, request = (record.fields for record in caplog.records if record.name == "tandem.plugins.server")
    assert failure["error"] == "KeyError"
    assert any("test_failures.py" in place for place in failure["where"])
    assert request["status"] == 500
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("fault", "status", "code", "param", "retry_after"),
    [
        (Fault(code=Code.INVALID, party="cloud", option="cloud_filter"), 400, "invalid_value", "cloud_filter", None),
        (Fault(code=Code.TOO_LONG, option="question"), 400, "context_length_exceeded", "messages", None),
        (Fault(code=Code.OVER_LIMIT, option="max_new_tokens"), 400, "invalid_value", "max_tokens", None),
        (Fault(code=Code.BUSY), 429, "rate_limit_exceeded", None, "1"),
        (Fault(code=Code.BUSY, retry_after_s=29.1), 429, "rate_limit_exceeded", None, "30"),
        (Fault(code=Code.TIMEOUT), 504, "timeout", None, None),
        (Fault(code=Code.LOST, party="cloud"), 500, "query_failed", None, None),
        (None, 500, "query_failed", None, None),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "sentence",
    [
        "It failed.",
        "A filter must name metadata, but ' is busy: x; retry after 9 s' travels as at most 3 bytes.",
    ],
)
def test_codes_decide_and_no_word_of_the_sentence(
    fault: Fault | None, status: int, code: str, param: str | None, retry_after: str | None, sentence: str
) -> None:
    done = DoneEvent(reason="failed", statistics=SessionStatistics(), error=sentence, fault=fault)
    with pytest.raises(QueryError) as failed:
        collect([done], 0)
    response = failure(failed.value, {"question": "messages", "max_new_tokens": "max_tokens"})
    assert (response.status, response.code, response.param) == (status, code, param)
    assert response.headers.get("Retry-After") == retry_after
    assert response.message == sentence
