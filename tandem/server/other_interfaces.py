"""OpenAI's /v1/responses and Anthropic's /v1/messages: translated into a chat completion, and its parts into theirs."""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from tandem.client.answers import count_usage
from tandem.server.completion_requests import CompletionRequest, HomeModel, read_chat, read_content
from tandem.server.http import ApiError, compact, encode_event, read_object, unsupported
from tandem.server.openai import CHAT, Form, complete
from tandem.server.queries import service_of

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


@router.post("/responses")
async def respond(request: Request) -> Response:
    """Answer in the form of OpenAI's Responses."""
    service = service_of(request)
    body = await read_object(request, service.limits.max_body_bytes)
    return await complete(request, service, CHAT, read_response(body, service.model), ResponseForm(body))


@router.post("/messages")
async def write_message(request: Request) -> Response:
    """Answer in the form of Anthropic's Messages."""
    service = service_of(request)
    try:
        body = await read_object(request, service.limits.max_body_bytes)
        return await complete(request, service, CHAT, read_messages(body, service.model), MessageForm())
    except ApiError as error:
        return JSONResponse(as_anthropic(error.as_dict(), error.status), error.status, error.headers)


# ---- requests ------------------------------------------------------------------------------------------------


def read_response(body: Mapping[str, Any], model: HomeModel) -> CompletionRequest:
    """A request of /v1/responses. Raises ApiError."""
    given, chat = body.get("input"), dict(body)
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if isinstance(items, list):
        items = [_read_item(*item) for item in enumerate(items) if not _is_of_type(item[1], "reasoning")]
    instructions = read_content("instructions", chat.pop("instructions", None) or "")
    _translate(chat, "text", ("function", "parameters"))
    return read_chat(chat | {"input": items}, model, asked_by="input", instructions=instructions)


def _read_item(number: int, item: Any) -> Any:
    """A message of the input, without what the server of an earlier response had added to it."""
    kind = item.get("type", "message") if isinstance(item, dict) else type(item).__name__
    if kind == "function_call":
        call = _as_call(item.get("call_id"), item.get("name"), item.get("arguments"))
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    if kind == "function_call_output":
        return {"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")}
    if kind != "message":
        raise unsupported(
            f"input[{number}]",
            f"input[{number}] must be a message, or a call of a function or its output, but it is {kind!r:.40}; "
            "leave it out.",
        )
    return {name: value for name, value in item.items() if name not in ("type", "id", "status")}


def read_messages(body: Mapping[str, Any], model: HomeModel) -> CompletionRequest:
    """A request of /v1/messages. Raises ApiError."""
    chat = dict(body)
    system = read_content("system", chat.pop("system", None) or "")
    if isinstance(messages := chat.get("messages"), list):
        chat["messages"] = [part for message in messages for part in _split_message(message)]
    if isinstance(choice := chat.get("tool_choice"), dict) and choice.get("disable_parallel_tool_use"):
        chat["parallel_tool_calls"] = False
    _translate(chat, "output_config", ("custom", "input_schema"))
    return read_chat(chat, model, instructions=system)


