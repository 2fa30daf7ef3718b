"""OpenAI's interface: chat and text completions, whole or in chunks, models and embeddings.

    body --read_chat, read_prompt--> CompletionRequest --Service.start--> RunningQuery --Completion--> JSON or events

Every field of a request is read, refused by its name, or one of those values that change nothing.
"""

from __future__ import annotations

import base64
import json
import secrets
import struct
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from tandem.client.answers import (
    FINISH_REASONS,
    Trimmer,
    count_usage,
    describe,
    new_seed,
    require_answer,
    to_plain,
)
from tandem.client.request import MAX_TOP_LOGPROBS, QueryOptions
from tandem.conversation import ROLES, Message, join_turns
from tandem.errors import TandemError
from tandem.events import Answer, Event, ProvisionalEvent, RetractEvent, TokenEvent, TokenLogprob
from tandem.server.http import (
    ApiError,
    EventStream,
    bad_request,
    compact,
    encode_event,
    failure,
    read_object,
    unknown,
    unsupported,
    while_connected,
)
from tandem.server.queries import RunningQuery, Service, service_of

router = APIRouter(prefix="/v1")
MODEL = "tandem"
"""The model of all parties together; `only` lets one of them answer."""
MAX_INPUTS = 2048
"""Texts of one request for embeddings, as OpenAI has it."""
MAX_INPUT_BYTES = 65_536
"""Of each of them: an embedder reads the beginning alone, and a longer one would keep it from searching."""
ANSWER_LENGTHS = ("max_completion_tokens", "max_tokens", "max_new_tokens")
"""Names of the same option."""
LOGPROBS = ("logprobs", "top_logprobs")
"""In a chat the first is true or false, of a text completion it is the number."""
QUERY_OPTIONS = frozenset(QueryOptions.__annotations__) - {
    "sampling",
    "history",
    "max_new_tokens",
    "num_logprobs",
    "resumable",
}
"""Options that are passed on as they are: OpenAI's `seed`, `stop`, `temperature`, and Tandem's own."""
UNTOLD = frozenset({"user", "safety_identifier", "prompt_cache_key"})
"""What clients say of themselves; nothing here depends on it, and it is not kept."""
WITHOUT_EFFECT: Mapping[str, Sequence[Any]] = {
    "n": (1,),
    "best_of": (1,),
    "top_p": (1, 1.0),
    "frequency_penalty": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "logit_bias": ({},),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "metadata": ({},),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
}
"""Options of OpenAI that are not supported, each with the values at which it asks for nothing."""
REASONS: Mapping[str, str] = {
    "top_p": "use top_k or min_p",
    "n": "send several requests with different seeds",
}


# ---- the routes ----------------------------------------------------------------------------------------------


@router.post("/chat/completions")
async def complete_chat(request: Request) -> Response:
    """Answer the last message of a conversation."""
    service = service_of(request)
    body = await read_object(request, service.limits.max_body_bytes)
    return await _complete(request, service, CHAT, read_chat(body, service.system_prompt))


@router.post("/completions")
async def complete_text(request: Request) -> Response:
    """Answer a prompt, which is the question."""
    service = service_of(request)
    body = await read_object(request, service.limits.max_body_bytes)
    return await _complete(request, service, TEXT, read_prompt(body))


@router.get("/models")
async def list_models(request: Request) -> dict[str, Any]:
    """The model of all parties together, and the embedder."""
    return {"object": "list", "data": [_model(name) for name in _model_names(service_of(request))]}


@router.get("/models/{name:path}")
async def show_model(request: Request, name: str) -> dict[str, Any]:
    """One of them."""
    return _model(_read_model({"model": name}, *_model_names(service_of(request))))


