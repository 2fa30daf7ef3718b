"""/v1/responses by the `openai` package, /v1/messages by what the `anthropic` package sends."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tandem import Tandem
from tests.server.running import QUESTION, read_events

openai = pytest.importorskip("openai")

MESSAGES = "/v1/messages"
ASKED = {"model": "tandem", "max_tokens": 64, "messages": [{"role": "user", "content": QUESTION}], "seed": 5}
CALLED = [
    {"role": "user", "content": QUESTION},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "add", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "7"}]},
]


@pytest.fixture(scope="module")
def text(tandem: Tandem) -> str:
    return tandem.query(QUESTION, seed=5).text


def test_a_response_is_the_answer_of_the_python_api(client: Any, tandem: Tandem, text: str) -> None:
    response = client.responses.create(model="tandem", input=QUESTION, store=False, extra_body={"seed": 5})
    assert response.output_text == text
    assert (response.status, response.object, response.incomplete_details) == ("completed", "response", None)
    answer = tandem.query(QUESTION, seed=5)
    assert response.usage.output_tokens == len(answer.tokens)
    assert response.usage.total_tokens == response.usage.input_tokens + len(answer.tokens)
    assert response.tandem["seed"] == 5


def test_events_of_a_response_make_it_up(client: Any, text: str) -> None:
    with client.responses.stream(model="tandem", input=QUESTION, extra_body={"seed": 5}) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == text
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    assert final.usage.output_tokens > 5


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"input": 3}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "reasoning"}, {"type": "function_call_output", "call_id": "a"}]}, "input[1]"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{"}]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input[0].type"),
        ({"instructions": [{"type": "input_image"}]}, "instructions[0].type"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": 3}}, "text.format"),
        ({"model": "gpt-5"}, "model"),
    ],
)
def test_what_a_response_cannot_be_is_named(http: httpx.Client, options: dict[str, Any], param: str) -> None:
    response = http.post("/v1/responses", json={"model": "tandem", "input": QUESTION, **options})
    assert response.status_code == (404 if param == "model" else 400)
    assert response.json()["error"]["param"] == param


def test_a_message_is_the_answer_of_the_python_api(http: httpx.Client, text: str) -> None:
    answered = http.post(MESSAGES, json={**ASKED, "metadata": {"user_id": "u"}, "stop_sequences": ["zzz"]})
    message = answered.json()
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "tandem")
    assert message["content"] == [{"type": "text", "text": text}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    assert message["usage"]["output_tokens"] > 5
    assert message["usage"]["input_tokens"] > 3
    path = f"{MESSAGES}/count_tokens"
    counted, refused = (http.post(path, json={**ASKED, **more}).json() for more in ({}, {"messages": []}))
    assert counted == {"input_tokens": message["usage"]["input_tokens"]}
    assert (refused["type"], refused["error"]["type"]) == ("error", "invalid_request_error")
    assert answered.headers["x-tandem-ignored"] == "metadata"


def test_events_of_a_message_make_it_up(http: httpx.Client, text: str) -> None:
    events = read_events(http.post(MESSAGES, json={**ASKED, "stream": True}).text)
    assert all(name == event["type"] for name, event in events)
    names = [name for name, _ in events]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[2:-3]) == {"content_block_delta"}
    assert "".join(event["delta"]["text"] for _, event in events[2:-3]) == text
    assert events[0][1]["message"]["content"] == []
    assert events[0][1]["message"]["stop_reason"] is None
    assert events[-2][1]["delta"]["stop_reason"] == "end_turn"
    assert events[-2][1]["usage"]["output_tokens"] > 5
    cut = read_events(http.post(MESSAGES, json={**ASKED, "stream": True, "max_tokens": 2}).text)
    assert cut[-2][1]["delta"]["stop_reason"] == "max_tokens"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"model": "claude"}, "There is no model 'claude'; use tandem."),
        ({"messages": []}, "messages must have at least 1 item"),
        ({"system": [{"type": "image"}]}, "system[0].type must be 'text'"),
        ({"tools": [{"name": "add"}]}, "`tandem mcp` offers it to an assistant"),
        ({"messages": CALLED}, "messages[1] must be no call of a tool"),
        ({"messages": CALLED[:1] + CALLED[2:]}, "messages[1] must be no call of a tool"),
        ({"max_tokens": 0}, "max_tokens must be greater than or equal to 1 (got 0)"),
        ({"stop_sequences": [3]}, "stop_sequences must be a valid string"),
        ({"output_config": {"format": 3}}, "output_config.format must be"),
    ],
)
def test_errors_of_messages_have_their_form(
    http: httpx.Client, options: dict[str, Any], sentence: str
) -> None:
    response = http.post(MESSAGES, json={**ASKED, **options})
    status, kind = (404, "not_found_error") if "model" in options else (400, "invalid_request_error")
    assert (response.status_code, response.json()["type"]) == (status, "error")
    assert response.json()["error"]["type"] == kind
    assert sentence in response.json()["error"]["message"]


def test_thoughts_tools_that_are_not_called_and_extra_fields_are_left_out(
    http: httpx.Client, text: str
) -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "Hello."}]},
        {"role": "user", "content": QUESTION},
    ]
    body = {**ASKED, "messages": messages, "tools": [{"name": "add"}], "tool_choice": {"type": "none"}}
    answered = http.post(MESSAGES, json=body)
    assert answered.status_code == 200
    assert answered.headers["x-tandem-ignored"] == "tools, tool_choice"
