"""Requests for completions, as models of their fields: what they ask for, and what of it is ignored or refused.

    body --read_fields--> Fields --read_request--> CompletionRequest --service.start--> RunningQuery

A field is read, refused with the reason where it would change the answer, or else ignored and named
(`CompletionRequest.ignored`): clients send much that says nothing of the answer's text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, AliasPath, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from tandem.client.request import MAX_TOP_LOGPROBS, QueryOptions, read_clients_options
from tandem.conversation import Conversation
from tandem.errors import QueryError
from tandem.plugins.server.http import UNSUPPORTED, ApiError, bad_request, must_be, read_fields, unsupported

MODEL = "tandem"  # the model of all parties together; `only` lets one of them answer
MAX_ANSWERS, MAX_STOPS = 8, 64  # of one request: answers, each of which is a query, and texts that end them
MESSAGES = ("messages", "input")
"""The field that holds the messages: of a chat completion, and of OpenAI's Responses."""
FORMATS = ("response_format", "text.format", "output_config.format")
"""The field that asks for an answer in JSON: of a chat completion, of OpenAI's Responses, of Anthropic's Messages."""
GRAMMARS = {"guided_json": "json_schema", "guided_regex": "regex", "json_schema": "json_schema"}
"""Fields of vLLM and llama.cpp -> the kind of grammar that they hold."""
OPTIONS: Mapping[str, str] = {
    **{name: name for name in QueryOptions.__annotations__.keys() - {"sampling", "history", "num_logprobs"}},
    **dict.fromkeys(("max_completion_tokens", "max_tokens", "max_output_tokens"), "max_new_tokens"),
    "stop_sequences": "stop",
    **dict.fromkeys(GRAMMARS, "grammar"),
}
"""Names in requests -> the option of a query."""
NO_TOOLS = "Tandem does not call tools, but `tandem mcp` offers it to an assistant as one"
TOOL_PARTS = ("tool_use", "tool_result", "function_call", "function_call_output")
"""Types of the parts of a message, or of items instead of one, that are calls of tools or their results."""
NO_CALLS = {"tools": "tool_choice", "functions": "function_call"}
"""Fields with tools -> those that say which of them is to be called."""
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


class Body(BaseModel):
    """A JSON object, in which null stands for what is left out; fields that it does not declare are kept."""

    model_config = ConfigDict(strict=True, extra="allow")

    @model_validator(mode="before")
    @classmethod
    def _leave_out_null(cls, body: Any) -> Any:
        """Pydantic would drop a name that holds half a surrogate pair, which is to be named."""
        if not isinstance(body, dict):
            return body
        return {name.encode(errors="replace").decode(): body[name] for name in body if body[name] is not None}

    @property
    def others(self) -> dict[str, Any]:
        """The fields that it does not declare."""
        return self.model_extra or {}


class ContentPart(Body):
    """A part of a message: a text, or what an earlier answer thought, which templates leave out."""

    type: Literal["text", "input_text", "output_text", "thinking", "redacted_thinking"]
    text: str = ""


Content = Annotated[
    list[ContentPart],
    BeforeValidator(lambda given: [{"type": "text", "text": given}] if isinstance(given, str) else given),
]


def text_of(content: Iterable[ContentPart]) -> str:
    """The texts of all parts, each on lines of its own."""
    return "\n".join(part.text for part in content if part.text)


