"""The common part of OpenAI's Responses and Anthropic's Messages: one answer, and a stream of typed events.

body --read_single--> CompletionRequest        Completion --TypedForm--> JSON or events
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from tandem.plugins.server.completion_requests import CompletionRequest, read_chat
from tandem.plugins.server.http import compact, encode_event
from tandem.plugins.server.openai import Form

TypedEvent = tuple[str, Mapping[str, Any]]
"""Type and fields of an event."""


def read_single(body: Mapping[str, Any], system_prompt: str) -> CompletionRequest:
    """A request of one answer, whose stream ends with its usage. system_prompt: the one that is configured. Raises
    ApiError."""
    options = {"include_usage": True} if body.get("stream") else None
    return read_chat({**body, "n": None, "stream_options": options}, system_prompt)


class TypedForm(Form, ABC):
    """A form whose stream begins, grows by pieces of text, and ends. What a model thought is no part of it.

    facts: fields of the chunks so far, such as id and model, and at the end finish_reason, usage and tandem.
    """

    @abstractmethod
    def response(self, facts: Mapping[str, Any], text: str) -> dict[str, Any]:
        """All of it."""

    @abstractmethod
    def begin(self, facts: Mapping[str, Any]) -> list[TypedEvent]:
        """The events before any text."""

    @abstractmethod
    def grow(self, piece: str) -> list[TypedEvent]:
        """The events of a piece of text."""

    @abstractmethod
    def end(self, facts: Mapping[str, Any], text: str) -> list[TypedEvent]:
        """The events after all text."""

    @abstractmethod
    def fail(self, error: Mapping[str, Any]) -> list[TypedEvent]:
        """The events in the place of the end. error: of `ApiError.as_dict`."""

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
            for event in self.fail(chunk) if "error" in chunk else self._events_of(chunk, facts, text):
                yield self.encode(*event)
            text += _text_of(chunk)

    def _events_of(self, chunk: Mapping[str, Any], facts: dict[str, Any], text: str) -> Iterator[TypedEvent]:
        """The events of a chunk that is no error. facts: receives what it says. text: before it."""
        is_first = not facts
        facts |= {name: value for name, value in chunk.items() if value}
        if is_first:
            yield from self.begin(facts)
        for choice in chunk["choices"]:
            facts["finish_reason"] = choice["finish_reason"]
        if piece := _text_of(chunk):
            yield from self.grow(piece)
        if not chunk["choices"]:  # but the usage
            yield from self.end(facts, text)


def _text_of(chunk: Mapping[str, Any]) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in chunk.get("choices", ()))
