"""OpenAI's /v1/responses and Anthropic's /v1/messages: translated into a chat completion, and its parts into theirs."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from tandem.client.answers import count_usage
from tandem.plugins.server.completion_requests import CompletionRequest, read_chat
from tandem.plugins.server.http import ApiError, compact, encode_event, read_object
from tandem.plugins.server.openai import CHAT, Form, complete
from tandem.plugins.server.queries import service_of

router = APIRouter(prefix="/v1")
ERROR_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
"""Anthropic's type of an error, by its status."""
Event = tuple[str, Mapping[str, Any]]
"""Type and fields of an event."""
What = Literal["begin", "grow", "end", "fail"]
"""What happens in a stream."""


@router.post("/responses")
async def respond(request: Request) -> Response:
    """Answer in the form of OpenAI's Responses."""
    service = service_of(request)
    body = await read_object(request, service.limits.max_body_bytes)
    wanted = read_translated(body, service.system_prompt)
    return await complete(request, service, CHAT, wanted, ResponseForm(body))


@router.post("/messages")
async def write_message(request: Request) -> Response:
    """Answer in the form of Anthropic's Messages."""
    service = service_of(request)
    try:
        body = await read_object(request, service.limits.max_body_bytes)
        wanted = read_translated(body, service.system_prompt)
        return await complete(request, service, CHAT, wanted, MessageForm())
    except ApiError as error:
        return JSONResponse(as_anthropic(error.as_dict(), error.status), error.status, error.headers)


# ---- requests ------------------------------------------------------------------------------------------------


def read_translated(body: Mapping[str, Any], system_prompt: str) -> CompletionRequest:
    """A request of one answer, whose stream ends with its usage. system_prompt: the one that is configured. Raises
    ApiError."""
    options = {"include_usage": True} if body.get("stream") else None
    return read_chat({**body, "n": None, "stream_options": options}, system_prompt)


# ---- responses -----------------------------------------------------------------------------------------------


class Translated(Form, ABC):
    """A form whose stream begins, grows by pieces of text, and ends. What a model thought is no part of it."""

    @abstractmethod
    def response(self, known: Mapping[str, Any], text: str) -> dict[str, Any]:
        """All of it. known: id, model, and where it is complete also finish_reason, usage and tandem."""

    @abstractmethod
    def describe(self, what: What, known: Mapping[str, Any], text: str) -> list[Event]:
        """The events of what happens. text: a piece that it grows by, or all of it at the end."""

    def encode(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        """An event as it is sent."""
        return encode_event(kind, compact({"type": kind, **fields}))

    def whole(self, completion: dict[str, Any]) -> dict[str, Any]:
        """All of it, when it is complete."""
        choice = completion["choices"][0]
        known = completion | {"finish_reason": choice["finish_reason"]}
        return self.response(known, choice["message"]["content"])

    async def events(self, chunks: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
        """Typed events; an error is the last one."""
        known, text = dict[str, Any](), ""
        async for chunk in chunks:
            steps: list[tuple[What, str]] = [] if known else [("begin", "")]
            known |= {name: value for name, value in chunk.items() if value}
            for choice in chunk.get("choices", ()):
                known["finish_reason"] = choice["finish_reason"]
                if piece := choice["delta"].get("content"):
                    text += piece
                    steps.append(("grow", piece))
            if "error" in chunk:
                steps = [("fail", "")]
            elif not chunk["choices"]:  # but the usage
                steps.append(("end", text))
            for event in (event for step in steps for event in self.describe(step[0], known, step[1])):
                yield self.encode(*event)


class ResponseForm(Translated):
    """One response of /v1/responses, with one item that has one part."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        """body: of the request, of which the response repeats the numbers."""
        names = ("max_output_tokens", "temperature", "top_p")
        self._repeated = {name: body.get(name) for name in names}
        self._num_events = 0
        self._item = {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant"}
        self._place = {"output_index": 0, "content_index": 0, "item_id": self._item["id"]}

    def describe(self, what: What, known: Mapping[str, Any], text: str) -> list[Event]:
        """Response, item and part begin, and end in the other order."""
        if what == "fail":
            return [("error", known["error"])]
        if what == "grow":
            return [("response.output_text.delta", self._place | {"delta": text})]
        response = self.response(known, text)
        (item,), part = response["output"], self._place | {"part": _part(text)}
        if what == "end":
            return [
                ("response.output_text.done", self._place | {"text": text}),
                ("response.content_part.done", part),
                ("response.output_item.done", {"output_index": 0, "item": item}),
                (f"response.{response['status']}", {"response": response}),
            ]
        response |= {"status": "in_progress", "output": []}
        item |= {"status": "in_progress", "content": []}
        return [
            ("response.created", {"response": response}),
            ("response.in_progress", {"response": response}),
            ("response.output_item.added", {"output_index": 0, "item": item}),
            ("response.content_part.added", part),
        ]

    def response(self, known: Mapping[str, Any], text: str) -> dict[str, Any]:
        """The response."""
        is_cut, usage = known.get("finish_reason") == "length", known.get("usage")
        status = "incomplete" if is_cut else "completed"
        return {
            "id": known["id"].replace("chatcmpl-", "resp_"),
            "object": "response",
            "created_at": known["created"],
            "model": known["model"],
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": [self._item | {"status": status, "content": [_part(text)]}],
            "error": None,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            **self._repeated,
            "usage": usage
            and {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            },
            "tandem": known.get("tandem"),
        }

    def encode(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        """With its number."""
        self._num_events += 1
        return super().encode(kind, {"sequence_number": self._num_events - 1, **fields})


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


class MessageForm(Translated):
    """One message of /v1/messages, with one block."""

    def describe(self, what: What, known: Mapping[str, Any], text: str) -> list[Event]:
        """How many tokens there are is known at the end."""
        if what == "fail":
            return [("error", as_anthropic(known, 500))]
        if what == "grow":
            return [("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": text}})]
        message = self.response(known, text)
        if what == "begin":
            block = {"type": "text", "text": ""}
            return [
                ("message_start", {"message": message | {"content": [], "stop_reason": None}}),
                ("content_block_start", {"index": 0, "content_block": block}),
            ]
        delta = {name: message[name] for name in ("stop_reason", "stop_sequence")}
        return [
            ("content_block_stop", {"index": 0}),
            ("message_delta", {"delta": delta, "usage": message["usage"], "tandem": message["tandem"]}),
            ("message_stop", {}),
        ]

    def response(self, known: Mapping[str, Any], text: str) -> dict[str, Any]:
        """The message."""
        usage = known.get("usage") or count_usage(0, 0)
        return {
            "id": known["id"].replace("chatcmpl-", "msg_"),
            "type": "message",
            "role": "assistant",
            "model": known["model"],
            "content": [{"type": "text", "text": text}],
            "stop_reason": "max_tokens" if known.get("finish_reason") == "length" else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]},
            "tandem": known.get("tandem"),
        }


def as_anthropic(error: Mapping[str, Any], status: int) -> dict[str, Any]:
    """An error, of `ApiError.as_dict`, as Anthropic writes it."""
    kind = ERROR_TYPES.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": error["error"]["message"]}}
