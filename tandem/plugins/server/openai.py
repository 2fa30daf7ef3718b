"""OpenAI's interface: chat and text completions, whole or in chunks, models and embeddings.

body --read_chat, read_prompt--> CompletionRequest --Service.start--> RunningQuery --Completion--> JSON or events
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from fastapi import APIRouter, Request
from pydantic import AfterValidator, BeforeValidator, Field
from starlette.responses import JSONResponse, Response

from tandem.client import answers
from tandem.client.answers import Trimmer
from tandem.conversation import THOUGHT, THOUGHT_END
from tandem.errors import TandemError
from tandem.events import (
    Answer,
    Event,
    ProvisionalEvent,
    RetractEvent,
    StepEvent,
    TokenEvent,
    TokenLogprob,
)
from tandem.plugins.server.completion_requests import (
    MODEL,
    Body,
    CompletionRequest,
    read_chat,
    read_model,
    read_prompt,
)
from tandem.plugins.server.http import (
    EventStream,
    compact,
    encode_event,
    failure,
    name_ignored,
    read_fields,
    read_object,
    unsupported,
    while_connected,
)
from tandem.plugins.server.queries import RunningQuery, Service, service_of

router = APIRouter(prefix="/v1")
HEAD_S = 1.0
"""Within which a query that fails is refused with its status, before the head of a stream is sent."""
MAX_INPUTS = 2048  # texts of one request for embeddings, as OpenAI has it
MAX_INPUT_BYTES = 65_536
"""Longest of them: an embedder reads the beginning alone, and a longer one would keep it from searching."""


class Piece(NamedTuple):
    """The additions of a piece of text to the thought and to the answer."""

    thought: str = ""
    text: str = ""


class AnswerReader:
    """Separates what a model thinks from what it answers, piece by piece, each without the space around it."""

    def __init__(self, thinking: str) -> None:
        """thinking: of the template (`Template.thinking`); "" leaves every text as it is."""
        self._awaited = {"marked": THOUGHT, "begun": THOUGHT_END}.get(thinking, "")  # the next marker
        self._pending = ""  # may be the beginning of it
        self._thought, self._answer = Trimmer(), Trimmer()
        self.text = ""  # of the answer, as far as it was shown

    def push(self, text: str, *, is_last: bool = False) -> Piece:
        """Take a piece of text; returns what may be shown now."""
        self._pending += text
        thought = answer = ""
        if self._awaited == THOUGHT and (begun := self._pending.lstrip()).startswith(THOUGHT):
            self._awaited, self._pending = THOUGHT_END, begun.removeprefix(THOUGHT)
        elif self._awaited == THOUGHT and (is_last or not THOUGHT.startswith(begun)):
            self._awaited = ""
        if self._awaited == THOUGHT_END:
            thought, end, rest = self._pending.partition(THOUGHT_END)
            num_pending = 0 if end or is_last else _overlap(thought, THOUGHT_END)
            self._awaited = "" if end else THOUGHT_END
            self._pending = rest if end else thought[len(thought) - num_pending :]
            thought = thought[: len(thought) - num_pending]
        if not self._awaited:
            answer, self._pending = self._pending, ""
        piece = Piece(self._thought.push(thought), self._answer.push(answer))
        self.text += piece.text
        return piece


def _overlap(text: str, marker: str) -> int:
    """Characters at the end of a text with which the marker begins."""
    return next((size for size in range(len(marker) - 1, 0, -1) if text.endswith(marker[:size])), 0)


def _check_length(text: str) -> str:
    num_bytes = len(text.encode())
    if num_bytes > MAX_INPUT_BYTES:
        raise ValueError(f"must have at most {MAX_INPUT_BYTES} bytes, not {num_bytes}; cut it into parts")
    return text


class EmbeddingFields(Body):
    """A request for embeddings."""

    model: str
    input: Annotated[
        list[Annotated[str, Field(min_length=1), AfterValidator(_check_length)]],
        BeforeValidator(lambda given: [given] if isinstance(given, str) else given),
    ] = Field(min_length=1, max_length=MAX_INPUTS)
    encoding_format: Literal["float", "base64"] = "float"


@router.post("/chat/completions")
async def complete_chat(request: Request) -> Response:
    """Answer the last message of a conversation."""
    return await complete(request, read_chat)


@router.post("/completions")
async def complete_text(request: Request) -> Response:
    """Answer a prompt, which is the question."""
    return await complete(request, lambda body, _: read_prompt(body), is_chat=False)


@router.get("/models")
async def list_models(request: Request) -> dict[str, Any]:
    """The model of all parties together, and the embedder."""
    return {"object": "list", "data": [_model(name) for name in (MODEL, *service_of(request).embedders)]}


@router.get("/models/{name:path}")
async def show_model(request: Request, name: str) -> dict[str, Any]:
    """One of these models."""
    return _model(read_model({"model": name}, MODEL, *service_of(request).embedders))


@router.post("/embeddings")
async def embed(request: Request) -> Response:
    """Unit vectors of texts, by the embedder of a party that runs here."""
    service = service_of(request)
    body = await read_object(request, service.limits.max_body_bytes)
    model = read_model(body, *service.embedders)
    fields = read_fields(EmbeddingFields, body)
    if "dimensions" in fields.others:
        raise unsupported("dimensions", "The embedder has one length of vectors; leave dimensions out.")
    try:
        vectors: list[Any] = await while_connected(request.receive, service.embed(fields.input))
        num_tokens = await service.tandem.acount_tokens(*fields.input)
    except TandemError as error:
        raise failure(error) from None
    if fields.encoding_format == "base64":
        vectors = [base64.b64encode(np.array(vector, "<f4").tobytes()).decode() for vector in vectors]
    embeddings = {
        "object": "list",
        "model": model,
        "data": [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(vectors)
        ],
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }
    return JSONResponse(embeddings, headers=name_ignored(fields.others, service.named))


class Form:
    """How completions are written: as OpenAI's chat and text completions."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        """body: of the request."""

    def whole(self, completion: dict[str, Any]) -> dict[str, Any]:
        """A whole completion, of `Completion.whole`."""
        return completion

    async def events(self, chunks: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
        """Server-sent events. chunks: of `Completion.chunks`; an error is the last one."""
        chunk: dict[str, Any] = {}
        async for chunk in chunks:
            yield encode_event(None, compact(chunk))
        if "error" not in chunk:
            yield encode_event(None, "[DONE]")


async def complete(
    request: Request,
    read: Callable[[Mapping[str, Any], str], CompletionRequest],
    form_of: type[Form] = Form,
    *,
    is_chat: bool = True,
) -> Response:
    """Respond once all answers have begun, a stream after a second at most; until then whatever goes wrong is a
    response of its own.

    read: takes the body and the configured system prompt. form_of: how the response is written. Raises ApiError.
    """
    service = service_of(request)
    body = await read_object(request, service.limits.max_body_bytes)
    asked, form = read(body, service.system_prompt), form_of(body)
    asked.options.setdefault("seed", answers.new_seed())
    try:
        async with AsyncExitStack() as stack:
            queries = []
            for number in range(asked.fields.n):
                options = {**asked.options, "seed": seed_of(asked, number)}
                queries.append(service.start(asked.question, options, asked.names))
                stack.push_async_callback(queries[-1].close)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEAD_S if asked.fields.stream else None):
                    for query in queries:
                        await while_connected(request.receive, query.fetch_first_token())
            num_prompt_tokens = await service.tandem.acount_tokens(*asked.texts)  # of what was not refused
            completion = Completion(is_chat, asked, service, num_prompt_tokens)
            headers = name_ignored(asked.ignored, service.named)
            if not asked.fields.stream:
                whole = await while_connected(request.receive, completion.whole(queries))
                return JSONResponse(form.whole(whole), headers=headers)
            close = stack.pop_all().aclose  # the response closes the queries
            events = form.events(completion.chunks(queries))
            return EventStream(events, close, service.limits.send_timeout_s, headers)
    except TandemError as error:
        raise failure(error, asked.names) from None


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "tandem"}


