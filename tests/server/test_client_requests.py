"""Requests as clients that are not installed here really send them, recorded from the packages themselves.

Questions and documents are ours; names, order and form of the fields are the clients'. What each of them is told is the
table in docs/how-to/serve.md.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import httpx
import pytest

from tests.server.running import QUESTION

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": QUESTION}
PARTS = {"role": "user", "content": [{"type": "text", "text": QUESTION}]}
TURNS = [USER, {"role": "assistant", "content": "Chess."}, {"role": "user", "content": "Sure?"}]
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"title": "Answer", "type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}
PYDANTIC = {
    "type": "json_schema",
    "json_schema": {"schema": {**SCHEMA, "title": "A"}, "name": "A", "strict": True},
}
ZOD = {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": True, "name": "response"}}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
PENALTIES = {"frequency_penalty": 0.1, "presence_penalty": 0.1}
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


class Sent(NamedTuple):
    """A request of a client, and what becomes of it."""

    client: str
    path: str
    body: dict[str, Any]
    ignored: str = ""  # the header that names what changes nothing
    refused: str = ""  # the field that is at fault
    is_json: bool = False  # the answer follows a schema


SENT = [
    Sent("LiteLLM 1.110", CHAT, {"messages": [SYSTEM, USER]}),
    Sent("LiteLLM 1.110", CHAT, {
        "messages": [SYSTEM, USER],
        **{"temperature": 0.2, "top_p": 0.9, "n": 1, "reasoning_effort": "low", "stream": True},
    }, ignored="reasoning_effort"),
    Sent("LiteLLM 1.110", CHAT, {"messages": [USER], "response_format": PYDANTIC}, is_json=True),
    Sent("LiteLLM 1.110", "/v1/completions", {"prompt": QUESTION}),
    Sent("LiteLLM 1.110", RESPONSES, {"input": QUESTION}),
    Sent("Open WebUI 0.12", CHAT, {
        "messages": [SYSTEM, USER], **USAGE, **PENALTIES, "reasoning_effort": "low",
        **{"temperature": 0.8, "top_p": 0.9, "min_p": 0.0, "max_tokens": 8, "seed": 5},
        **{"stop": ["zzz"], "logit_bias": {"5": -100}},
    }, ignored="reasoning_effort"),
    Sent("Open WebUI 0.12", CHAT, {  # its button "Continue"
        "stream": True, "messages": [USER, {"role": "assistant", "content": "Ch"}],
    }, refused="messages"),
    Sent("Continue 1.37", CHAT, {"messages": [SYSTEM, PARTS], "max_tokens": 8, "temperature": 0.2, **USAGE}),
    Sent("aider 0.86", CHAT, {"messages": [SYSTEM, *TURNS], "stream": True, "temperature": 0}),
    Sent("Vercel AI SDK 6", CHAT, {
        **{"max_tokens": 8, "temperature": 0.2, "top_p": 0.9, "stop": ["x"], "seed": 5},
        **PENALTIES, "messages": [SYSTEM, *TURNS],
    }),
    Sent("Vercel AI SDK 6", CHAT, {"response_format": ZOD, "messages": [USER]}, is_json=True),
    Sent("Vercel AI SDK 6", RESPONSES, {
        "input": [
            SYSTEM,
            {"role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "Chess."}]},
            {"role": "user", "content": [{"type": "input_text", "text": "Sure?"}]},
        ],
        **{"temperature": 0.2, "top_p": 0.9, "max_output_tokens": 8},
    }),
    Sent("Haystack 3.4", CHAT, {
        "stream": False, "messages": [SYSTEM, {**USER, "name": "zomi"}, *TURNS[1:]], "n": 1,
    }, ignored="messages.name"),
    Sent("Haystack 3.4", CHAT, {
        "stream": True, "messages": [USER], "max_completion_tokens": 8, "n": 1, "top_p": 0.9,
    }),
    Sent("anthropic 2.14", MESSAGES, {
        "max_tokens": 8, "messages": [USER], "metadata": {"user_id": "u"},
        **{"stop_sequences": ["x"], "system": "Be brief.", "stream": True},
    }, ignored="metadata"),
]  # fmt: skip


@pytest.mark.parametrize(
    "sent", SENT, ids=[f"{sent.client} {sent.path} {number}" for number, sent in enumerate(SENT)]
)
def test_a_request_of_a_client_is_answered_or_refused_with_the_reason(http: httpx.Client, sent: Sent) -> None:
    response = http.post(sent.path, json={"model": "tandem", **sent.body})
    if sent.refused:
        assert (response.status_code, response.json()["error"]["param"]) == (400, sent.refused)
        return
    assert response.status_code == 200, response.text
    assert response.headers.get("x-tandem-ignored", "") == sent.ignored
    if sent.body.get("stream"):
        assert response.headers["content-type"].startswith("text/event-stream")
        assert '"error"' not in response.text.replace('"error":null', "")
    if sent.is_json:
        content = response.json()["choices"][0]["message"]["content"]
        assert isinstance(json.loads(content)["answer"], int)
