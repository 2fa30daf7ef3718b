"""Requests for completions as OpenAI's clients send them: what they ask for, and what of it is ignored or refused.

    body --read_chat, read_prompt--> CompletionRequest --service.start--> RunningQuery

A field is read, refused with the reason where it would change the answer, or else ignored and named
(`CompletionRequest.ignored`): clients send much that says nothing of the answer's text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tandem.client.request import MAX_TOP_LOGPROBS, QueryOptions
from tandem.conversation import ROLES, Conversation, Message
from tandem.errors import QueryError
from tandem.plugins.server.http import ApiError, bad_request, must_be, unsupported

MODEL = "tandem"
"""The model of all parties together; `only` lets one of them answer."""
ALIASES: Mapping[str, str] = {
    "max_completion_tokens": "max_new_tokens",
    "max_tokens": "max_new_tokens",
    "max_output_tokens": "max_new_tokens",
    "max_new_tokens": "max_new_tokens",
    "stop_sequences": "stop",
}
"""Names in requests -> the option of a query."""
LOGPROBS = ("logprobs", "top_logprobs")
"""In a chat the first is true or false, of a text completion it is the number."""
MAX_ANSWERS, MAX_STOPS = 8, 64
"""Answers of one request, each of which is a query, and texts that end them."""
NO_FIELDS = {"sampling", "history", "max_new_tokens", "num_logprobs"}
QUERY_OPTIONS = frozenset(QueryOptions.__annotations__) - NO_FIELDS
"""Options that are passed on as they are: OpenAI's `seed`, `stop`, `temperature`, and Tandem's own."""
ROLE_OF: Mapping[str, str] = {**{role: role for role in ROLES}, "system": "system", "developer": "system"}
TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of the parts of a message that are texts."""
THOUGHT_PARTS = ("thinking", "redacted_thinking")
"""Of those that an earlier answer has and templates leave out."""
FORMATS = ("response_format", "text.format", "output_config.format")
"""Fields that ask for an answer in JSON: of a chat completion, and of the interfaces that are translated into one."""
GRAMMARS = {"guided_json": "json_schema", "guided_regex": "regex", "json_schema": "json_schema"}
"""Fields of vLLM and llama.cpp -> the kind of grammar that they hold."""
NO_TOOLS = "Tandem does not call tools, but `tandem mcp` offers it to an assistant as one"
TOOL_PARTS = ("tool_use", "tool_result", "function_call", "function_call_output")
"""Types of the parts of a message, or of items instead of one, that are calls of tools or their results."""
NO_CALLS = {"tools": "tool_choice", "functions": "function_call"}
"""Fields with tools -> those by which none of them is to be called."""
NOTHING_KEPT = "nothing is kept between requests; send all messages"
REFUSED: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    **{name: (NO_TOOLS, ([],)) for name in NO_CALLS},
    "suffix": ("an answer follows the prompt", ("",)),
    "echo": ("the answer holds no prompt", (False,)),
    "modalities": ("answers are text; ask for ['text']", (["text"],)),
    "audio": ("answers are text", ()),
    "previous_response_id": (NOTHING_KEPT, ()),
    "conversation": (NOTHING_KEPT, ()),
    "background": (NOTHING_KEPT, (False,)),
    "web_search_options": ("documents are those of the parties, none is of the web", ()),
}
"""Options of OpenAI that would change the answer: why they are not supported, and the values that ask for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """What a client wants."""

    model: str
    question: str
    options: dict[str, Any]  # of a query
    names: Mapping[str, str]  # of these options, as the request calls them
    texts: tuple[str, ...]  # what the client has written, for its usage
    may_think: bool = True  # else a grammar leaves no room for a thought
    num_answers: int = 1
    is_stream: bool = False
    has_usage: bool = False  # a stream ends with its usage
    ignored: tuple[str, ...] = ()  # fields that change nothing, as the request calls them


def read_chat(
    body: Mapping[str, Any], system_prompt: str, *, asked_by: str = "messages", instructions: str = ""
) -> CompletionRequest:
    """A request for a chat completion. Raises ApiError.

    system_prompt: the one that is configured. asked_by: the field that holds the messages. instructions: what the
    request says before all system messages.
    """
    messages = body.get(asked_by)
    if not isinstance(messages, list) or not messages:
        remedy = "add the question as one of role user"
        raise must_be(asked_by, "a list of at least one message", messages, remedy)
    ignored: dict[str, None] = {}
    conversation = Conversation()
    conversation.add("system", instructions)
    for number, message in enumerate(messages):
        _add_message(conversation, f"{asked_by}[{number}]", message, ignored)
    try:
        question, history = conversation.split()
    except QueryError as error:
        raise bad_request(str(error), asked_by) from None
    own_prompt = conversation.own_prompt(system_prompt)
    return _read_rest(body, asked_by, question, tuple(history), own_prompt, ignored)


def read_prompt(body: Mapping[str, Any]) -> CompletionRequest:
    """A request for a completion of a text, which is the question. Raises ApiError."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        remedy = "send one request per prompt, and text instead of token ids"
        raise must_be("prompt", "one text", prompt, remedy)
    return _read_rest(body, "prompt", prompt, (), None, {})