def _split_message(message: Any) -> Iterator[Any]:
    """A message whose blocks are calls of tools, or their results, as those messages that a chat has instead."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        yield message
        return
    calls = [
        _as_call(block.get("id"), block.get("name"), block.get("input"))
        for block in content
        if _is_of_type(block, "tool_use")
    ]
    for block in content:
        if _is_of_type(block, "tool_result"):
            result = {"content": block.get("content") or "", "tool_call_id": block.get("tool_use_id")}
            yield {"role": "tool", **result, "is_error": block.get("is_error")}  # which templates do not have
    rest = [
        block
        for block in content
        if not any(_is_of_type(block, kind) for kind in ("tool_use", "tool_result"))
    ]
    if rest or calls:
        yield message | {"content": rest} | ({"tool_calls": calls} if calls else {})


def _as_call(name_of_call: Any, name: Any, arguments: Any) -> dict[str, Any]:
    return {"id": name_of_call, "type": "function", "function": {"name": name, "arguments": arguments}}


def _is_of_type(value: Any, kind: str) -> bool:
    return isinstance(value, dict) and value.get("type") == kind


CHOICES = {"any": "required", "auto": "auto", "none": "none"}
"""Anthropic's types of a choice of tools -> OpenAI's."""


def _translate(chat: dict[str, Any], config: str, tool: tuple[str, str]) -> None:
    """There is one answer, and a stream of it ends with its usage.

    config: the field that holds its format. tool: the type of a tool, and its field that holds the parameters.
    """
    chat |= {"n": None, "stream_options": {"include_usage": True} if chat.get("stream") else None}
    settings = chat.pop(config, None)
    if isinstance(settings, dict):
        chat[f"{config}.format"] = settings.get("format")
    if isinstance(tools := chat.get("tools"), list):
        chat["tools"] = [_translate_tool(each, *tool) for each in tools]
    if isinstance(choice := chat.get("tool_choice"), dict):
        named = {"type": "function", "function": {"name": choice.get("name")}}
        is_named = choice.get("type") in ("function", "tool")
        chat["tool_choice"] = named if is_named else CHOICES.get(str(choice.get("type")), choice)


def _translate_tool(tool: Any, kind: str, schema: str) -> Any:
    if not isinstance(tool, dict) or (tool.get("type") or kind) != kind:
        return tool  # one of the interface's own, which is refused
    about = {
        "parameters" if name == schema else name: value for name, value in tool.items() if name != "type"
    }
    return {"type": "function", "function": about}


# ---- responses -----------------------------------------------------------------------------------------------


@dataclass
class Part:
    """A text, or a call of a tool: an item of a response, a block of a message."""

    text: str = ""  # of a call its arguments, as JSON
    call: Mapping[str, Any] | None = None  # in OpenAI's form
    id: str = field(default_factory=lambda: secrets.token_hex(12))


class Translated(Form, ABC):
    """A form whose stream begins, grows part by part, and ends. What a model thought is no part of it."""

    @abstractmethod
    def response(self, known: Mapping[str, Any], parts: Sequence[Part]) -> dict[str, Any]:
        """All of it. known: id, model, and where it is complete also finish_reason, usage and tandem."""

    @abstractmethod
    def begin(self, response: Mapping[str, Any]) -> list[Event]:
        """The events before all parts."""

    @abstractmethod
    def begin_part(self, number: int, part: Part) -> list[Event]:
        """Of a part without text."""

    @abstractmethod
    def grow_part(self, number: int, part: Part, text: str) -> list[Event]:
        """By a text."""

    @abstractmethod
    def end_part(self, number: int, part: Part) -> list[Event]:
        """Of a part that is complete."""

    @abstractmethod
    def end(self, response: Mapping[str, Any]) -> list[Event]:
        """The events after all parts."""

    @abstractmethod
    def fail(self, error: Mapping[str, Any]) -> list[Event]:
        """Instead of all others. error: of `ApiError.as_dict`."""

    def encode(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        """An event as it is sent."""
        return encode_event(kind, compact({"type": kind, **fields}))

    def whole(self, completion: dict[str, Any]) -> dict[str, Any]:
        """All of it, when it is complete."""
        choice = completion["choices"][0]
        message, known = choice["message"], completion | {"finish_reason": choice["finish_reason"]}
        calls = [Part(call["function"]["arguments"], call) for call in message.get("tool_calls", ())]
        is_text = message["content"] or not calls
        return self.response(known, [*([Part(message["content"])] if is_text else []), *calls])

    async def events(self, chunks: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
        """Typed events; an error is the last one."""
        known, parts = dict[str, Any](), list[Part]()
        async for chunk in chunks:
            events = [] if known else self.begin(self.response(chunk, []))
            known |= {name: value for name, value in chunk.items() if value}
            for choice in chunk.get("choices", ()):
                known["finish_reason"] = choice["finish_reason"]
                if text := choice["delta"].get("content"):
                    events += self._grow(parts, text)
                for call in choice["delta"].get("tool_calls", ()):
                    events += self._end_text(parts)
                    parts.append(Part(call=call))
                    events += self.begin_part(len(parts) - 1, parts[-1])
                    events += self._grow(parts, call["function"]["arguments"], is_call=True)
                    events += self.end_part(len(parts) - 1, parts[-1])
            if "error" in chunk:
                events = self.fail(chunk)
            elif not chunk["choices"]:  # but the usage
                events += [] if parts else self._grow(parts, "")
                events += [*self._end_text(parts), *self.end(self.response(known, parts))]
            for event in events:
                yield self.encode(*event)

    def _grow(self, parts: list[Part], text: str, *, is_call: bool = False) -> list[Event]:
        """Add text to the last part, or to a new one."""
        events: list[Event] = []
        if not is_call and (not parts or parts[-1].call):
            parts.append(Part())
            events = self.begin_part(len(parts) - 1, parts[-1])
        parts[-1].text += text
        return events + (self.grow_part(len(parts) - 1, parts[-1], text) if text else [])

    def _end_text(self, parts: Sequence[Part]) -> list[Event]:
        return self.end_part(len(parts) - 1, parts[-1]) if parts and not parts[-1].call else []


class ResponseForm(Translated):
    """One response of /v1/responses."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        """body: of the request, of which the response repeats the numbers."""
        names = ("max_output_tokens", "temperature", "top_p")
        self._repeated = {name: body.get(name) for name in names}
        self._repeated["parallel_tool_calls"] = body.get("parallel_tool_calls") is not False
        self._num_events = 0

    def begin(self, response: Mapping[str, Any]) -> list[Event]:
        """It is created, and in progress."""
        begun = {"response": {**response, "status": "in_progress"}}
        return [("response.created", begun), ("response.in_progress", begun)]

    def begin_part(self, number: int, part: Part) -> list[Event]:
        """An item, and what it contains."""
        item = _item(part, "in_progress") | ({} if part.call else {"content": []})
        added: Event = ("response.output_item.added", {"output_index": number, "item": item})
        content = {**_place(number, part), "content_index": 0, "part": _content(part)}
        return [added] if part.call else [added, ("response.content_part.added", content)]

    def grow_part(self, number: int, part: Part, text: str) -> list[Event]:
        """Text, or arguments."""
        if part.call:
            return [("response.function_call_arguments.delta", {**_place(number, part), "delta": text})]
        return [("response.output_text.delta", {**_place(number, part), "content_index": 0, "delta": text})]

    def end_part(self, number: int, part: Part) -> list[Event]:
        """As it begins, in the other order."""
        place = _place(number, part)
        done: Event = (
            "response.output_item.done",
            {"output_index": number, "item": _item(part, "completed")},
        )
        if part.call:
            whole = {**place, "name": part.call["function"]["name"], "arguments": part.text}
            return [("response.function_call_arguments.done", whole), done]
        place["content_index"] = 0
        return [
            ("response.output_text.done", {**place, "text": part.text}),
            ("response.content_part.done", {**place, "part": _content(part)}),
            done,
        ]

    def end(self, response: Mapping[str, Any]) -> list[Event]:
        """All of it."""
        return [(f"response.{response['status']}", {"response": response})]

    def fail(self, error: Mapping[str, Any]) -> list[Event]:
        """The error's fields."""
        return [("error", error["error"])]

    def response(self, known: Mapping[str, Any], parts: Sequence[Part]) -> dict[str, Any]:
        """The response."""
        is_cut, usage = known.get("finish_reason") == "length", known.get("usage")
        status = "incomplete" if is_cut else "completed"
        return {
            "id": known["id"].replace("chatcmpl-", "resp_"),
            **{"object": "response", "created_at": known["created"], "model": known["model"]},
            **{"status": status, "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None},
            **{"output": [_item(part, status) for part in parts], "error": None},
            **{"tool_choice": "auto", "tools": []},
            **self._repeated,
            "usage": usage
            and {
                **{"input_tokens": usage["prompt_tokens"], "input_tokens_details": {"cached_tokens": 0}},
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


def _place(number: int, part: Part) -> dict[str, Any]:
    return {"output_index": number, "item_id": _item(part, "")["id"]}


def _item(part: Part, status: str) -> dict[str, Any]:
    if part.call is None:
        item = {"id": f"msg_{part.id}", "type": "message", "role": "assistant"}
        return {**item, "status": status, "content": [_content(part)]}
    called = {"call_id": part.call["id"], "name": part.call["function"]["name"], "arguments": part.text}
    return {"id": f"fc_{part.id}", "type": "function_call", "status": status, **called}


def _content(part: Part) -> dict[str, Any]:
    return {"type": "output_text", "text": part.text, "annotations": []}


STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}
"""OpenAI's reason for the end of an answer -> Anthropic's."""


class MessageForm(Translated):
    """One message of /v1/messages."""

    def begin(self, response: Mapping[str, Any]) -> list[Event]:
        """How many tokens there are is known at the end."""
        return [("message_start", {"message": {**response, "stop_reason": None}})]

    def begin_part(self, number: int, part: Part) -> list[Event]:
        """A block."""
        empty: dict[str, Any] = {"input": {}} if part.call else {"text": ""}
        return [("content_block_start", {"index": number, "content_block": _block(part) | empty})]

    def grow_part(self, number: int, part: Part, text: str) -> list[Event]:
        """Text, or JSON."""
        kind, name = ("input_json_delta", "partial_json") if part.call else ("text_delta", "text")
        return [("content_block_delta", {"index": number, "delta": {"type": kind, name: text}})]

    def end_part(self, number: int, part: Part) -> list[Event]:
        """No more of it."""
        return [("content_block_stop", {"index": number})]

    def end(self, response: Mapping[str, Any]) -> list[Event]:
        """Why it ended, and what was used."""
        delta = {name: response[name] for name in ("stop_reason", "stop_sequence")}
        about = {"delta": delta, "usage": response["usage"], "tandem": response["tandem"]}
        return [("message_delta", about), ("message_stop", {})]

    def fail(self, error: Mapping[str, Any]) -> list[Event]:
        """In Anthropic's form."""
        return [("error", as_anthropic(error, 500))]

    def response(self, known: Mapping[str, Any], parts: Sequence[Part]) -> dict[str, Any]:
        """The message."""
        usage = known.get("usage") or count_usage(0, 0)
        return {
            "id": known["id"].replace("chatcmpl-", "msg_"),
            **{"type": "message", "role": "assistant", "model": known["model"]},
            "content": [_block(part) for part in parts],
            "stop_reason": STOP_REASONS.get(known.get("finish_reason") or "", "end_turn"),
            "stop_sequence": None,
            "usage": {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]},
            "tandem": known.get("tandem"),
        }


def _block(part: Part) -> dict[str, Any]:
    if part.call is None:
        return {"type": "text", "text": part.text}
    name, arguments = part.call["function"]["name"], json.loads(part.text or "{}")
    return {"type": "tool_use", "id": part.call["id"], "name": name, "input": arguments}


def as_anthropic(error: Mapping[str, Any], status: int) -> dict[str, Any]:
    """An error, of `ApiError.as_dict`, as Anthropic writes it."""
    kind = ERROR_TYPES.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": error["error"]["message"]}}
