"""Requests for completions as OpenAI's clients send them: what they ask for, and what of it is ignored or refused.

    body --read_chat, read_prompt--> CompletionRequest --service.start--> RunningQuery

A field is read, refused with the reason where it would change the answer, or else ignored and named
(`CompletionRequest.ignored`): clients send much that says nothing of the answer's text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tandem.client.request import MAX_TOP_LOGPROBS, QueryOptions
from tandem.conversation import Conversation, Message, texts_of
from tandem.errors import QueryError
from tandem.server.http import ApiError, bad_request, must_be, refusal, unsupported
from tandem.tools import CallFormat, grammar_of_calls, names_of, read_calls, read_tools

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
NO_FIELDS = {"sampling", "history", "max_new_tokens", "num_logprobs", "tools"}
QUERY_OPTIONS = frozenset(QueryOptions.__annotations__) - NO_FIELDS
"""Options that are passed on as they are: OpenAI's `seed`, `stop`, `temperature`, and Tandem's own."""
ROLES = {"developer": "system", **{role: role for role in ("system", "user", "assistant", "tool")}}
TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of the parts of a message that are texts."""
THOUGHT_PARTS = ("thinking", "redacted_thinking")
"""Of those that an earlier answer has and templates leave out."""
FORMATS = ("response_format", "text.format", "output_config.format")
"""Fields that ask for an answer in JSON: of a chat completion, and of the interfaces that are translated into one."""
GRAMMARS = {"guided_json": "json_schema", "guided_regex": "regex", "json_schema": "json_schema"}
"""Fields of vLLM and llama.cpp -> the kind of grammar that they hold."""
NO_TOOLS = (
    "The chat template of this model takes no tools; leave them out, set tool_choice to 'none', or use a model whose "
    "template does, such as Qwen's."
)
TOOL_FIELD_OF = {"tool": "tool_call_id", "assistant": "tool_calls"}
TOOL_FIELDS = ("tools", "tool_choice", "parallel_tool_calls")
NOTHING_KEPT = "nothing is kept between requests; send all messages"
REFUSED: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "functions": ("it is the old form; send tools", ([],)),
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
class HomeModel:
    """The model at home, as requests and their answers depend on it."""

    system_prompt: str  # that is configured
    thinking: str = ""  # of the template: `Template.thinking`
    calls: CallFormat | None = None  # how it writes calls of tools; None: it takes no tools
    has_grammars: bool = False  # at every party


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The tools that an answer may call, and how."""

    written: str = ""  # of `read_tools`; empty: none
    only: str | None = None  # the one that must be called
    is_required: bool = False  # the answer calls one
    is_single: bool = False  # it ends with the first call
    is_strict: bool = False  # calls follow the schemas


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """What a client wants."""

    model: str
    question: str
    options: dict[str, Any]  # of a query
    names: Mapping[str, str]  # of these options, as the request calls them
    texts: tuple[str, ...]  # what the client has written, for its usage
    tools: tuple[str, ...] = ()  # the names of those that the answer may call
    is_single: bool = False  # the answer ends with the first call
    may_think: bool = True  # else a grammar leaves no room for a thought
    num_answers: int = 1
    is_stream: bool = False
    has_usage: bool = False  # a stream ends with its usage
    ignored: tuple[str, ...] = ()  # fields that change nothing, as the request calls them


def read_chat(
    body: Mapping[str, Any], model: HomeModel, *, asked_by: str = "messages", instructions: str = ""
) -> CompletionRequest:
    """A request for a chat completion. Raises ApiError.

    asked_by: the field that holds the messages. instructions: what the request says before all system messages.
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
    own_prompt = conversation.own_prompt(model.system_prompt)
    return _read_rest(body, asked_by, question, tuple(history), own_prompt, model, ignored)