def read_model(body: Mapping[str, Any], *models: str) -> str:
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
    body: Mapping[str, Any],
    asked_by: str,
    question: str,
    history: tuple[Message, ...],
    own_prompt: str | None,
    ignored: dict[str, None],
) -> CompletionRequest:
    """Everything but the question. asked_by: the field that holds it. own_prompt: a system prompt of this request."""
    model = read_model(body, MODEL)
    names = {"history": asked_by, "question": asked_by, "num_logprobs": "logprobs"}
    rest = {name: value for name, value in body.items() if value is not None}
    options: dict[str, Any] = {name: rest[name] for name in rest if name in QUERY_OPTIONS}
    if history:
        options["history"] = history
    if own_prompt is not None:
        _set_once(options, names, "system_prompt", asked_by, own_prompt)
    for name, option in ALIASES.items():
        if name in rest:
            _set_once(options, names, option, name, rest[name])
    grammars = _grammars(rest)
    for name, grammar in grammars.items():
        _set_once(options, names, "grammar", name, grammar)
    if "logit_bias" in rest:
        options["logit_bias"] = _read_biases(rest["logit_bias"])
    if (num_logprobs := _read_logprobs(body, is_chat=asked_by != "prompt")) is not None:
        options["num_logprobs"] = num_logprobs
    stop = options.get("stop")
    if isinstance(stop, list) and len(stop) > MAX_STOPS:
        raise must_be(names.get("stop", "stop"), f"at most {MAX_STOPS} texts", stop)
    is_stream = _read_flag(body, "stream")
    if options.get("show_drafts") and not is_stream:
        raise bad_request(
            "show_drafts shows drafts as they come, which needs a stream; set stream to true.", "stream"
        )
    has_usage = _read_stream_options(rest.get("stream_options"), ignored, is_stream=is_stream)
    known = {*READ, *QUERY_OPTIONS, asked_by}
    for name, value in rest.items():
        if name in REFUSED and rest.get(NO_CALLS.get(name, "")) not in ("none", {"type": "none"}):
            _refuse(name, value)
        elif name not in known:
            ignored[name] = None
    return CompletionRequest(
        model=model,
        question=question,
        options=options,
        names=names,
        texts=(*([own_prompt] if own_prompt else ()), *(turn.content for turn in history), question),
        may_think=not grammars,
        num_answers=_read_number_of_answers(rest),
        is_stream=is_stream,
        has_usage=has_usage,
        ignored=tuple(ignored),
    )


def _set_once(options: dict[str, Any], names: dict[str, str], option: str, name: str, value: Any) -> None:
    """Set an option that the request calls `name`. Raises ApiError where it has it with another value already."""
    if options.setdefault(option, value) != value:
        raise bad_request(
            f"{name} is {value!r:.40}, but {names.get(option, option)} is {options[option]!r:.40}; give one of them.",
            name,
        )
    names.setdefault(option, name)


# ---- messages ------------------------------------------------------------------------------------------------


def _add_message(conversation: Conversation, param: str, message: Any, ignored: dict[str, None]) -> None:
    """Add one. param: its name. ignored: receives fields that change nothing. Raises ApiError for what is no message of
    text."""
    if not isinstance(message, dict):
        raise must_be(param, "an object with role and content", message)
    check_no_tools(param, message)
    if message.get("audio"):
        raise unsupported(f"{param}.audio", f"{param}.audio is not supported; send text only.")
    field = param.partition("[")[0]
    ignored |= {
        f"{field}.{name}": None for name in message if message[name] and name not in ("role", "content")
    }
    given, content = message.get("role"), message.get("content")
    role = ROLE_OF.get(given) if isinstance(given, str) else None
    if role is None:
        raise must_be(f"{param}.role", "user, assistant, system or developer", given)
    is_empty = content is None and role == "assistant"
    conversation.add(role, "" if is_empty else read_content(f"{param}.content", content))


def check_no_tools(param: str, message: Mapping[str, Any]) -> None:
    """Raises ApiError for a message, or an item in its place, that calls a tool or is the result of one."""
    content = message.get("content")
    parts = [message, *content] if isinstance(content, list) else [message]
    is_part = any(isinstance(part, dict) and part.get("type") in TOOL_PARTS for part in parts)
    is_result = message.get("role") in ("tool", "function")
    if is_part or is_result or message.get("tool_calls") or message.get("function_call"):
        raise unsupported(param, f"{param} is a call of a tool or its result: {NO_TOOLS}; leave it out.")