@router.post("/embeddings")
async def embed(request: Request) -> dict[str, Any]:
    """Unit vectors of texts, by the embedder of a party that runs here."""
    service = service_of(request)
    body = await read_object(request, service.limits.max_body_bytes)
    model = _read_model(body, *_model_names(service)[1:])
    texts = _read_inputs(body)
    form = body.get("encoding_format") or "float"
    if form not in ("float", "base64"):
        raise bad_request(
            f"encoding_format must be float or base64, but it is {form!r:.40}.", "encoding_format"
        )
    for name, value in body.items():
        if name not in ("model", "input", "encoding_format", *UNTOLD) and value is not None:
            raise unsupported(name, f"The option {name!r:.60} of embeddings is not supported; leave it out.")
    try:
        vectors = await while_connected(request.receive, service.embed(texts))
        num_tokens = await service.tandem.acount_tokens(*texts)
    except TandemError as error:
        raise failure(error) from None
    return {
        "object": "list",
        "model": model,
        "data": [
            {"object": "embedding", "index": index, "embedding": _encode(vector, form)}
            for index, vector in enumerate(vectors)
        ],
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }


async def _complete(request: Request, service: Service, shape: Shape, wanted: CompletionRequest) -> Response:
    """Respond once the answer has begun; until then whatever goes wrong is a response of its own."""
    if wanted.options.get("seed") is None:
        wanted.options["seed"] = new_seed()
    query = service.start(wanted.question, wanted.options, wanted.names)
    try:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(query.close)
            await while_connected(request.receive, query.fetch_first_token())
            num_prompt_tokens = await service.tandem.acount_tokens(*wanted.texts)  # of what was not refused
            completion = Completion(shape, wanted, service.fingerprint, num_prompt_tokens)
            if not wanted.is_stream:
                return JSONResponse(await while_connected(request.receive, completion.whole(query)))
            stack.pop_all()  # the response closes the query
            return EventStream(completion.chunks(query), query.close, service.limits.send_timeout_s)
    except TandemError as error:
        raise failure(error, wanted.names) from None


def _model_names(service: Service) -> list[str]:
    return [MODEL, *service.embedders]


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "tandem"}


def _encode(vector: Sequence[float], form: str) -> Sequence[float] | str:
    """base64 is of little-endian float32."""
    if form == "float":
        return vector
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


# ---- what a client wants -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """What a client wants."""

    model: str
    question: str
    options: dict[str, Any]  # of a query
    names: Mapping[str, str]  # of these options, as the request calls them
    texts: tuple[str, ...]  # what the client has written, for its usage
    is_stream: bool = False
    has_usage: bool = False  # a stream ends with its usage


def read_chat(body: Mapping[str, Any], system_prompt: str) -> CompletionRequest:
    """A request for a chat completion. system_prompt: the one that is configured. Raises ApiError."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad_request(
            f"messages must be a list of at least one message, but it is {messages!r:.60}; add the question as one of "
            "role user.",
            "messages",
        )
    read = [_read_message(number, message) for number, message in enumerate(messages)]
    for number, (role, text) in enumerate(read):
        if role == "system":
            _check_system_prompt(number, text, system_prompt)
    turns = join_turns((role, text) for role, text in read if role != "system")
    *history, last = turns
    if last.role != "user":
        raise bad_request(
            "The last message must be of user, but it is of assistant; add the question.", "messages"
        )
    return _read_rest(body, "messages", last.content, tuple(history))


def read_prompt(body: Mapping[str, Any]) -> CompletionRequest:
    """A request for a completion of a text, which is the question. Raises ApiError."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise bad_request(
            f"prompt must be one text, but it is {prompt!r:.60}; send one request per prompt, and text instead of "
            "token ids.",
            "prompt",
        )
    return _read_rest(body, "prompt", prompt, ())