class ChatMessage(Body):
    """A message of a conversation, or what an earlier answer thought before it."""

    type: Literal["message", "reasoning"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content = []
    id: Any = None  # of earlier responses, as the status
    status: Any = None

    @model_validator(mode="before")
    @classmethod
    def _check_kind(cls, message: Any) -> Any:
        if not isinstance(message, dict):
            return message
        if _is_of_tools(message):
            raise PydanticCustomError(UNSUPPORTED, f"must be no call of a tool, nor its result: {NO_TOOLS}")
        if message.get("audio"):
            raise PydanticCustomError(UNSUPPORTED, "must be text, without audio")
        return {**message, "role": "assistant"} if message.get("type") == "reasoning" else message


def _is_of_tools(message: Mapping[str, Any]) -> bool:
    """Whether a message, or an item in its place, calls a tool or is the result of one."""
    content = message.get("content")
    parts = [message, *content] if isinstance(content, list) else [message]
    is_part = any(isinstance(part, dict) and part.get("type") in TOOL_PARTS for part in parts)
    is_result = message.get("role") in ("tool", "function")
    return bool(is_part or is_result or message.get("tool_calls") or message.get("function_call"))


class AnswerFormat(Body):
    """The form of an answer: a text, any JSON object, or JSON that follows a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] = {}  # of chat completions: {"schema": ...}
    own_schema: Any = Field(default={"type": "object"}, alias="schema")  # of responses, and of llama.cpp


class StreamOptions(Body):
    """Options of a stream."""

    include_usage: bool = False


NumLogprobs = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]


class Fields(Body):
    """Fields that all requests for completions have, but for the question and the options of a query."""

    n: Annotated[int, Field(ge=1, le=MAX_ANSWERS)] = 1
    best_of: int | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    response_format: AnswerFormat | None = Field(
        default=None,
        validation_alias=AliasChoices(*(AliasPath(*name.split(".")) for name in FORMATS)),
    )


class ChatFields(Fields):
    """A request that holds messages."""

    messages: Annotated[
        list[ChatMessage],
        BeforeValidator(
            lambda given: [{"role": "user", "content": given}] if isinstance(given, str) else given
        ),
    ] = Field(min_length=1, validation_alias=AliasChoices(*MESSAGES))
    instructions: Content = Field(default=[], validation_alias=AliasChoices("instructions", "system"))
    logprobs: bool = False
    top_logprobs: NumLogprobs = 0


class TextFields(Fields):
    """A request that holds a text."""

    prompt: Annotated[
        str, BeforeValidator(lambda given: given[0] if isinstance(given, list) and len(given) == 1 else given)
    ]
    logprobs: NumLogprobs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """A client's request, ready to be asked."""

    question: str
    options: dict[str, Any]  # of a query
    names: Mapping[str, str]  # of these options, as the request calls them
    texts: tuple[str, ...]  # what the client has written, for its usage
    may_think: bool  # else a grammar leaves no room for a thought
    fields: Fields
    ignored: tuple[str, ...]  # fields that change nothing, as the request calls them


def read_chat(body: Mapping[str, Any], system_prompt: str) -> CompletionRequest:
    """A request with messages. system_prompt: the one that is configured. Raises ApiError."""
    read_model(body, MODEL)
    fields = read_fields(ChatFields, body)
    asked_by = next(name for name in MESSAGES if name in body)
    conversation = Conversation()
    conversation.add("system", text_of(fields.instructions))
    for message in fields.messages:
        if message.type == "message":
            role = "system" if message.role == "developer" else message.role
            conversation.add(role, text_of(message.content))
    try:
        question, history = conversation.split()
    except QueryError as error:
        raise bad_request(str(error), asked_by) from None
    if fields.top_logprobs and not fields.logprobs:
        raise must_be("top_logprobs", "0 without logprobs", fields.top_logprobs, "set logprobs to true")
    asked: dict[str, tuple[str, Any]] = {"question": (asked_by, question)}
    if history:
        asked["history"] = (asked_by, tuple(history))
    if (own_prompt := conversation.own_prompt(system_prompt)) is not None:
        asked["system_prompt"] = (asked_by, own_prompt)
    if fields.logprobs:
        asked["num_logprobs"] = ("logprobs", fields.top_logprobs)
    others = (item for message in fields.messages for item in message.others.items())
    ignored = [f"{asked_by}.{name}" for name, value in others if value]
    return _read_rest(body, fields, asked, ignored)


def read_prompt(body: Mapping[str, Any]) -> CompletionRequest:
    """A request for a completion of a text, which is the question. Raises ApiError."""
    read_model(body, MODEL)
    fields = read_fields(TextFields, body)
    asked: dict[str, tuple[str, Any]] = {"question": ("prompt", fields.prompt)}
    if fields.logprobs is not None:
        asked["num_logprobs"] = ("logprobs", fields.logprobs)
    return _read_rest(body, fields, asked, [])


def read_model(body: Mapping[str, Any], *models: str) -> str:
    """The model that a request names, one of these. Raises ApiError (404)."""
    model = body.get("model")
    if model is None:
        raise bad_request(f'The request names no model; set "model" to {models[0]!r}.', "model")
    if model not in models:
        message = f"There is no model {model!r:.100}; use {' or '.join(models)}."
        raise ApiError(404, message, param="model", code="model_not_found")
    return str(model)


def _read_rest(
    body: Mapping[str, Any], fields: Fields, asked: dict[str, tuple[str, Any]], ignored: list[str]
) -> CompletionRequest:
    """asked: name in the request and value of the question, and of options that it has in other forms. ignored: fields
    of messages that change nothing."""
    if fields.best_of not in (None, fields.n):
        raise must_be("best_of", f"{fields.n}, as n is", fields.best_of, "leave it out, since none is chosen")
    form = fields.response_format
    if form is not None and form.type != "text":
        name = next(name for name in FORMATS if name.partition(".")[0] in body)
        asked["grammar"] = (name, {"json_schema": form.json_schema.get("schema", form.own_schema)})
    options = {option: value for option, (_, value) in asked.items()}
    names = {option: name for option, (name, _) in asked.items()}
    question = options.pop("question")
    for name, value in fields.others.items():
        if name in OPTIONS:
            option = OPTIONS[name]
            value = {GRAMMARS[name]: value} if name in GRAMMARS else value
            if options.setdefault(option, value) != value:
                other = f"{names.get(option, option)} is {options[option]!r:.40}"
                raise bad_request(f"{name} is {value!r:.40}, but {other}; give one of them.", name)
            names[option] = name
        elif name in REFUSED and fields.others.get(NO_CALLS.get(name, "")) not in ("none", {"type": "none"}):
            reason, neutral = REFUSED[name]
            if not any(type(value) is type(each) and value == each for each in neutral):
                raise unsupported(name, f"The option {name} is not supported: {reason}; leave it out.")
        elif name != "model":
            ignored.append(name)
    stop = options.get("stop")
    if isinstance(stop, list) and len(stop) > MAX_STOPS:
        raise must_be(names["stop"], f"at most {MAX_STOPS} texts", stop)
    if options.get("show_drafts") and not fields.stream:
        raise must_be("stream", "true", False, "show_drafts shows drafts as they come")
    if not fields.stream and "stream_options" in fields.model_fields_set:
        ignored.append("stream_options")
    ignored += [f"stream_options.{name}" for name in fields.stream_options.others if fields.stream]
    written = (options.get("system_prompt"), *(turn.content for turn in options.get("history", ())), question)
    return CompletionRequest(
        question=question,
        options=read_clients_options(options),
        names=names,
        texts=tuple(filter(None, written)),
        may_think=names.get("grammar", "grammar") == "grammar",
        fields=fields,
        ignored=tuple(ignored),
    )