def read_content(param: str, content: Any) -> str:
    """A text, or a list of parts that are texts. Raises ApiError."""
    if isinstance(content, str):
        return content
    texts = []
    for number, part in enumerate(content if isinstance(content, list) else [content]):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        text = part.get("text") if kind in TEXT_PARTS else "" if kind in THOUGHT_PARTS else None
        if not isinstance(text, str):
            raise unsupported(
                f"{param}[{number}]" if isinstance(content, list) else param,
                f"{param} must be text, but it is of type {kind!r:.40}; send text only.",
            )
        texts.append(text)
    return "".join(texts)


# ---- options -------------------------------------------------------------------------------------------------


def _grammars(rest: Mapping[str, Any]) -> dict[str, Any]:
    """Grammars of the answer, by the field that asks for one. Raises ApiError."""
    grammars = {name: {kind: rest[name]} for name, kind in GRAMMARS.items() if name in rest}
    for name in FORMATS:
        if name in rest and (schema := _read_format(name, rest[name])) is not None:
            grammars[name] = {"json_schema": schema}
    return grammars


def _read_format(name: str, form: Any) -> Any:
    """The JSON schema of the answer; None: it is text. name: of the field. Raises ApiError."""
    kind = form.get("type") if isinstance(form, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return form.get("schema", {"type": "object"})  # llama.cpp takes one here
    described = form.get("json_schema", form) if kind == "json_schema" else None
    if not isinstance(described, dict):
        raise must_be(name, "of type text, json_object or json_schema with a schema", form)
    return described.get("schema", {"type": "object"})


def _read_biases(biases: Any) -> Any:
    """JSON names tokens by texts. Raises ApiError for one that is no token id; the query checks the rest."""
    if not isinstance(biases, dict):
        return biases
    for token in biases:
        if not (token.isascii() and token.isdecimal() and len(token) < 10):
            raise must_be(
                "logit_bias", "a mapping of token ids to numbers", token, "name tokens by their ids"
            )
    return {int(token): bias for token, bias in biases.items()}


def _read_number_of_answers(rest: Mapping[str, Any]) -> int:
    """`n`; `best_of` may repeat it, since answers are not compared. Raises ApiError."""
    number = rest.get("n", 1)
    if type(number) is not int or not 1 <= number <= MAX_ANSWERS:
        remedy = "send several requests with different seeds for more answers"
        raise must_be("n", f"a whole number from 1 to {MAX_ANSWERS}", number, remedy)
    if rest.get("best_of", number) != number:
        remedy = "leave it out, since no answer is chosen out of several"
        raise must_be("best_of", f"{number}, as n is", rest["best_of"], remedy)
    return number


def _read_logprobs(body: Mapping[str, Any], *, is_chat: bool) -> int | None:
    """How many likeliest tokens come with each token; None: no log probabilities. Raises ApiError."""
    wanted, top = (body.get(name) for name in LOGPROBS)
    if is_chat:
        _read_flag(body, "logprobs")
    if top and not (is_chat and wanted):
        remedy = "set logprobs to true" if is_chat else "set logprobs to the number"
        raise bad_request(
            f"top_logprobs is {top!r:.40}, but logprobs is {wanted!r:.40}; {remedy}.", "top_logprobs"
        )
    if wanted is None or wanted is False:
        return None
    name, number = ("top_logprobs", top or 0) if is_chat else ("logprobs", wanted)
    if type(number) is not int or not 0 <= number <= MAX_TOP_LOGPROBS:
        raise must_be(name, f"a whole number from 0 to {MAX_TOP_LOGPROBS}", number)
    return number


def _read_flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if not isinstance(value, bool | None):
        raise must_be(name, "true or false", value)
    return bool(value)


def _read_stream_options(options: Any, ignored: dict[str, None], *, is_stream: bool) -> bool:
    """Whether a stream ends with its usage. ignored: receives what changes nothing. Raises ApiError."""
    if not isinstance(options, dict | None):
        raise must_be("stream_options", "an object", options)
    has_usage = _read_flag(options or {}, "include_usage")
    if options and not is_stream:
        ignored["stream_options"] = None
        return False
    ignored |= {f"stream_options.{name}": None for name in options or {} if name != "include_usage"}
    return has_usage


def _refuse(name: str, value: Any) -> None:
    """Raises ApiError unless the value asks for nothing."""
    reason, neutral = REFUSED[name]
    if not any(type(value) is type(each) and value == each for each in neutral):
        raise unsupported(name, f"The option {name} is not supported: {reason}; leave it out.")


READ = {"model", "stream", "stream_options", "n", "best_of", *FORMATS, *GRAMMARS, *ALIASES, *LOGPROBS}
"""Fields that are neither refused nor ignored, besides `QUERY_OPTIONS` and what holds the question."""