class Completion:
    """The answers to one request, while they are written."""

    def __init__(
        self, is_chat: bool, asked: CompletionRequest, service: Service, num_prompt_tokens: int
    ) -> None:
        """is_chat: in the form of messages, else of texts. num_prompt_tokens: of what the client wrote."""
        self._is_chat = is_chat
        self._asked = asked
        self._has_usage = asked.fields.stream and asked.fields.stream_options.include_usage
        self._thinking = service.thinking(asked.options) if is_chat and asked.may_think else ""
        self._num_prompt_tokens = num_prompt_tokens
        self._num_tokens = 0  # of all answers that are complete
        kind = "chat.completion" if is_chat else "text_completion"
        self._head = {
            "id": ("chatcmpl-" if is_chat else "cmpl-") + secrets.token_hex(12),
            "object": f"{kind}.chunk" if is_chat and asked.fields.stream else kind,
            "created": int(time.time()),
            "model": MODEL,
            "system_fingerprint": service.fingerprint,
        }

    async def whole(self, queries: Sequence[RunningQuery]) -> dict[str, Any]:
        """The completion when it is ready. Raises TandemError."""
        choices, described = [], []
        for number, query in enumerate(queries):
            answer = self._collect(number, [event async for event in query])
            piece = AnswerReader(self._thinking).push(answer.text, is_last=True)
            piece = piece._replace(thought="".join(map(_line, answer.steps)) + piece.thought)
            described.append(answers.describe(answer, piece.text))
            message: dict[str, Any] = {"text": piece.text}
            if self._is_chat:
                message = {"role": "assistant", "content": piece.text, "refusal": None, **_reasoning(piece)}
                message = {"message": message}
            reason = answers.finish_reason(answer)
            choices.append(_choice(number, message, reason, self._logprobs(answer.tokens)))
        if len(choices) > 1:  # of one answer it is beside the choices
            choices = [choice | {"tandem": each} for choice, each in zip(choices, described, strict=True)]
        return {**self._head, "choices": choices, "usage": self._usage(), "tandem": described[0]}

    async def chunks(self, queries: Sequence[RunningQuery]) -> AsyncIterator[dict[str, Any]]:
        """The completion in parts, those of several answers as they come; an error is the last one."""
        try:
            async for chunk in _interleave([self._parts(*numbered) for numbered in enumerate(queries)]):
                yield chunk
        except TandemError as error:
            yield failure(error, self._asked.names).as_dict()
            return
        if self._has_usage:
            yield {**self._head, "choices": [], "usage": self._usage()}

    async def _parts(self, number: int, query: RunningQuery) -> AsyncIterator[dict[str, Any]]:
        """One answer in chunks. Raises TandemError."""
        reader, events, text = AnswerReader(self._thinking), list[Event](), ""
        yield self._chunk(number, Piece(), is_first=True)
        async for event in query:
            if isinstance(event, ProvisionalEvent | RetractEvent):
                name = "provisional" if isinstance(event, ProvisionalEvent) else "retract"
                yield self._chunk(number, Piece(), tandem={name: answers.to_plain(event)})
                continue
            if isinstance(event, StepEvent) and self._is_chat:
                yield self._chunk(number, Piece(thought=_line(event)))
            if isinstance(event, TokenEvent):
                logprobs = self._logprobs([event], len(text.lstrip()))
                text += event.text
                piece = reader.push(event.text)
                if any(piece) or logprobs:
                    yield self._chunk(number, piece, logprobs=logprobs)
            events.append(event)
        answer = self._collect(number, events)
        piece = reader.push("", is_last=True)
        if any(piece):
            yield self._chunk(number, piece)
        about = answers.describe(answer, reader.text)
        yield self._chunk(number, Piece(), answers.finish_reason(answer), tandem=about)

    def _collect(self, number: int, events: list[Event]) -> Answer:
        """Raises QueryError where it is incomplete."""
        answer = answers.require_answer(events, seed_of(self._asked, number))
        self._num_tokens += answer.statistics.num_tokens
        return answer

    def _logprobs(self, tokens: Iterable[TokenEvent], num_chars: int = 0) -> dict[str, Any] | None:
        """The log probabilities of these tokens, if they are shown. num_chars: length of the answer before them."""
        if "num_logprobs" not in self._asked.options:
            return None
        return _in_chat_form(tokens) if self._is_chat else _in_text_form(tokens, num_chars)

    def _chunk(
        self,
        number: int,
        piece: Piece,
        reason: str | None = None,
        logprobs: dict[str, Any] | None = None,
        *,
        is_first: bool = False,
        **extra: Any,
    ) -> dict[str, Any]:
        """A part of an answer, whose piece of text may be empty."""
        delta: dict[str, Any] = {"text": piece.text}
        if self._is_chat:
            role = {"role": "assistant"} if is_first else {}
            content = {"content": piece.text} if piece.text or is_first else {}
            delta = {"delta": role | content | _reasoning(piece)}
        usage = {"usage": None} if self._has_usage else {}
        return {**self._head, "choices": [_choice(number, delta, reason, logprobs)], **usage, **extra}

    def _usage(self) -> dict[str, int]:
        return answers.count_usage(self._num_prompt_tokens, self._num_tokens)


