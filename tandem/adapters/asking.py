"""The common part of the adapters: messages become a question, options those of a query, events pieces of an answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from tandem.client.answers import (
    AnswerReader,
    Piece,
    describe,
    fingerprint,
    finish_reason,
    new_seed,
    require_answer,
)
from tandem.client.request import build_spec
from tandem.client.tandem import Tandem
from tandem.conversation import Conversation, Message, texts_of
from tandem.errors import ConfigError, QueryError
from tandem.events import Answer, Event, TokenEvent
from tandem.tools import CallFormat, ToolCall, format_of, grammar_of_calls, names_of, read_tools

MODEL = "tandem"
"""What all parties together are called."""
NOT_OPTIONS = {
    "history": "send the earlier turns as messages",
    "show_drafts": "use Tandem.stream, whose events show them",
}
"""Options of a query that an adapter does not pass on, with what helps."""


class Answering(BaseModel):
    """The fields of a framework's model that is a Tandem.

    Options count for every question; a call's own (`invoke(question, seed=7, mode="speculative")`) count before them.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    tandem: Tandem = Field(exclude=True, repr=False)
    """Stays the caller's to close."""
    seed: int | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    stop: list[str] | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    """Further options of a query, such as {"num_documents": {"device": 2}}: see `QueryOptions`."""

    def model_post_init(self, context: Any, /) -> None:
        """Raises ConfigError or QueryError for options that no query could have."""
        super().model_post_init(context)
        build_spec(self.tandem.config, self.tandem.described, "?", **self.merged({}))

    def merged(self, call: Mapping[str, Any]) -> Any:
        """The options of this model, and before them those of a call; None says nothing.

        `max_tokens` is the frameworks' name of `max_new_tokens`. Raises ConfigError for what messages are for.
        """
        own = {name: getattr(self, name) for name in ("seed", "temperature", "max_tokens", "stop")}
        options: dict[str, Any] = {}
        for layer in (self.options, own, call):
            for name, value in layer.items():
                if value is not None:
                    options["max_new_tokens" if name == "max_tokens" else name] = value
        for name, remedy in NOT_OPTIONS.items():
            if name in options:
                raise ConfigError(f"{name} is no option of a chat model; {remedy}.")
        return options


def check_message(role: str | None, kind: str, parts: Iterable[str | None]) -> str:
    """Its role. kind: what the framework calls it. parts: the types of its parts. Raises QueryError."""
    if role is None:
        raise QueryError(
            f"A message must be of the user, the assistant or the system, but one is of type {kind!r}; leave it out."
        )
    for part in parts:
        if part != "text":
            raise QueryError(f"A message must be text, but one has a part of type {part!r}; send text only.")
    return role


def grammar_of_tools(
    tandem: Tandem, tools: Sequence[Mapping[str, Any]], only: str | None, **options: Any
) -> dict[str, str]:
    """The grammar of an answer that calls these tools. only: the name of one. options: of `grammar_of_calls`. Raises
    QueryError."""
    if (form := call_format(tandem)) is None:
        raise QueryError(
            "The chat template of this model takes no tools; leave them out, or use another model."
        )
    if only is not None and only not in names_of(read_tools(tools)):
        raise QueryError(
            f"tool_choice is {only!r:.60}, but there is no tool of that name; name one of the tools."
        )
    return grammar_of_calls(form, read_tools(tools), only=only, **options)


def call_format(tandem: Tandem) -> CallFormat | None:
    """How the model at home writes calls of tools; None: it takes none."""
    return format_of(tandem.described[next(iter(tandem.sites))])


class Turn(NamedTuple):
    """A message of a framework."""

    role: str  # system, user, assistant or tool
    text: str
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str = ""


def read_turns(tandem: Tandem, turns: Sequence[Turn]) -> tuple[str, list[Message], str | None]:
    """The question, its history, and a system prompt of its own. Raises QueryError."""
    conversation = Conversation()
    for turn in turns:
        conversation.add(*turn)
    if not any(turn.role != "system" for turn in turns):
        raise QueryError("The last message must be of the user, but there is none; add the question.")
    question, history = conversation.split()
    configured = tandem.config.party(next(iter(tandem.sites))).system_prompt
    return question, history, conversation.own_prompt(configured)


class Asking:
    """One question to a Tandem, and its answer piece by piece."""

    def __init__(self, tandem: Tandem, turns: Sequence[Turn], options: Mapping[str, Any]) -> None:
        """turns: the question last, or results of tools. options: of a query. Raises QueryError."""
        self.question, history, system_prompt = read_turns(tandem, turns)
        self.options: Any = {"seed": new_seed(), **options}
        if system_prompt is not None:
            self.options["system_prompt"] = system_prompt
        if history:
            self.options["history"] = history
        tools = options.get("tools")
        names = names_of(read_tools(tools)) if tools else ()
        written = json.dumps(tools) if tools else ""
        self.texts = [system_prompt or "", *texts_of(history), self.question, written]
        self._form, self._names = call_format(tandem), names
        self._fingerprint = fingerprint(tandem.described)
        self._events: list[Event] = []
        self._reader = AnswerReader("", self._form, names)
        self._piece: Piece | None = None  # the whole answer

    def push(self, event: Event) -> str:
        """The text that an event adds to the answer; all pieces together, with `rest()`, are that of `read()`."""
        self._events.append(event)
        return self._reader.push(event.text).text if isinstance(event, TokenEvent) else ""

    def rest(self) -> str:
        """Text that looked like a call until the last event."""
        return self._reader.push("", is_last=True).text

    def read(self, answer: Answer) -> Piece:
        """The text of an answer, and the tools that it calls."""
        self._piece = self._piece or AnswerReader("", self._form, self._names).push(answer.text, is_last=True)
        return self._piece

    def answer(self) -> Answer:
        """After the last event. Raises QueryError where the query failed."""
        return require_answer(self._events, self.options["seed"])

    def metadata(self, answer: Answer) -> dict[str, Any]:
        """Everything about an answer but its text, as JSON."""
        return {
            "model_name": MODEL,
            "model_provider": MODEL,
            "finish_reason": finish_reason(answer, bool(self.read(answer).calls)),
            "system_fingerprint": self._fingerprint,
            "tandem": describe(answer, self.read(answer)),
        }
