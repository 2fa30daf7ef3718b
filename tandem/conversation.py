"""Earlier turns of a conversation: what a question may refer to, and how it is checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypedDict

from tandem.errors import QueryError

Role = Literal["user", "assistant"]
ROLES: tuple[Role, Role] = ("user", "assistant")
SYSTEM_PROMPT = "Answer the question briefly. Where a document is given, rely on what it says."
"""The default system message of a chat model."""
THOUGHT, THOUGHT_END = "<think>", "</think>"
"""How reasoning models mark what they think before they answer."""
EARLIER_CHARS = 600
"""Of earlier questions that documents are retrieved by: embedders read the beginning of a text, often 256 tokens."""

CONDENSED_CHARS = 1_200
"""Of the end of a conversation that a model writes one question from."""
CONDENSE = (
    "Here is the end of a conversation. Write its last question again so that it can be understood without the rest: "
    'put in what words such as "it", "they" or "there" stand for. Write this one question and nothing else.'
)


class MessageDict(TypedDict):
    """A message as chat libraries write it."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Message:
    """One turn: what the user asked, or what was answered."""

    role: Role
    content: str


class Frame(NamedTuple):
    """What a query says to a template besides its turns."""

    day: str = ""  # as 2026-11-25, for a template that writes it; empty: always the same
    system_prompt: str | None = None  # instead of the party's own; empty: none


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


def join_turns(messages: Iterable[tuple[str, str]]) -> list[Message]:
    """Messages as chat clients send them, as turns of user and assistant: neighbours of one role are one turn, and a
    greeting answers nothing. messages: role, one of ROLES, and text.
    """
    turns = [Message("user", "")]
    for role, text in messages:
        if role == turns[-1].role:
            turns[-1] = Message(role, "\n\n".join(part for part in (turns[-1].content, text) if part))
        else:
            turns.append(Message(ROLES[len(turns) % 2], text))
    return turns


def take_system_prompt(
    messages: Sequence[tuple[str, str]], configured: str
) -> tuple[str | None, list[tuple[str, str]]]:
    """The system messages, joined in order, and all others; None where there is none, or it repeats `configured`.

    messages: role and text.
    """
    system = "\n\n".join(text for role, text in messages if role == "system" and text.strip())
    others = [message for message in messages if message[0] != "system"]
    return (system if system.strip() not in ("", configured.strip()) else None), others


def _read_message(number: int, message: Any) -> Message:
    if isinstance(message, Message):
        message = {"role": message.role, "content": message.content}
    is_message = isinstance(message, Mapping) and set(message) == {"role", "content"}
    if not is_message or not isinstance(message["content"], str):
        raise QueryError(
            f'A message of history is {{"role": "user" or "assistant", "content": text}}, but message {number} is '
            f"{message!r:.100}; correct it.",
            option="history",
        )
    if message["role"] not in ROLES:
        remedy = "set system_prompt" if message["role"] == "system" else "use one of the two"
        raise QueryError(
            f"A message of history has the role user or assistant, but message {number} has "
            f"{message['role']!r:.40}; {remedy}.",
            option="history",
        )
    return Message(message["role"], message["content"])


def ask_to_condense(history: Sequence[Message], question: str) -> str:
    """The prompt by which a model rewrites a question to stand for itself: the last turns in order, as
    far back as CONDENSED_CHARS, then the question."""
    turns = [*_last(history, CONDENSED_CHARS), Message("user", question)]
    return "\n".join((CONDENSE, "", *(f"{turn.role.capitalize()}: {turn.content}" for turn in turns)))


def join_questions(history: Sequence[Message], question: str) -> str:
    """The user's turns, one a line and oldest first: the last ones that have at most EARLIER_CHARS, then the question.

    So a question that refers to an earlier one ("And what soup?") comes with the words that it refers to.
    """
    earlier = _last([message for message in history if message.role == "user"], EARLIER_CHARS)
    return "\n".join((*(message.content for message in earlier), question))


def _last(messages: Sequence[Message], num_chars: int) -> list[Message]:
    """The last messages that have at most so many characters together, in order."""
    kept: list[Message] = []
    for message in reversed(messages):
        num_chars -= len(message.content)
        if num_chars < 0:
            break
        kept.insert(0, message)
    return kept
