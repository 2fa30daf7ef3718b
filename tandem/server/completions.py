"""Answers in OpenAI's form, whole or in chunks, with what Tandem adds in the field "tandem"."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from tandem.errors import QueryError, TandemError
from tandem.events import (
    Answer,
    DoneEvent,
    Event,
    ProvisionalEvent,
    RetractEvent,
    TokenEvent,
    collect,
)
from tandem.server.completion_requests import CompletionRequest
from tandem.server.errors import failure
from tandem.server.logprobs import in_chat_form, in_text_form
from tandem.server.plain import compact, to_plain
from tandem.server.queries import RunningQuery
from tandem.server.streams import encode_event

FINISH_REASONS = {"eos": "stop", "stop": "stop", "length": "length"}
"""OpenAI's name for why an answer ended."""
SOURCE_FIELDS = ("party", "id", "title", "score", "page")
"""Of a source; its text is among the typed events."""


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


CHAT = Shape("chatcmpl-", "chat.completion", "chat.completion.chunk", is_chat=True)
TEXT = Shape("cmpl-", "text_completion", "text_completion", is_chat=False)


class Trimmer:
    """Takes the space around an answer off, piece by piece: all pieces together are the text of its `Answer`."""

    def __init__(self) -> None:
        self._has_begun = False
        self._held = ""  # space that only more text turns into a part of the answer

    def push(self, text: str) -> str:
        """What may be shown after this piece."""
        text = self._held + text if self._has_begun else text.lstrip()
        shown = text.rstrip()
        self._held = text[len(shown) :]
        self._has_begun |= bool(shown)
        return shown


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
        yield self._chunk(self._shape.delta("", is_first=True))
        try:
            async for event in query:
                if isinstance(event, ProvisionalEvent | RetractEvent):
                    yield self._chunk(self._shape.delta(""), tandem={_draft_name(event): to_plain(event)})
                    continue
                if isinstance(event, TokenEvent):
                    logprobs = self._logprobs([event], events)
                    if (text := trimmer.push(event.text)) or logprobs:
                        yield self._chunk(self._shape.delta(text), logprobs=logprobs)
                events.append(event)
            answer = self._collect(events)
        except TandemError as error:
            yield encode_event(None, json.dumps(failure(error).as_dict()))
            return
        yield self._chunk(self._shape.delta(""), FINISH_REASONS[answer.reason], tandem=describe(answer))
        if self._request.has_usage:
            yield encode_event(None, compact({**self._head, "choices": [], "usage": self._usage(answer)}))
        yield encode_event(None, "[DONE]")

    def _collect(self, events: list[Event]) -> Answer:
        """Raises QueryError where it is incomplete."""
        if not events or not isinstance(events[-1], DoneEvent) or events[-1].reason == "cancelled":
            raise QueryError("The query was cancelled before its answer was complete; ask again.")
        return collect(events, self._request.options["seed"])

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


def count_usage(num_prompt_tokens: int, num_tokens: int) -> dict[str, int]:
    """OpenAI's count of tokens. Documents count nowhere: each party reads its own."""
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_tokens,
        "total_tokens": num_prompt_tokens + num_tokens,
    }


def describe(answer: Answer) -> dict[str, Any]:
    """What the field "tandem" holds of a finished answer."""
    return {
        "seed": answer.seed,
        "session": answer.session,
        "sources": [
            {name: value for name, value in to_plain(source).items() if name in SOURCE_FIELDS}
            for source in answer.sources
        ],
        "notes": list(answer.notes),
        "acceptance": _acceptance(answer),
        "degraded": answer.degraded_reason,
        "statistics": to_plain(answer.statistics),
    }


def _acceptance(answer: Answer) -> dict[str, float]:
    """Share of the tokens decided by more than one party that equal a party's draft; empty if there is none."""
    together = [token for token in answer.tokens if not token.is_alone]
    accepted = {
        "device": [token.device_accepted for token in together],
        "cloud": [token.cloud_accepted for token in together],
    }
    return {party: round(sum(flags) / len(flags), 4) for party, flags in accepted.items() if flags}


def _draft_name(event: ProvisionalEvent | RetractEvent) -> str:
    return "provisional" if isinstance(event, ProvisionalEvent) else "retract"
