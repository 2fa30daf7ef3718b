"""Requests for completions in OpenAI's form become a question and options of a query.

Every field of a request is read, refused by its name, or one of those values that change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tandem.client.request import QueryOptions
from tandem.conversation import ROLES, Message
from tandem.server.errors import ApiError, bad_request, unknown, unsupported
from tandem.server.logprobs import OPTIONS as LOGPROBS
from tandem.server.logprobs import read_logprobs

MODEL = "tandem"
"""The model of all parties together; `only` lets one of them answer."""
ANSWER_LENGTHS = ("max_completion_tokens", "max_tokens", "max_new_tokens")
"""Names of the same option."""
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
    turns = [_read_message(number, message) for number, message in enumerate(messages)]
    if turns[0][0] == "system":
        _check_system_prompt(turns.pop(0)[1], system_prompt)
    first = len(messages) - len(turns)
    for number, (role, _) in enumerate(turns, first):
        if role != ROLES[(number - first) % 2]:
            raise bad_request(
                f"Messages alternate between user and assistant and begin with user, but message {number} is of "
                f"{role}; correct the order.",
                f"messages[{number}].role",
            )
    if len(turns) % 2 == 0:
        raise bad_request(
            f"The last message must be of user, but there are {len(turns)} turns; add the question.",
            "messages",
        )
    *history, (_, question) = turns
    messages = tuple(Message(ROLES[number % 2], text) for number, (_, text) in enumerate(history))
    return _read_rest(body, "messages", question, messages)


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


def check_model(body: Mapping[str, Any], *models: str) -> str:
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


def _read_rest(
    body: Mapping[str, Any], asked_by: str, question: str, history: tuple[Message, ...]
) -> CompletionRequest:
    """Everything but the question. asked_by: the field that holds it."""
    model = check_model(body, MODEL)
    options: dict[str, Any] = {"history": history} if history else {}
    names = {}
    if (logprobs := read_logprobs(body, is_chat=asked_by == "messages")) is not None:
        options["num_logprobs"], names["num_logprobs"] = logprobs, "logprobs"
    names |= {"history": asked_by, "question": asked_by}
    rest = {
        name: value
        for name, value in body.items()
        if value is not None and name not in ("model", asked_by, "stream", "stream_options", *LOGPROBS)
    }
    for name, value in rest.items():
        if name in QUERY_OPTIONS:
            options[name], names[name] = value, name
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


def _read_message(number: int, message: Any) -> tuple[str, str]:
    """Role and text. Raises ApiError for what is no message of text."""
    param = f"messages[{number}]"
    if not isinstance(message, dict):
        raise bad_request(
            f"{param} must be an object with role and content, but it is {message!r:.60}.", param
        )
    for name, value in message.items():
        if name not in ("role", "content") and value:
            raise unsupported(f"{param}.{name}", f"{param}.{name} is not supported; leave it out.")
    role = message.get("role")
    role = "system" if role == "developer" else role
    if role not in (*ROLES, "system") or (role == "system" and number > 0):
        raise bad_request(
            f"{param}.role must be user or assistant (or system, for the first message), but it is {role!r:.40}.",
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


def _check_system_prompt(text: str, configured: str) -> None:
    """The system message is a setting of the party, part of its stored caches; a client can only repeat it."""
    if text.strip() not in ("", configured.strip()):
        raise unsupported(
            "messages[0].role",
            "A system message that differs from the configured one is not supported; leave it out, or set "
            "device.system_prompt and cloud.system_prompt of the server.",
        )


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
