"""The common part of the adapters: messages become a question, options those of a query, events pieces of an answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from tandem.client.answers import Trimmer, describe, fingerprint, finish_reason, new_seed, require_answer
from tandem.client.request import build_spec, read_clients_options
from tandem.client.tandem import Tandem
from tandem.conversation import Conversation
from tandem.errors import ConfigError, QueryError
from tandem.events import Answer, Event, TokenEvent

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
        return read_clients_options(options)


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


class Asking:
    """One question to a Tandem, at once or piece by piece, and then its answer."""

    answer: Answer
    num_prompt_tokens: int

    def __init__(self, tandem: Tandem, turns: Sequence[tuple[str, str]], options: Mapping[str, Any]) -> None:
        """turns: role ("system", "user" or "assistant") and text, the question last. Raises QueryError."""
        conversation = Conversation()
        for role, text in turns:
            conversation.add(role, text)
        if not any(role != "system" for role, _ in turns):
            raise QueryError("The last message must be of the user, but there is none; add the question.")
        self._tandem = tandem
        self._question, history = conversation.split()
        configured = tandem.config.party(next(iter(tandem.sites))).system_prompt
        system_prompt = conversation.own_prompt(configured)
        self._options: Any = {"seed": new_seed(), **options}
        if system_prompt is not None:
            self._options["system_prompt"] = system_prompt
        if history:
            self._options["history"] = history
        self._texts = [system_prompt or "", *(turn.content for turn in history), self._question]
        self._events: list[Event] = []
        self._trimmer = Trimmer()

    def query(self) -> None:
        """Asks, and waits for the answer."""
        self.answer = self._tandem.query(self._question, **self._options)
        self.num_prompt_tokens = self._tandem.count_tokens(*self._texts)

    async def aquery(self) -> None:
        """Async twin of `query`."""
        self.answer = await self._tandem.aquery(self._question, **self._options)
        self.num_prompt_tokens = await self._tandem.acount_tokens(*self._texts)

    def stream(self) -> Iterator[str]:
        """Asks, and gives pieces of text, together `answer.text`. Raises QueryError where the query failed."""
        for event in self._tandem.stream(self._question, **self._options):
            if text := self._push(event):
                yield text
        self.answer = require_answer(self._events, self._options["seed"])
        self.num_prompt_tokens = self._tandem.count_tokens(*self._texts)

    async def astream(self) -> AsyncGenerator[str, None]:
        """Async twin of `stream`."""
        async with aclosing(self._tandem.astream(self._question, **self._options)) as events:
            async for event in events:
                if text := self._push(event):
                    yield text
        self.answer = require_answer(self._events, self._options["seed"])
        self.num_prompt_tokens = await self._tandem.acount_tokens(*self._texts)

    def _push(self, event: Event) -> str:
        self._events.append(event)
        return self._trimmer.push(event.text) if isinstance(event, TokenEvent) else ""

    def metadata(self) -> dict[str, Any]:
        """Everything about the answer but its text, as JSON."""
        return {
            "model_name": MODEL,
            "model_provider": MODEL,
            "finish_reason": finish_reason(self.answer),
            "system_fingerprint": fingerprint(self._tandem.described),
            "tandem": describe(self.answer),
        }