def _read_rest(
    body: Mapping[str, Any], asked_by: str, question: str, history: tuple[Message, ...]
) -> CompletionRequest:
    """Everything but the question. asked_by: the field that holds it."""
    model = _read_model(body, MODEL)
    options: dict[str, Any] = {"history": history} if history else {}
    names = {"history": asked_by, "question": asked_by, "num_logprobs": "logprobs"}
    if (num_logprobs := _read_logprobs(body, is_chat=asked_by == "messages")) is not None:
        options["num_logprobs"] = num_logprobs
    read = ("model", asked_by, "stream", "stream_options", *LOGPROBS)
    rest = {name: value for name, value in body.items() if value is not None and name not in read}
    for name, value in rest.items():
        if name in QUERY_OPTIONS:
            options[name] = value
        elif name not in ANSWER_LENGTHS:
            _refuse(name, value)
    for name in [name for name in ANSWER_LENGTHS if name in rest]:
        if options.setdefault("max_new_tokens", rest[name]) != rest[name]:
            raise bad_request(
                f"{name} is {rest[name]!r:.40}, but {names['max_new_tokens']} is {options['max_new_tokens']!r:.40}; "
                "give one of them.",
                name,
            )
        names.setdefault("max_new_tokens", name)
    is_stream = _read_flag(body, "stream")
    if options.get("show_drafts") and not is_stream:
        raise bad_request(
            "show_drafts shows drafts as they come, which needs a stream; set stream to true.", "stream"
        )
    return CompletionRequest(
        model=model,
        question=question,
        options=options,
        names=names,
        texts=(*(turn.content for turn in history), question),
        is_stream=is_stream,
        has_usage=_read_stream_options(body.get("stream_options"), is_stream=is_stream),
    )


def _read_model(body: Mapping[str, Any], *models: str) -> str:
    """The model that a request names, one of these. Raises ApiError (404)."""
    model = body.get("model")
    if model is None:
        raise bad_request(f'The request names no model; set "model" to {models[0]!r}.', "model")
    if model not in models:
        raise ApiError(
            404,
            f"There is no model {model!r:.100}; use {' or '.join(models)}.",
            param="model",
            code="model_not_found",
        )
    return str(model)


def _read_message(number: int, message: Any) -> tuple[str, str]:
    """Role and text. Raises ApiError for what is no message of text."""
    param = f"messages[{number}]"
    if not isinstance(message, dict):
        raise bad_request(
            f"{param} must be an object with role and content, but it is {message!r:.60}.", param
        )
    for name, value in message.items():
        if name not in ("role", "content", "name") and value:
            raise unsupported(f"{param}.{name}", f"{param}.{name} is not supported; leave it out.")
    role = message.get("role")
    role = "system" if role == "developer" else role
    if role not in (*ROLES, "system"):
        raise bad_request(
            f"{param}.role must be user, assistant or system, but it is {role!r:.40}.",
            f"{param}.role",
        )
    return role, _read_content(f"{param}.content", message.get("content"))


