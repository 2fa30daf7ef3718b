"""Earlier turns of a conversation: what a question may refer to, and how it is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Required, TypedDict, get_args

from tandem.errors import QueryError
from tandem.tools import ToolCall, read_calls

Role = Literal["user", "assistant", "tool"]
SYSTEM_PROMPT = "Answer the question briefly. Where a document is given, rely on what it says."
"""The default system message of a chat model."""
THOUGHT, THOUGHT_END = "<think>", "</think>"
"""How reasoning models mark what they think before they answer."""


class MessageDict(TypedDict, total=False):
    """A message as chat libraries write it."""

    role: Required[Role]
    content: Required[str | None]
    tool_calls: Sequence[Mapping[str, Any]]
    tool_call_id: str


@dataclass(frozen=True, slots=True)
class Message:
    """One turn: what the user asked, what was answered, or what a tool gave."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()  # of an answer, that the model wants
    tool_call_id: str = ""  # of the call whose result this is

    @property
    def kind(self) -> Kind:
        """The role; an answer that calls tools is a call."""
        return "call" if self.tool_calls else self.role

    @property
    def is_of_tool(self) -> bool:
        """Whether it is a call of tools, or the result of one."""
        return self.kind in ("call", "tool")


def texts_of(messages: Sequence[Message]) -> list[str]:
    """All that these messages hold."""
    calls = [call for message in messages for call in message.tool_calls]
    said = [text for message in messages for text in (message.content, message.tool_call_id)]
    return said + [text for call in calls for text in (call.name, call.arguments, call.id)]


Kind = Role | Literal["call"]
FOLLOWS: Mapping[Kind, tuple[Kind, ...]] = {
    "user": ("assistant", "call"),
    "assistant": ("user",),
    "call": ("tool",),
    "tool": ("tool", "call", "assistant"),
}
"""What may follow a message in a history."""


class Frame(NamedTuple):
    """What a query says to a template besides its turns."""

    day: str = ""  # as 2026-11-25, for a template that writes it; empty: always the same
    system_prompt: str | None = None  # instead of the party's own; empty: none
    tools: str = ""  # that the model may call: JSON, of `tandem.tools.read_tools`; empty: none


NO_FRAME = Frame()


def read_history(messages: Sequence[Message | MessageDict] | None) -> tuple[Message, ...]:
    """Questions and answers in turn, oldest first, the last one an answer; none for None. Raises QueryError.

    Calls of tools stand with their results between a question and its answer. Those that the question which is asked
    now has led to come last.

    messages: {"role": "user" or "assistant", "content": text}, or `Message`; calls and results in OpenAI's form.
    """
    if isinstance(messages, (str, Mapping)) or not isinstance(messages or (), Sequence):
        raise QueryError(
            f"history is a list of messages, but it is {messages!r:.100}; give a list.", option="history"
        )
    turns = tuple(_read_message(number, message) for number, message in enumerate(messages or ()))
    earlier, since = split_history(turns)
    if _check_order(0, earlier, "assistant") != "assistant":
        raise QueryError(
            f"history ends with an answer, but its last message is of user ({earlier[-1].content!r:.60}); "
            "ask that as the question.",
            option="history",
        )
    if _check_order(len(earlier), since, "user") == "call":
        raise _no_result("nothing")
    return turns


def split_history(history: Sequence[Message]) -> tuple[Sequence[Message], Sequence[Message]]:
    """The turns before the question that is asked now; and the calls of tools that it led to, with their results."""
    size = len(history)
    while size and history[size - 1].is_of_tool:
        size -= 1
    return history[:size], history[size:]


def _check_order(first: int, turns: Sequence[Message], last: Kind) -> Kind:
    """The last one's kind. first: the number of the first one. last: what comes before it. Raises QueryError."""
    for number, turn in enumerate(turns, start=first):
        if last == "call" and turn.kind != "tool":
            raise _no_result(f"message {number} ({turn.role})")
        if turn.kind not in FOLLOWS[last]:
            raise QueryError(
                f"history alternates between user and assistant and begins with user, but message {number} is of "
                f"{turn.role}; correct the order.",
                option="history",
            )
        last = turn.kind
    return last


def _no_result(what: str) -> QueryError:
    return QueryError(
        f"In history the result of a tool follows its call, but {what} does; add one of role tool with what it gave.",
        option="history",
    )


class Conversation:
    """Messages as chat clients send them, in any order that templates take."""

    def __init__(self) -> None:
        self._system: list[str] = []
        self._turns = [Message("user", "")]

    def add(self, role: str, text: str, tool_calls: Sequence[ToolCall] = (), tool_call_id: str = "") -> None:
        """Add a message. Raises QueryError for the result of a tool that was not called.

        Neighbours of one role are one turn, and a greeting answers nothing. role: of `Role`, or system.
        """
        last = self._turns[-1]
        if role == "system":
            self._system.append(text)
        elif role == "tool":
            if not last.is_of_tool:
                raise QueryError(
                    f"The result of a tool must follow the call, but one follows a message of {last.role}; add the "
                    "answer that called it, with its tool_calls."
                )
            self._turns.append(Message("tool", text, tool_call_id=tool_call_id))
        elif role == last.role:
            joined = "\n\n".join(part for part in (last.content, text) if part)
            self._turns[-1] = Message(last.role, joined, (*last.tool_calls, *tool_calls))
        else:
            if role == "user" and last.kind != "assistant":
                self._turns.append(Message("assistant", ""))  # whatever was called, nothing was answered
            self._turns.append(Message("user" if role == "user" else "assistant", text, tuple(tool_calls)))

    def own_prompt(self, configured: str) -> str | None:
        """The system messages, joined in order; None where there is none, or they repeat `configured`."""
        system = "\n\n".join(text for text in self._system if text.strip())
        return system if system.strip() not in ("", configured.strip()) else None

    def split(self) -> tuple[str, list[Message]]:
        """The question and its history, as of a query. Raises QueryError where it ends with an answer."""
        if (last := self._turns[-1]).role == "assistant":
            remedy = "the result of each call" if last.tool_calls else "the question"
            raise QueryError(
                f"The last message must be of user or of a tool, but it is of assistant; add {remedy}."
            )
        (*earlier, question), since = split_history(self._turns)
        return question.content, [*earlier, *since]


def _read_message(number: int, message: Any) -> Message:
    if isinstance(message, Message):
        return message
    is_message = isinstance(message, Mapping) and {"role", "content"} <= set(message)
    content = message["content"] if is_message else None
    is_call = is_message and message["role"] == "assistant" and bool(message.get("tool_calls"))
    if not isinstance(content, str) and not (is_call and content is None):
        raise QueryError(
            f'A message of history is {{"role": "user" or "assistant", "content": text}}, but message {number} is '
            f"{message!r:.100}; correct it.",
            option="history",
        )
    role = message["role"]
    if role not in get_args(Role):
        remedy = "set system_prompt" if role == "system" else "use one of them"
        raise QueryError(
            f"A message of history has the role user, assistant or tool, but message {number} has {role!r:.40}; "
            f"{remedy}.",
            option="history",
        )
    calls = read_calls(message["tool_calls"], "history") if is_call else ()
    return Message(role, content or "", calls, str(message.get("tool_call_id") or ""))
