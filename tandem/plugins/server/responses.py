"""OpenAI's /v1/responses: its request is read as that of a chat completion, which is written as a response."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from tandem.plugins.server.http import read_object
from tandem.plugins.server.openai import CHAT, complete
from tandem.plugins.server.queries import service_of
from tandem.plugins.server.typed_events import TypedEvent, TypedForm, read_single

router = APIRouter(prefix="/v1")


@router.post("/responses")
async def respond(request: Request) -> Response:
    """Answer in the form of OpenAI's Responses."""
    service = service_of(request)
    body = await read_object(request, service.limits.max_body_bytes)
    return await complete(
        request, service, CHAT, read_single(body, service.system_prompt), ResponseForm(body)
    )


class ResponseForm(TypedForm):
    """One response of /v1/responses, with one item that has one part."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        """body: of the request, of which the response repeats the numbers."""
        names = ("max_output_tokens", "temperature", "top_p")
        self._repeated = {name: body.get(name) for name in names}
        self._num_events = 0
        self._item = {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant"}
        self._place = {"output_index": 0, "content_index": 0, "item_id": self._item["id"]}

    def begin(self, facts: Mapping[str, Any]) -> list[TypedEvent]:
        """Response, item and part begin."""
        response = self.response(facts, "") | {"status": "in_progress", "output": []}
        item = self._item | {"status": "in_progress", "content": []}
        return [
            ("response.created", {"response": response}),
            ("response.in_progress", {"response": response}),
            ("response.output_item.added", {"output_index": 0, "item": item}),
            ("response.content_part.added", self._place | {"part": _part("")}),
        ]

    def grow(self, piece: str) -> list[TypedEvent]:
        """The text grows."""
        return [("response.output_text.delta", self._place | {"delta": piece})]

    def end(self, facts: Mapping[str, Any], text: str) -> list[TypedEvent]:
        """Text, part, item and response end."""
        response = self.response(facts, text)
        return [
            ("response.output_text.done", self._place | {"text": text}),
            ("response.content_part.done", self._place | {"part": _part(text)}),
            ("response.output_item.done", {"output_index": 0, "item": response["output"][0]}),
            (f"response.{response['status']}", {"response": response}),
        ]

    def fail(self, error: Mapping[str, Any]) -> list[TypedEvent]:
        """OpenAI's error as an event."""
        return [("error", {name: error["error"][name] for name in ("code", "message", "param")})]

    def response(self, facts: Mapping[str, Any], text: str) -> dict[str, Any]:
        """The response."""
        is_cut = facts.get("finish_reason") == "length"
        status = "incomplete" if is_cut else "completed"
        return {
            "id": facts["id"].replace("chatcmpl-", "resp_"),
            "object": "response",
            "created_at": facts["created"],
            "model": facts["model"],
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": [self._item | {"status": status, "content": [_part(text)]}],
            "error": None,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            **self._repeated,
            "usage": _usage(facts["usage"]) if "usage" in facts else None,
            "tandem": facts.get("tandem"),
        }

    def encode(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        """An event as it is sent, with its number."""
        self._num_events += 1
        return super().encode(kind, {"sequence_number": self._num_events - 1, **fields})


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def _usage(usage: Mapping[str, int]) -> dict[str, Any]:
    """usage: of a chat completion."""
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }
