"""Earlier turns of a conversation: what a question may refer to, and how it is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import ConfigDict
from typing_extensions import TypedDict

from tandem.errors import QueryError

Role = Literal["user", "assistant"]
ROLES: tuple[Role, Role] = ("user", "assistant")
SYSTEM_PROMPT = "Answer the question briefly. Where a document is given, rely on what it says."
"""The default system message of a chat model."""
THOUGHT, THOUGHT_END = "<think>", "</think>"
"""How reasoning models mark what they think before they answer."""


KNOWN_FIELDS = ConfigDict(extra="forbid")
"""For what other parties write: an unknown field might change the answer."""


class MessageDict(TypedDict):
    """A message as chat libraries write it."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Message:
    """One turn: what the user asked, or what was answered."""

    __pydantic_config__: ClassVar[ConfigDict] = KNOWN_FIELDS

    role: Role
    content: str


class Frame(NamedTuple):
    """The part of a query, besides its turns, that a template gets."""

    day: str = ""  # as 2026-11-25, for a template that writes it; empty: always the same
    system_prompt: str | None = None  # instead of the party's own; empty: none
    ends_thought: bool = False  # whether a model that thinks first is to answer at once


NO_FRAME = Frame()


def read_history(messages: Sequence[Message | MessageDict] | None) -> tuple[Message, ...]:
    """Questions and answers in turn, oldest first, the last one an answer; none for None. Raises QueryError.

    messages: {"role": "user" or "assistant", "content": text}, or `Message`.
    """
    if isinstance(messages, (str, Mapping)) or not isinstance(messages or (), Sequence):
        raise QueryError(
            f"history is a list of messages, but it is {messages!r:.100}; give a list.", option="history"
        )
    turns = tuple(_read_message(number, message) for number, message in enumerate(messages or ()))
    for number, turn in enumerate(turns):
        if turn.role != ROLES[number % 2]:
            raise QueryError(
                f"history alternates between user and assistant and begins with user, but message {number} is of "
                f"{turn.role}; correct the order.",
                option="history",
            )
    if len(turns) % 2:
        raise QueryError(
            f"history ends with an answer, but its last message is of user ({turns[-1].content!r:.60}); "
            "ask that as the question.",
            option="history",
        )
    return turns


class Conversation:
    """Messages as chat clients send them, in any order that templates take."""

    def __init__(self) -> None:
        self._system: list[str] = []
        self._turns = [Message("user", "")]

    def add(self, role: str, text: str) -> None:
        """Add a message. Neighbours of one role are one turn, and a greeting answers nothing.

        role: of `Role`, or system.
        """
        last = self._turns[-1]
        if role == "system":
            self._system.append(text)
        elif role == last.role:
            joined = "\n\n".join(part for part in (last.content, text) if part)
            self._turns[-1] = Message(last.role, joined)
        else:
            self._turns.append(Message("user" if role == "user" else "assistant", text))

    def own_prompt(self, configured: str) -> str | None:
        """The system messages, joined in order; None where there is none, or they repeat `configured`."""
        system = "\n\n".join(text for text in self._system if text.strip())
        return system if system.strip() not in ("", configured.strip()) else None

    def split(self) -> tuple[str, list[Message]]:
        """The question and its history, as of a query. Raises QueryError where it ends with an answer."""
        *history, question = self._turns
        if question.role != "user":
            raise QueryError("The last message must be of user, but it is of assistant; add the question.")
        return question.content, history


def _read_message(number: int, message: Any) -> Message:
    if isinstance(message, Message):
        return message
    is_message = isinstance(message, Mapping) and {"role", "content"} <= set(message)
    if not is_message or not isinstance(message["content"], str) or message.get("tool_calls"):
        raise QueryError(
            f'A message of history is {{"role": "user" or "assistant", "content": text}}, but message {number} is '
            f"{message!r:.100}; correct it.",
            option="history",
        )
    role = message["role"]
    if role not in ROLES:
        remedy = "set system_prompt" if role == "system" else "use one of the two"
        raise QueryError(
            f"A message of history has the role user or assistant, but message {number} has {role!r:.40}; {remedy}.",
            option="history",
        )
    return Message(role, message["content"])
