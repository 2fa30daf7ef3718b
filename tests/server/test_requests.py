"""What comes over the wire: bodies, keys, names, limits, typed events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tandem import Tandem
from tandem.errors import Code, QueryError
from tandem.events import TokenEvent
from tandem.plugins.server.http import SIGN, ServerLimits
from tests.server.running import KEY, LONG, LONG_SEEDS, QUESTION, read_events, serving, wait_until
from tests.token_events import committed

CHAT = "/v1/chat/completions"


def chat(**options: Any) -> dict[str, Any]:
    return {"model": "tandem", "messages": [{"role": "user", "content": QUESTION}], **options}


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"", 400, "invalid_json"),
        (b'{"model": ', 400, "invalid_json"),
        (b"\xff\xfe", 400, "invalid_json"),
        (b"[1]", 400, "invalid_json"),
        (b'{"temperature": NaN}', 400, "invalid_json"),
        (b'{"a": ' * 700_000, 413, "request_too_large"),
        (b'{"a": ' * 16_000, 400, "invalid_json"),
        (b'{"n": 1' + b"0" * 5000 + b"}", 400, "invalid_json"),
        (b'{"temperature": 1e400}', 400, "invalid_json"),
        (b'{"a": ' * 100 + b"1" + b"}" * 100, 400, "invalid_json"),
        (b'{"messages": ' + b"[" * 900 + b"]" * 900 + b"}", 400, "invalid_json"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/embeddings", "/v1/tandem/events"])
def test_a_bad_body_is_an_error_and_the_server_goes_on(
    http: httpx.Client, path: str, content: bytes, status: int, code: str
) -> None:
    response = http.post(path, content=content)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert http.get("/health").json() == {"status": "ok"}
    assert http.head("/health").status_code == 200


def test_unknown_paths_and_methods_are_errors_in_the_same_form(http: httpx.Client) -> None:
    for response, status in (
        (http.get("/v1/nothing"), 404),
        (http.post("/v1/nothing", json={}), 404),
        (http.get("/nothing"), 404),
        (http.post("/v1/fim/completions", json={}), 404),  # asked for by Continue
        (http.get(CHAT), 404),
        (http.delete("/health"), 405),
    ):
        assert response.status_code == status
        assert response.json()["error"]["type"] == "invalid_request_error"


def test_typed_events(http: httpx.Client, tandem: Tandem) -> None:
    answer = tandem.query(QUESTION, seed=4, show_drafts=True)
    response = http.post("/v1/tandem/events", json={"question": QUESTION, "seed": 4, "show_drafts": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    events = read_events(response.text)
    assert events[0] == ("query", {"seed": 4})
    names = [name for name, _ in events]
    assert {"sources", "token", "provisional", "estimate"} <= set(names)
    assert names[-1] == "done"
    tokens = [value["token"] for name, value in events if name == "token"]
    assert tuple(tokens) == answer.token_ids
    sources = {value["party"]: value["sources"] for name, value in events if name == "sources"}
    assert sources["device"][0]["title"]
    assert all(source["title"] is None and source["text"] is None for source in sources["cloud"])
    assert events[-1][1]["reason"] == "eos"


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (CHAT, {"messages": [{"role": "user", "content": QUESTION}]}),
        ("/v1/completions", {"prompt": QUESTION}),
        ("/v1/responses", {"input": QUESTION}),
        ("/v1/messages", {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 9}),
    ],
)
def test_a_stream_begins_before_its_answer(
    http: httpx.Client, tandem: Tandem, monkeypatch: pytest.MonkeyPatch, path: str, asked: dict[str, Any]
) -> None:
    """And what goes wrong then is its last event; what goes wrong at once has a status, as ever."""
    is_slow = True

    async def fail(question: str, **_: Any) -> AsyncIterator[TokenEvent]:
        await asyncio.sleep(1.0 if is_slow else 0.0)
        raise QueryError("The context is too short.", code=Code.TOO_LONG)
        yield

    monkeypatch.setattr(tandem, "astream", fail)
    monkeypatch.setattr("tandem.plugins.server.openai.HEAD_S", 0.05)
    monkeypatch.setattr("tandem.plugins.server.http.SIGN_S", 0.2)
    body = {"model": "tandem", "stream": True, **asked}
    with http.stream("POST", path, json=body) as response:
        text = "".join(response.iter_text())
    assert response.status_code == 200
    begin, signs, end = text.partition(SIGN.decode())
    assert signs
    assert begin.startswith(("data: ", "event: "))
    last = end.strip().split("\n\n")[-1]
    assert "The context is too short." in last
    assert "invalid_request_error" in last or "context_length_exceeded" in last
    is_slow = False
    assert http.post(path, json=body).status_code == 400


def test_numbers_are_read_as_clients_write_them(http: httpx.Client) -> None:
    """JavaScript and YAML write whole ones with a point."""
    numbers = '"max_tokens": 4.0, "seed": 42.0, "top_k": 4e1, "n": 1.0, "temperature": 0.5, "stop": ""'
    body = json.dumps(chat())[:-1] + f", {numbers}}}"
    answered = http.post(CHAT, content=body).json()
    assert (answered["usage"]["completion_tokens"], answered["tandem"]["seed"]) == (4, 42)
    meant = http.post(CHAT, json=chat(max_tokens=4, temperature=0.9, top_p=0, seed=-1)).json()
    likeliest = http.post(CHAT, json=chat(max_tokens=4)).json()
    assert meant["choices"][0]["message"] == likeliest["choices"][0]["message"]


def test_typed_events_end_with_the_error(
    http: httpx.Client, tandem: Tandem, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail_soon(question: str, **_: Any) -> AsyncIterator[TokenEvent]:
        yield committed(0, text="Mira")
        raise QueryError("The peer is lost.")

    monkeypatch.setattr(tandem, "astream", fail_soon)
    events = read_events(http.post("/v1/tandem/events", json={"question": QUESTION}).text)
    assert [name for name, _ in events] == ["query", "token", "error"]
    assert events[-1][1]["error"]["message"] == "The peer is lost."


@pytest.mark.parametrize("party", ["device", "cloud"])
@pytest.mark.parametrize("filter", [{"half \ud800": 1}, {"source": ["a.txt", "half \ud800"]}])
@pytest.mark.parametrize("path", [CHAT, "/v1/tandem/events"])
def test_half_a_character_in_a_filter_is_one_sentence(
    http: httpx.Client, path: str, party: str, filter: dict[str, Any]
) -> None:
    """It came as 500: JSON can say what no text may hold."""
    asked = chat() if path == CHAT else {"question": QUESTION}
    response = http.post(path, content=json.dumps(asked | {f"{party}_filter": filter}))
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, f"{party}_filter", "invalid_value")
    assert error["message"].startswith(f"{party}_filter must be Unicode, ")


def test_one_query_too_many_is_told_when_to_try_again(tandem: Tandem) -> None:
    with (
        serving(tandem, limits=ServerLimits(max_queries=1)) as small,
        httpx.Client(base_url=small.url) as client,
    ):
        with client.stream(
            "POST", CHAT, json=chat(stream=True, seed=LONG_SEEDS[0], **LONG), timeout=180
        ) as open_one:
            lines = open_one.iter_lines()  # held: a generator that is dropped closes its connection
            next(lines)
            refused = client.post(CHAT, json=chat())
            assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limit_error")
            assert int(refused.headers["retry-after"]) >= 1
        wait_until(lambda: small.num_open() == 0)
        assert client.post(CHAT, json=chat(max_tokens=2), timeout=180).status_code == 200


def test_a_key_guards_everything_but_page_and_health(tandem: Tandem) -> None:
    with serving(tandem, key=KEY) as guarded, httpx.Client(base_url=guarded.url) as client:
        for path in ("/v1/models", "/v1/tandem/status", "/metrics"):
            for headers in ({}, {"Authorization": f"Bearer {KEY}x"}, {"Authorization": f"Basic {KEY}"}):
                response = client.get(path, headers=headers)
                assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
                assert response.headers["www-authenticate"] == "Bearer"
            assert client.get(path, headers={"Authorization": f"Bearer {KEY}"}).status_code == 200
        for path in ("/health", "/"):
            assert client.get(path, headers={"Host": "tandem.example"}).status_code == 200


def test_no_token_of_a_prompt_that_is_refused_is_counted(
    http: httpx.Client, tandem: Tandem, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []

    async def count(*texts: str) -> int:
        counted.extend(texts)
        return len(texts)

    monkeypatch.setattr(tandem, "acount_tokens", count)
    long = [{"role": "user", "content": "1234567890" * 130_000}]
    response = http.post(CHAT, json=chat(messages=long))
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert counted == []
    assert http.post(CHAT, json=chat(max_tokens=1)).status_code == 200
    assert len(counted) > 0


def test_what_was_said_before_an_answer_is_told_apart_from_it(http: httpx.Client) -> None:
    pytest.importorskip("llguidance", reason="answers in steps follow grammars (extra [grammar])")
    asked = chat(steps="always", seed=3, max_tokens=8)
    completion = http.post(CHAT, json=asked, timeout=60).raise_for_status().json()
    said = [f"{step['party']}: {step['text']}" for step in completion["tandem"]["steps"]]
    assert [line.split(":")[0] for line in said] == ["device"]
    message = completion["choices"][0]["message"]
    assert message["reasoning_content"].splitlines() == said
    lines = http.post(CHAT, json=asked | {"stream": True}, timeout=60).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas).splitlines() == said
    assert "".join(delta.get("content", "") for delta in deltas) == message["content"]
