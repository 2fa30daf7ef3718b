"""OpenAI's /v1/responses and Anthropic's /v1/messages: one answer, or a stream of typed events.

    body --read_single--> CompletionRequest        Completion --TypedForm--> JSON or events

A request is read as that of a chat completion, which is written as a response or a message.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Any, Literal

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from tandem.client.answers import count_usage
from tandem.errors import TandemError
from tandem.plugins.server.completion_requests import CompletionRequest, read_chat
from tandem.plugins.server.http import ApiError, compact, encode_event, failure, read_object
from tandem.plugins.server.openai import Form, complete
from tandem.plugins.server.queries import service_of

router = APIRouter(prefix="/v1")
TypedEvent = tuple[str, Mapping[str, Any]]
"""Type and fields of an event."""
ERROR_TYPES = {404: "not_found_error", 413: "request_too_large"}
"""Anthropic's type of an error by its status, where it is not OpenAI's."""


@router.post("/responses")
async def respond(request: Request) -> Response:
    """Answer in the form of OpenAI's Responses."""
    return await complete(request, read_single, _ResponseForm)


@router.post("/messages")
async def write_message(request: Request) -> Response:
    """Answer in the form of Anthropic's Messages."""
    return await _for_anthropic(complete(request, read_single, _MessageForm))


@router.post("/messages/count_tokens")
async def count_tokens(request: Request) -> Response:
    """Tokens of a message that is not asked, as `usage` of its answer would have them."""

    async def count() -> Response:
        service = service_of(request)
        asked = read_single(await read_object(request, service.limits.max_body_bytes), service.system_prompt)
        return JSONResponse({"input_tokens": await service.tandem.acount_tokens(*asked.texts)})

    return await _for_anthropic(count())


async def _for_anthropic(work: Awaitable[Response]) -> Response:
    try:
        return await work
    except (ApiError, TandemError) as error:
        known = error if isinstance(error, ApiError) else failure(error)
        return JSONResponse(as_anthropic(known.as_dict(), known.status), known.status, known.headers)


def read_single(body: Mapping[str, Any], system_prompt: str) -> CompletionRequest:
    """A request of one answer, whose stream ends with its usage. Raises ApiError."""
    options = {"include_usage": True} if body.get("stream") else None
    return read_chat({**body, "n": None, "stream_options": options}, system_prompt)


Stage = Literal["begin", "grow", "end", "fail"]


class TypedForm(Form, ABC):
    """A form whose stream begins, grows by pieces of text, and ends or fails. What a model thought is no part of it.

    facts: fields of the chunks so far, such as id and model, and at the end finish_reason, usage and tandem.
    """

    @abstractmethod
    def response(self, facts: Mapping[str, Any], text: str) -> dict[str, Any]:
        """All of it."""

    @abstractmethod
    def typed(self, stage: Stage, facts: Mapping[str, Any], text: str) -> list[TypedEvent]:
        """The events of a stage. facts: of a failure, `ApiError.as_dict`. text: the piece, or at the end all of it."""

    def encode(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        """An event as it is sent."""
        return encode_event(kind, compact({"type": kind, **fields}))

    def whole(self, completion: dict[str, Any]) -> dict[str, Any]:
        """All of it, when it is complete."""
        choice = completion["choices"][0]
        facts = completion | {"finish_reason": choice["finish_reason"]}
        return self.response(facts, choice["message"]["content"])

    async def events(self, chunks: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
        """Typed events; an error is the last one."""
        facts, text = dict[str, Any](), ""
        async for chunk in chunks:
            if "error" in chunk:
                typed = self.typed("fail", chunk, "")
            else:
                is_first = not facts
                facts |= {name: value for name, value in chunk.items() if value}
                typed = self.typed("begin", facts, "") if is_first else []
                for choice in chunk["choices"]:
                    facts["finish_reason"] = choice["finish_reason"]
                    if piece := choice["delta"].get("content"):
                        typed += self.typed("grow", facts, piece)
                        text += piece
                if not chunk["choices"]:  # but the usage
                    typed += self.typed("end", facts, text)
            for event in typed:
                yield self.encode(*event)


class _ResponseForm(TypedForm):
    """One response of /v1/responses, with one item that has one part."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        """body: of the request, of which the response repeats the numbers."""
        names = ("max_output_tokens", "temperature", "top_p")
        self._repeated = {name: body.get(name) for name in names}
        self._num_events = 0
        self._item = {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant"}
        self._place = {"output_index": 0, "content_index": 0, "item_id": self._item["id"]}

    def typed(self, stage: Stage, facts: Mapping[str, Any], text: str) -> list[TypedEvent]:
        if stage == "fail":
            return [("error", {name: facts["error"][name] for name in ("code", "message", "param")})]
        if stage == "grow":
            return [("response.output_text.delta", self._place | {"delta": text})]
        response = self.response(facts, text)
        if stage == "end":
            return [
                ("response.output_text.done", self._place | {"text": text}),
                ("response.content_part.done", self._place | {"part": _part(text)}),
                ("response.output_item.done", {"output_index": 0, "item": response["output"][0]}),
                (f"response.{response['status']}", {"response": response}),
            ]
        response |= {"status": "in_progress", "output": []}
        item = self._item | {"status": "in_progress", "content": []}
        return [
            ("response.created", {"response": response}),
            ("response.in_progress", {"response": response}),
            ("response.output_item.added", {"output_index": 0, "item": item}),
            ("response.content_part.added", self._place | {"part": _part("")}),
        ]

    def response(self, facts: Mapping[str, Any], text: str) -> dict[str, Any]:
        is_cut = facts.get("finish_reason") == "length"
        status = "incomplete" if is_cut else "completed"
        usage = facts.get("usage")
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
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            }
            if usage
            else None,
            "tandem": facts.get("tandem"),
        }

    def encode(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        self._num_events += 1
        return super().encode(kind, {"sequence_number": self._num_events - 1, **fields})


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


class _MessageForm(TypedForm):
    """One message of /v1/messages, with one block."""

    def typed(self, stage: Stage, facts: Mapping[str, Any], text: str) -> list[TypedEvent]:
        if stage == "fail":
            return [("error", as_anthropic(facts))]
        if stage == "grow":
            return [("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": text}})]
        message = self.response(facts, text)
        if stage == "end":
            delta = {name: message[name] for name in ("stop_reason", "stop_sequence")}
            return [
                ("content_block_stop", {"index": 0}),
                ("message_delta", {"delta": delta, "usage": message["usage"], "tandem": message["tandem"]}),
                ("message_stop", {}),
            ]
        return [
            ("message_start", {"message": message | {"content": [], "stop_reason": None}}),
            ("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}),
        ]

    def response(self, facts: Mapping[str, Any], text: str) -> dict[str, Any]:
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


def as_anthropic(error: Mapping[str, Any], status: int = 500) -> dict[str, Any]:
    """An error, of `ApiError.as_dict`, as Anthropic writes it."""
    kind = ERROR_TYPES.get(status, error["error"]["type"].replace("server_error", "api_error"))
    return {"type": "error", "error": {"type": kind, "message": error["error"]["message"]}}