def _read_content(param: str, content: Any) -> str:
    """A text, or a list of parts that are texts. Raises ApiError."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    for number, part in enumerate(parts):
        if not (isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise unsupported(
                f"{param}[{number}]" if isinstance(content, list) else param,
                f"{param} must be text, but it is of type {kind!r:.40}; send text only.",
            )
    return "".join(part["text"] for part in parts)


def _check_system_prompt(number: int, text: str, configured: str) -> None:
    """The system message is a setting of the party, part of its stored caches; a client can only repeat it."""
    if text.strip() not in ("", configured.strip()):
        raise unsupported(
            f"messages[{number}].role",
            "A system message that differs from the configured one is not supported; leave it out, or set "
            "device.system_prompt and cloud.system_prompt of the server.",
        )


def _read_logprobs(body: Mapping[str, Any], *, is_chat: bool) -> int | None:
    """How many likeliest tokens come with each token; None: no log probabilities. Raises ApiError."""
    wanted, top = (body.get(name) for name in LOGPROBS)
    if is_chat and not isinstance(wanted, bool | None):
        raise bad_request(f"logprobs must be true or false, but it is {wanted!r:.40}.", "logprobs")
    if top and not (is_chat and wanted):
        remedy = "set logprobs to true" if is_chat else "set logprobs to the number"
        raise bad_request(
            f"top_logprobs is {top!r:.40}, but logprobs is {wanted!r:.40}; {remedy}.", "top_logprobs"
        )
    if wanted is None or wanted is False:
        return None
    name, number = ("top_logprobs", top or 0) if is_chat else ("logprobs", wanted)
    if type(number) is not int or not 0 <= number <= MAX_TOP_LOGPROBS:
        raise bad_request(
            f"{name} must be a whole number from 0 to {MAX_TOP_LOGPROBS}, but it is {number!r:.40}.", name
        )
    return number


def _read_flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if not isinstance(value, bool | None):
        raise bad_request(f"{name} must be true or false, but it is {value!r:.40}.", name)
    return bool(value)


def _read_stream_options(options: Any, *, is_stream: bool) -> bool:
    """Whether a stream ends with its usage. Raises ApiError."""
    if options is None:
        return False
    if not isinstance(options, dict) or not is_stream:
        raise bad_request("stream_options is an object for streams; set stream to true.", "stream_options")
    for name, value in options.items():
        if name != "include_usage" and value:
            raise unsupported(
                f"stream_options.{name}", f"stream_options.{name} is not supported; leave it out."
            )
    return _read_flag(options, "include_usage")


def _read_inputs(body: dict[str, Any]) -> Sequence[str]:
    """The texts to embed. Raises ApiError."""
    given = body.get("input")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise bad_request(
            f"input must be a text or a list of texts, none of them empty, but it is {given!r:.60}.", "input"
        )
    if len(texts) > MAX_INPUTS:
        raise bad_request(f"input holds {len(texts)} texts, but a request has at most {MAX_INPUTS}.", "input")
    longest = max(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    if longest > MAX_INPUT_BYTES:
        raise bad_request(
            f"input holds a text of {longest} bytes, but one has at most {MAX_INPUT_BYTES}; cut it into parts.",
            "input",
        )
    return texts


def _refuse(name: str, value: Any) -> None:
    """Raises ApiError unless the value asks for nothing."""
    if name in UNTOLD:
        return
    if name not in WITHOUT_EFFECT:
        raise unknown(name, [*QUERY_OPTIONS, *ANSWER_LENGTHS, *LOGPROBS, "stream", "stream_options"])
    neutral = WITHOUT_EFFECT[name]
    if not any(type(value) is type(each) and value == each for each in neutral):
        reason = f": {REASONS[name]}" if name in REASONS else ""
        allowed = f", or set it to {neutral[0]!r}" if neutral else ""
        raise unsupported(name, f"The option {name} is not supported{reason}; leave it out{allowed}.")


# ---- what it gets --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shape:
    """The JSON form of a kind of completion."""

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

    def logprobs(self, tokens: Iterable[TokenEvent], num_chars: int = 0) -> dict[str, Any]:
        """The log probabilities of the tokens of a completion, or of a part. num_chars: length of the answer before
        them."""
        return _in_chat_form(tokens) if self.is_chat else _in_text_form(tokens, num_chars)


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
        message = self._shape.message(answer.text)
        choice = self._choice(message, FINISH_REASONS[answer.reason], self._logprobs(answer.tokens))
        return {**self._head, "choices": [choice], "usage": self._usage(answer), "tandem": describe(answer)}

    async def chunks(self, query: RunningQuery) -> AsyncIterator[bytes]:
        """The completion as server-sent events, an error as the last one."""
        trimmer, events, text = Trimmer(), list[Event](), ""
        yield self._chunk(self._shape.delta("", is_first=True))
        try:
            async for event in query:
                if isinstance(event, ProvisionalEvent | RetractEvent):
                    name = "provisional" if isinstance(event, ProvisionalEvent) else "retract"
                    yield self._chunk(self._shape.delta(""), tandem={name: to_plain(event)})
                    continue
                if isinstance(event, TokenEvent):
                    logprobs = self._logprobs([event], len(text.lstrip()))
                    text += event.text
                    if (shown := trimmer.push(event.text)) or logprobs:
                        yield self._chunk(self._shape.delta(shown), logprobs=logprobs)
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

    def _logprobs(self, tokens: Iterable[TokenEvent], num_chars: int = 0) -> dict[str, Any] | None:
        """The log probabilities of these tokens, if they are wanted. num_chars: length of the answer before them."""
        is_wanted = "num_logprobs" in self._request.options
        return self._shape.logprobs(tokens, num_chars) if is_wanted else None

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
    return {
        "token": named.text,
        "logprob": named.logprob,
        "bytes": None if named.utf8 is None else list(named.utf8),
    }
