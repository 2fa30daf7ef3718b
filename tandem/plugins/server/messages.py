"""Anthropic's /v1/messages: its request is read as that of a chat completion, which is written as a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from tandem.client.answers import count_usage
from tandem.plugins.server.http import ApiError, read_object
from tandem.plugins.server.openai import CHAT, complete
from tandem.plugins.server.queries import service_of
from tandem.plugins.server.typed_events import TypedEvent, TypedForm, read_single

router = APIRouter(prefix="/v1")
ERROR_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
"""Anthropic's type of an error, by its status."""


@router.post("/messages")
async def write_message(request: Request) -> Response:
    """Answer in the form of Anthropic's Messages."""
    service = service_of(request)
    try:
        body = await read_object(request, service.limits.max_body_bytes)
        return await complete(request, service, CHAT, read_single(body, service.system_prompt), MessageForm())
    except ApiError as error:
        return JSONResponse(as_anthropic(error.as_dict(), error.status), error.status, error.headers)


class MessageForm(TypedForm):
    """One message of /v1/messages, with one block."""

    def begin(self, facts: Mapping[str, Any]) -> list[TypedEvent]:
        """Message and block begin; how many tokens there are is known at the end."""
        message = self.response(facts, "") | {"content": [], "stop_reason": None}
        return [
            ("message_start", {"message": message}),
            ("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}),
        ]

    def grow(self, piece: str) -> list[TypedEvent]:
        """The block grows."""
        return [("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": piece}})]

    def end(self, facts: Mapping[str, Any], text: str) -> list[TypedEvent]:
        """Block and message end."""
        message = self.response(facts, text)
        delta = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
        return [
            ("content_block_stop", {"index": 0}),
            ("message_delta", {"delta": delta, "usage": message["usage"], "tandem": message["tandem"]}),
            ("message_stop", {}),
        ]

    def fail(self, error: Mapping[str, Any]) -> list[TypedEvent]:
        """Anthropic's error as an event."""
        return [("error", as_anthropic(error, 500))]

    def response(self, facts: Mapping[str, Any], text: str) -> dict[str, Any]:
        """The message."""
        usage = facts.get("usage") or count_usage(0, 0)
        return {
            "id": facts["id"].replace("chatcmpl-", "msg_"),
            "type": "message",
            "role": "assistant",
            "model": facts["model"],
            "content": [{"type": "text", "text": text}],
            "stop_reason": "max_tokens" if facts.get("finish_reason") == "length" else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]},
            "tandem": facts.get("tandem"),
        }


def as_anthropic(error: Mapping[str, Any], status: int) -> dict[str, Any]:
    """An error, of `ApiError.as_dict`, as Anthropic writes it."""
    kind = ERROR_TYPES.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": error["error"]["message"]}}
