"""Answers in OpenAI's form, whole or in chunks, with what Tandem adds in the field "tandem"."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from tandem.client.answers import FINISH_REASONS, Trimmer, count_usage, describe, require_answer, to_plain
from tandem.errors import TandemError
from tandem.events import Answer, Event, ProvisionalEvent, RetractEvent, TokenEvent
from tandem.server.completion_requests import CompletionRequest
from tandem.server.errors import failure
from tandem.server.logprobs import in_chat_form, in_text_form
from tandem.server.plain import compact
from tandem.server.queries import RunningQuery
from tandem.server.streams import encode_event


@dataclass(frozen=True, slots=True)
class Shape:
    """How a kind of completion is written."""

    prefix: str  # of its id
    whole: str  # its object
    chunk: str  # the object of a part of it
    is_chat: bool

    def message(self, text: str) -> dict[str, Any]:
        """The text of a whole completion, as fields of its choice."""
        if not self.is_chat:
            return {"text": text}
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def delta(self, text: str, *, is_first: bool = False) -> dict[str, Any]:
        """The text of a part, which may be empty, as fields of its choice."""
        if not self.is_chat:
            return {"text": text}
        role = {"role": "assistant"} if is_first else {}
        return {"delta": role | ({"content": text} if text or is_first else {})}


MARK = "\0"
"""In the place of a text in a chunk that is taken apart."""
CHAT = Shape("chatcmpl-", "chat.completion", "chat.completion.chunk", is_chat=True)
TEXT = Shape("cmpl-", "text_completion", "text_completion", is_chat=False)


class Completion:
    """One completion, while it is written."""

    def __init__(
        self, shape: Shape, request: CompletionRequest, fingerprint: str, num_prompt_tokens: int
    ) -> None:
        """fingerprint: equal for servers that give the same answers. num_prompt_tokens: of what the client wrote."""
        self._shape = shape
        self._request = request
        self._num_prompt_tokens = num_prompt_tokens
        self._head = {
            "id": shape.prefix + secrets.token_hex(12),
            "object": shape.chunk if request.is_stream else shape.whole,
            "created": int(time.time()),
            "model": request.model,
            "system_fingerprint": fingerprint,
        }

    async def whole(self, query: RunningQuery) -> dict[str, Any]:
        """The completion when it is ready. Raises TandemError."""
        answer = self._collect([event async for event in query])
        logprobs = self._logprobs(answer.tokens)
        choice = self._choice(self._shape.message(answer.text), FINISH_REASONS[answer.reason], logprobs)
        return {**self._head, "choices": [choice], "usage": self._usage(answer), "tandem": describe(answer)}

    async def chunks(self, query: RunningQuery) -> AsyncIterator[bytes]:
        """The completion as server-sent events, an error as the last one."""
        trimmer, events = Trimmer(), list[Event]()
        before, after = self._chunk(self._shape.delta(MARK)).split(json.dumps(MARK).encode())
        yield self._chunk(self._shape.delta("", is_first=True))
        try:
            async for event in query:
                if isinstance(event, ProvisionalEvent | RetractEvent):
                    yield self._chunk(self._shape.delta(""), tandem={_draft_name(event): to_plain(event)})
                    continue
                if isinstance(event, TokenEvent):
                    logprobs = self._logprobs([event], events)
                    text = trimmer.push(event.text)
                    if logprobs:
                        yield self._chunk(self._shape.delta(text), logprobs=logprobs)
                    elif text:
                        yield b"".join((before, json.dumps(text).encode(), after))
                events.append(event)
            answer = self._collect(events)
        except TandemError as error:
            yield encode_event(None, json.dumps(failure(error, self._request.names).as_dict()))
            return
        yield self._chunk(self._shape.delta(""), FINISH_REASONS[answer.reason], tandem=describe(answer))
        if self._request.has_usage:
            yield encode_event(None, compact({**self._head, "choices": [], "usage": self._usage(answer)}))
        yield encode_event(None, "[DONE]")

    def _collect(self, events: list[Event]) -> Answer:
        """Raises QueryError where it is incomplete."""
        return require_answer(events, self._request.options["seed"])

    def _logprobs(self, tokens: Sequence[TokenEvent], before: Sequence[Event] = ()) -> dict[str, Any] | None:
        """Of these tokens, if they are wanted. before: what happened until then."""
        if "num_logprobs" not in self._request.options:
            return None
        if self._shape.is_chat:
            return in_chat_form(tokens)
        return in_text_form(tokens, "".join(event.text for event in before if isinstance(event, TokenEvent)))

    def _chunk(
        self,
        delta: dict[str, Any],
        reason: str | None = None,
        logprobs: dict[str, Any] | None = None,
        **extra: Any,
    ) -> bytes:
        usage = {"usage": None} if self._request.has_usage else {}
        choices = [self._choice(delta, reason, logprobs)]
        return encode_event(None, compact({**self._head, "choices": choices, **usage, **extra}))

    @staticmethod
    def _choice(
        content: dict[str, Any], reason: str | None, logprobs: dict[str, Any] | None
    ) -> dict[str, Any]:
        return {"index": 0, **content, "logprobs": logprobs, "finish_reason": reason}

    def _usage(self, answer: Answer) -> dict[str, int]:
        return count_usage(self._num_prompt_tokens, answer.statistics.num_tokens)


def _draft_name(event: ProvisionalEvent | RetractEvent) -> str:
    return "provisional" if isinstance(event, ProvisionalEvent) else "retract"