def read_prompt(body: Mapping[str, Any]) -> CompletionRequest:
    """A request for a completion of a text, which is the question. Raises ApiError."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        remedy = "send one request per prompt, and text instead of token ids"
        raise must_be("prompt", "one text", prompt, remedy)
    return _read_rest(body, "prompt", prompt, (), None, None, {})


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
    home: HomeModel | None,
    ignored: dict[str, None],
) -> CompletionRequest:
    """Everything but the question. asked_by: the field that holds it. own_prompt: a system prompt of this request.
    home: None: it calls no tools."""
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
    tools = _read_tools(rest, home) if home else Tools()
    if home and home.calls and tools.written:
        options["tools"] = rest["tools"]
        if tools.is_single and (stop := _stop_after_call(home.calls, options.get("stop"))) is not None:
            options["stop"] = stop
        if tools.is_strict and not home.has_grammars:
            ignored["tools.strict"] = None
    grammars = _grammars(rest, home, tools)
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
    known = {*READ, *QUERY_OPTIONS, *(TOOL_FIELDS if tools.written else ()), asked_by}
    for name, value in rest.items():
        if name in REFUSED and (name, rest.get("function_call")) != ("functions", "none"):
            _refuse(name, value)
        elif name not in known:
            ignored[name] = None
    return CompletionRequest(
        model=model,
        question=question,
        options=options,
        names=names,
        texts=(
            *([own_prompt] if own_prompt else ()),
            *texts_of(history),
            question,
            *([json.dumps(rest["tools"])] if tools.written else ()),
        ),
        tools=names_of(tools.written),
        is_single=tools.is_single,
        may_think=set(grammars) <= {"tools"},
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
    given = message.get("role")
    role = ROLES.get(given) if isinstance(given, str) else None
    known = ("role", "content", TOOL_FIELD_OF.get(role or ""))
    for name in ("audio", "function_call"):
        if message.get(name):
            field = f"{param}.{name}"
            raise unsupported(field, f"{field} is not supported; send text and tool_calls only.")
    field = param.partition("[")[0]
    ignored |= {f"{field}.{name}": None for name in message if message[name] and name not in known}
    if role is None:
        raise must_be(f"{param}.role", "user, assistant, tool, system or developer", given)
    content, calls = message.get("content"), message.get("tool_calls") if role == "assistant" else None
    text = "" if content is None and role == "assistant" else read_content(f"{param}.content", content)
    try:
        tool_calls = read_calls(calls, f"{param}.tool_calls") if calls else ()
        conversation.add(role, text, tool_calls, str(message.get("tool_call_id") or ""))
    except QueryError as error:
        raise bad_request(str(error), error.option or param) from None


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


def _read_tools(rest: Mapping[str, Any], home: HomeModel) -> Tools:
    """Tools that the model must not call are none. Raises ApiError."""
    choice = rest.get("tool_choice", "auto")
    is_single = not _read_flag(rest, "parallel_tool_calls", default=True)
    if not rest.get("tools") or choice == "none":
        return Tools()
    if home.calls is None:
        raise unsupported("tools", NO_TOOLS)
    try:
        written = read_tools(rest["tools"])
    except QueryError as error:
        raise refusal(error) from None
    only, names = _named(choice), names_of(written)
    if choice not in ("auto", "required") and only not in names:
        raise must_be("tool_choice", f"auto, required, none or a function of {', '.join(names):.200}", choice)
    return Tools(
        written=written,
        only=only,
        is_required=only is not None or choice == "required",
        is_single=is_single,
        is_strict=any(tool["function"].get("strict") is True for tool in rest["tools"]),
    )


def _named(choice: Any) -> str | None:
    """The one tool that a request wants to be called."""
    is_named = isinstance(choice, dict) and choice.get("type") == "function"
    function = choice.get("function") if is_named else None
    return function.get("name") if isinstance(function, dict) else None


def _stop_after_call(form: CallFormat, stop: Any) -> Any:
    """Stop texts that end an answer with its first call as well, unless the end of one may be a part of it."""
    stops = [stop] if isinstance(stop, str) else stop or []
    is_mark = any(map(str.isalnum, form.end))
    return [*stops, form.end.strip()] if is_mark and isinstance(stops, list) else stop


def _grammars(rest: Mapping[str, Any], home: HomeModel | None, tools: Tools) -> dict[str, Any]:
    """Grammars of the answer, by the field that asks for one. Raises ApiError."""
    grammars = {name: {kind: rest[name]} for name, kind in GRAMMARS.items() if name in rest}
    for name in FORMATS:
        if name in rest and (schema := _read_format(name, rest[name])) is not None:
            grammars[name] = {"json_schema": schema}
    if home is None or home.calls is None or not tools.written:
        return grammars
    of_text = next((name for name in FORMATS if name in grammars), None)
    if tools.is_required or of_text or (home.has_grammars and tools.is_strict):
        schema = grammars.pop(of_text)["json_schema"] if of_text else None
        field = "tool_choice" if tools.is_required else of_text or "tools"
        grammars[field] = grammar_of_calls(
            home.calls,
            tools.written,
            only=tools.only,
            is_required=tools.is_required,
            is_single=tools.is_single,
            is_strict=tools.is_strict,
            schema=schema,
        )
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


def _read_flag(body: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    value = body.get(name)
    if not isinstance(value, bool | None):
        raise must_be(name, "true or false", value)
    return default if value is None else value


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