def _choice(
    number: int, content: dict[str, Any], reason: str | None, logprobs: dict[str, Any] | None
) -> dict[str, Any]:
    return {"index": number, **content, "logprobs": logprobs, "finish_reason": reason}


def _line(step: StepEvent) -> str:
    """What was said in a step, as a part of what the model thought."""
    return f"{step}\n"


def _reasoning(piece: Piece) -> dict[str, str]:
    """The field of a message or delta with what the model thought, if it did."""
    return {"reasoning_content": piece.thought} if piece.thought else {}


def seed_of(asked: CompletionRequest, number: int) -> Any:
    """The seed of one of several answers: the first has that of the request, the next ones count on."""
    seed = asked.options["seed"]
    return (seed + number) % (1 << 64) if number else seed


async def _interleave(streams: Sequence[AsyncIterator[dict[str, Any]]]) -> AsyncIterator[dict[str, Any]]:
    """The items of all streams as they come."""
    if len(streams) == 1:
        async for item in streams[0]:
            yield item
        return
    waiting = {asyncio.ensure_future(anext(stream)): stream for stream in streams}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                stream = waiting.pop(task)
                with contextlib.suppress(StopAsyncIteration):
                    yield task.result()
                    waiting[asyncio.ensure_future(anext(stream))] = stream
    finally:
        for task in waiting:
            task.cancel()


def _in_chat_form(tokens: Iterable[TokenEvent]) -> dict[str, Any]:
    content = [
        {**_entry(token.logprob), "top_logprobs": [_entry(top) for top in token.top_logprobs]}
        for token in tokens
        if token.logprob is not None
    ]
    return {"content": content, "refusal": None}


def _in_text_form(tokens: Iterable[TokenEvent], num_chars: int) -> dict[str, Any]:
    """A token's offset is the number of characters of the answer before it."""
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    text = ""
    for token in tokens:
        if (own := token.logprob) is not None:
            top = {each.text: each.logprob for each in (*token.top_logprobs, own)}
            offset = num_chars + len(text if num_chars else text.lstrip())
            for name, value in zip(names, (own.text, own.logprob, top, offset), strict=True):
                columns[name].append(value)
        text += token.text
    return columns


def _entry(named: TokenLogprob) -> dict[str, Any]:
    utf8 = None if named.utf8 is None else list(named.utf8)
    return {"token": named.text, "logprob": named.logprob, "bytes": utf8}
