"""The chat template of a tokenizer as a `Template`, and which template a model has.

It is rendered as transformers does it, letter for letter: that is what models are trained with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from tandem.conversation import SYSTEM_PROMPT, THOUGHT, THOUGHT_END, Frame, Message
from tandem.engine.template import (
    ANY_MARK,
    DOCUMENT,
    MARKS,
    NO_TOOLS,
    SAMPLE,
    SYSTEM,
    TEMPLATE_FILE,
    PlainTemplate,
    Template,
    any_of,
    fingerprint_texts,
    no_file,
    turn_mark,
)
from tandem.engine.tokenizer import TokenizerInfo
from tandem.errors import GenerationError, first_line
from tandem.tools import CallFormat, ToolCall, read_tools

_GAP = "\n\n"  # between document and question, within one message
_MAX_DEPTH = 100
"""Lists and objects within each other in a tool or the arguments of a call."""
_NO_DAY = "2024-07-26"  # where no day is named: what Llama 3 writes where it cannot know
_OTHER_DAY = "2019-11-03"  # with another name of everything
_PROBE = "tandem_probe"  # the name of a tool that no template writes by itself
_PROBE_TOOLS = read_tools(
    [
        {
            "type": "function",
            "function": {
                "name": _PROBE,
                "description": "Probes.",
                "parameters": {"type": "object", "properties": {"x": {"type": "string"}}},
            },
        }
    ]
)
_PROBE_RESULT = "tandem_probed"
_PROBE_ARGUMENTS = {"x": "y"}
_PROBED = (
    Message("user", ""),
    Message("assistant", "", (ToolCall(_PROBE, json.dumps(_PROBE_ARGUMENTS), "abcdefghi"),)),
    Message("tool", _PROBE_RESULT, tool_call_id="abcdefghi"),
)


class ChatTemplate(Template):
    """Renders messages. GenerationError where the template cannot be rendered, or not be split."""

    is_complete = True

    def __init__(
        self,
        info: TokenizerInfo,
        system_prompt: str = SYSTEM_PROMPT,
        jinja: str | None = None,
        source: Path | str = "",
        day: str = "",
        tools: str = "",
    ) -> None:
        """info: of the tokenizer. system_prompt: empty: none. jinja: a template instead of its own, from the file or
        model `source`. day: that it may write, as 2026-11-25; empty: always the same. tools: of `Frame`.
        """
        self._program = _Program(info, jinja, str(source))
        self._said = _Said(day, system_prompt.strip(), tools)
        self._guarded = dict[str, str]()  # what tools hold that the tokenizer has as tokens of its own
        self._tools = self._program.guard(_read_json(tools), self._guarded) if tools else None
        self._few_tools = _read_json(_PROBE_TOOLS) if tools else None  # for what does not depend on them
        self._has_system_role = True
        try:
            self._find_parts()
        except GenerationError:
            if not self._said.system_prompt:
                raise
            self._has_system_role = False
            self._find_parts()

    @property
    def texts(self) -> Mapping[str, str]:
        """The system prompt, where it has a mark, and what tools have marks for."""
        return self._guarded | ({SYSTEM: self._said.system_prompt} if self._system == SYSTEM else {})

    @property
    def fingerprint(self) -> str:
        """A digest of the template as it is written, and of the system prompt."""
        return fingerprint_texts(self._program.jinja_of(), self._said.system_prompt)

    @cached_property
    def writes_day(self) -> bool:
        """Whether what stands before or after the document is another text on another day."""
        other = self._saying(self._said._replace(day=_OTHER_DAY))
        return (self.document, self.question(SAMPLE)) != (other.document, other.question(SAMPLE))

    @cached_property
    def calls(self) -> CallFormat | None:
        """What it makes of a call, seen from one that it writes."""
        if "tools" not in self._program.jinja_of(has_tools=True):
            return None
        try:
            return self._probed()._find_calls()
        except GenerationError:
            return None

    @property
    def written(self) -> str:
        """As of every template; with tools, if it takes them."""
        plain = super().written
        if self._tools or not self.calls:
            return plain
        probed = self._probed()
        return plain + probed.document + probed.question(_PROBED)[0]

    def within(self, frame: Frame) -> ChatTemplate:
        """As of every template; the day matters where it is written only."""
        if frame.tools and self.calls is None:
            raise GenerationError(NO_TOOLS)
        said = self._said._replace(tools=frame.tools)
        if frame.system_prompt is not None:
            said = said._replace(system_prompt=frame.system_prompt.strip())
        if self.writes_day:
            said = said._replace(day=frame.day)
        return self if said == self._said else self._saying(said)

    def _saying(self, said: _Said) -> ChatTemplate:
        program = self._program
        return ChatTemplate(
            program.info, said.system_prompt, program.given, program.source, said.day, said.tools
        )

    def _probed(self) -> ChatTemplate:
        """With a tool that no template writes by itself."""
        return self._saying(self._said._replace(tools=_PROBE_TOOLS))

    def question(self, turns: Sequence[Message]) -> tuple[str, dict[str, str]]:
        """The text that follows the document, and what goes to each mark. An answer's may leave out a thought."""
        if self.calls is None and any(turn.is_of_tool for turn in turns):
            raise GenerationError(NO_TOOLS)
        try:
            return self._split(turns, fill := dict(self.texts))[1], fill
        except GenerationError:
            if all(len(turn.tool_calls) < 2 for turn in turns):
                raise
        return self._split(turns, fill := dict(self.texts), is_single=True)[1], fill

    def describe(self) -> str:
        """The template in a few words, with where the system prompt goes."""
        kind = "chat, with tools" if self.calls else "chat"
        is_first = not self._has_system_role and self._said.system_prompt
        return f"{kind}, the system prompt in the first message" if is_first else kind

    def _find_parts(self) -> None:
        program, system_prompt = self._program, self._said.system_prompt
        self._system = SYSTEM if system_prompt else ""
        before, _ = self._split(SAMPLE[:1])
        if self._system not in before:
            raise program.error("the system prompt does not come before the document")
        # The template sees the prompt itself, unless that holds what the tokenizer would take for one of its tokens.
        if not any(text in system_prompt for text in program.guarded):
            self._system = system_prompt
        before, question = self._split(SAMPLE[:1])
        alone = self._render(self._messages(SAMPLE[:1]))
        if not alone.endswith(question):
            raise program.error("a question without a document ends differently from one with a document")
        self._conversation = program.render(self._messages(SAMPLE), self._said.day, self._few_tools)
        self.after_answer = self._conversation.partition(turn_mark(1))[2].partition(turn_mark(2))[0]
        if self._split(SAMPLE)[0] != before:
            raise program.error("what comes before the document depends on the messages after it")
        self.document = before
        self.bare = alone.removesuffix(question)
        if any(THOUGHT_END in text for text in (program.jinja_of(), *program.info.added_tokens)):
            self.thinking = "begun" if question.rstrip().endswith(THOUGHT) else "marked"

    def _find_calls(self) -> CallFormat | None:
        """What this template, which has been given a probe, makes of a call to it; None: no call that can be read."""
        before, beginning = self._split(SAMPLE[:1])
        text = self._split(_PROBED)[1]
        if self.thinking == "begun":
            beginning = beginning[: beginning.rindex(THOUGHT)]
        end_of_answer = self._program.find_token(self.after_answer)
        if _PROBE not in before or not text.startswith(beginning) or not end_of_answer:
            return None
        written = text.removeprefix(beginning)
        start, size, called = _find_object(written)
        end = written.find(end_of_answer, start + size)
        if called is None or end < 0 or _PROBE_RESULT not in written[end:]:
            return None
        begin = written[:start].rpartition(THOUGHT_END)[2].lstrip()
        names = {str(value): key for key, value in called.items()}
        return CallFormat(
            begin, written[start + size : end].rstrip(), names[_PROBE], names[str(_PROBE_ARGUMENTS)]
        )

    def _split(
        self, turns: Sequence[Message], fill: dict[str, str] | None = None, *, is_single: bool = False
    ) -> tuple[str, str]:
        """The document's part, with its mark and the gap after it, and what follows.

        fill: receives texts of marks. is_single: the template writes one call per answer.
        """
        messages = self._messages(turns, DOCUMENT + _GAP, fill)
        text = self._render(_separate_calls(messages) if is_single else messages)
        said = [number for number, turn in enumerate(turns) if not turn.is_of_tool]
        marks = [DOCUMENT, *map(turn_mark, said)]
        known = set(marks)
        if [mark for mark in ANY_MARK.findall(text) if mark in known] != marks:
            raise self._program.error("it does not write every message once and in order")
        place = text.find(marks[1])
        return text[:place], text[place:]

    def _messages(
        self, turns: Sequence[Message], document: str = "", fill: dict[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """A conversation with marks for what was asked and answered. fill: receives what goes to each mark."""
        fill = {} if fill is None else fill
        messages, names = [], dict[str, str]()
        for number, turn in enumerate(turns):
            message: dict[str, Any] = {"role": turn.role, "content": turn_mark(number)}
            if turn.is_of_tool:
                said = {"content": turn.content, **_describe_calls(turn, names)}
                message |= self._program.guard(said, fill)
            else:
                is_answer = turn.role == "assistant"
                fill[turn_mark(number)] = self._answer(turn.content) if is_answer else turn.content
            messages.append(message)
        messages[0]["content"] = document + messages[0]["content"]
        if not self._system:
            return messages
        if self._has_system_role:
            return [{"role": "system", "content": self._system}, *messages]
        messages[0]["content"] = self._system + _GAP + messages[0]["content"]
        return messages

    def _answer(self, text: str) -> str:
        """An earlier answer as the template writes it; the answer itself where the template cannot write it."""
        if not text:
            return text
        before, _, after = self._conversation.partition(turn_mark(1))
        messages = self._messages(SAMPLE)
        messages[-2]["content"] = text
        try:
            written = self._program.render(messages, self._said.day, self._few_tools)
        except GenerationError:
            return text
        is_framed = written.startswith(before) and written.removeprefix(before).endswith(after)
        return written.removeprefix(before).removesuffix(after) if is_framed else text

    def _render(self, messages: list[dict[str, Any]]) -> str:
        return self._program.render(messages, self._said.day, self._tools)


class _Said(NamedTuple):
    """What a party, and a query, say to a template besides messages."""

    day: str
    system_prompt: str
    tools: str


class _Program:
    """A template in Jinja, beside its tokenizer."""

    def __init__(self, info: TokenizerInfo, given: str | None, source: str) -> None:
        """given: a template instead of the tokenizer's own. source: the file or model that it comes from."""
        self.info, self.given, self.source = info, given, source
        self._tokens = any_of(token for token in info.added_tokens if not token.isspace())
        self.guarded = (
            *info.added_tokens,
            *MARKS,
        )  # what nobody's text is to bring into that of the template
        self._guards = any_of(text for text in self.guarded if not text.isspace())

    def jinja_of(self, *, has_tools: bool = False) -> str:
        """The template's text: some models have one of their own for conversations with tools."""
        own = (has_tools and self.info.tool_template) or self.info.chat_template
        return self.given or own or ""

    def render(self, messages: list[dict[str, Any]], day: str, tools: Any) -> str:
        """The text of a conversation and what makes the model answer. Raises GenerationError."""
        try:
            return _compile(self.jinja_of(has_tools=tools is not None)).render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=True,
                strftime_now=date.fromisoformat(day or _NO_DAY).strftime,
                **self.info.special_tokens,
            )
        except Exception as error:  # the template's own, or whatever its code runs into
            raise self.error(f"{first_line(error):.200}") from None

    def error(self, reason: str) -> GenerationError:
        """That it cannot be used."""
        return GenerationError(
            f"The chat template{self.source and f' of {self.source}'} cannot be used: {reason}; "
            'set template to "plain", or to a file with a template of your own.'
        )

    def find_token(self, text: str) -> str:
        """The first token that the tokenizer has added, in a text; empty if there is none."""
        match = self._tokens.search(text)
        return match.group() if match else ""

    def guard(self, value: Any, fill: dict[str, str], depth: int = 0) -> Any:
        """A JSON value with marks where its texts hold such tokens, or marks. Raises GenerationError for a deep one.

        fill: receives what goes to each mark. depth: of what the value is in.
        """
        if depth > _MAX_DEPTH:
            raise GenerationError(
                f"A tool or a call of one is nested in more than {_MAX_DEPTH} lists and objects; make it flatter.",
                option="tools",
            )
        if isinstance(value, dict):
            return {self.guard(key, fill): self.guard(item, fill, depth + 1) for key, item in value.items()}
        if isinstance(value, list):
            return [self.guard(item, fill, depth + 1) for item in value]
        if not isinstance(value, str):
            return value

        def mark(match: re.Match[str]) -> str:
            mark = f"\ufdd5{self.guarded.index(match.group())}\ufdd6"
            fill[mark] = match.group()
            return mark

        return self._guards.sub(mark, value)


def _separate_calls(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One call per answer, each with its result; one without a result is left out."""
    separate, waiting, content = [], list[Any](), ""
    for message in messages:
        if message["role"] == "tool" and waiting:
            own = (call for call in waiting if call["id"] == message["tool_call_id"])
            waiting.remove(call := next(own, waiting[0]))
            separate += [{"role": "assistant", "content": content, "tool_calls": [call]}, message]
            content = ""
        elif "tool_calls" in message:
            waiting, content = list(message["tool_calls"]), message["content"]
        else:
            separate.append(message)
    return separate


def _describe_calls(turn: Message, names: dict[str, str]) -> dict[str, Any]:
    """The calls of a turn, or whose result it is, as templates have them. names: of tools by the calls before it;
    receives those of the turn."""
    names |= {call.id: call.name for call in turn.tool_calls}
    if turn.role == "tool":
        return {"tool_call_id": turn.tool_call_id, "name": names.get(turn.tool_call_id, "")}
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": _read_json(call.arguments)},
        }
        for call in turn.tool_calls
    ]
    return {"tool_calls": calls}


def _read_json(text: str) -> Any:
    """What a peer may have sent. Raises GenerationError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GenerationError(
            f"A tool or a call of one is not JSON ({first_line(error):.100}); correct it."
        ) from None


def _find_object(text: str) -> tuple[int, int, dict[str, Any] | None]:
    """Where the first JSON object with name and arguments of the probe begins, its length, and itself; else None."""
    for match in re.finditer(r"\{", text):
        try:
            value, end = json.JSONDecoder().raw_decode(text, match.start())
        except ValueError:
            continue
        if _PROBE in value.values() and _PROBE_ARGUMENTS in value.values():
            return match.start(), end - match.start(), value
    return 0, 0, None


@lru_cache(maxsize=16)
def _compile(jinja: str) -> jinja2.Template:
    """What templates may use, as transformers offers it. They are programs of strangers: nothing leads out of the
    sandbox."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControlExtension]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "dict": _Dict(), "namespace": _Namespace}
    return environment.from_string(jinja)


class _Generation(Extension):
    """{% generation %} marks what the model writes, for training: the text is as without it."""

    tags = {"generation"}  # noqa: RUF012 (as the class declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        """The block alone, whose variables are its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Dict:
    """Makes dictionaries, as the class itself would, whose attributes stay out of sight."""

    def __call__(self, *items: Any, **named: Any) -> dict[Any, Any]:
        return dict(*items, **named)

    def fromkeys(self, *given: Any) -> dict[Any, Any]:
        """One value for several keys."""
        return dict.fromkeys(*given)


class _Namespace(Namespace):
    """Variables that outlive a block, none of which is an attribute of Python's own."""

    def __init__(*given: Any, **named: Any) -> None:  # so that a variable may be called self
        Namespace.__init__(given[0], {})
        for name, value in dict(*given[1:], **named).items():
            given[0][name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace has no variable {name!r}")
        super().__setitem__(name, value)


def _refuse(message: str) -> NoReturn:
    raise jinja2.exceptions.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def find_template(setting: str, model: str, info: TokenizerInfo, system_prompt: str) -> Template:
    """The template that a setting names for a model. Raises GenerationError.

    setting: "auto" (template.json next to the model, else the tokenizer's chat template, else plain), "chat", "plain",
    or the path of a template.json or of a chat template in Jinja. model: a directory or hub id.
    """
    beside = Path(model) / TEMPLATE_FILE
    if setting == "auto":
        if beside.is_file():
            return PlainTemplate.read(beside)
        return ChatTemplate(info, system_prompt, source=model) if info.chat_template else PlainTemplate()
    if setting == "plain":
        return PlainTemplate()
    if setting == "chat":
        if not info.chat_template:
            raise GenerationError(
                f'The tokenizer of {model!r} has no chat template; set template to "plain", or to a file with one.'
            )
        return ChatTemplate(info, system_prompt, source=model)
    return _read(Path(setting).expanduser(), info, system_prompt)


def _read(path: Path, info: TokenizerInfo, system_prompt: str) -> Template:
    if path.suffix == ".json":
        return PlainTemplate.read(path)
    if not path.is_file():
        raise no_file(path)
    try:
        return ChatTemplate(info, system_prompt, path.read_text(encoding="utf-8-sig"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise GenerationError(f"The template {path} cannot be read: {error}; correct the file.") from None
