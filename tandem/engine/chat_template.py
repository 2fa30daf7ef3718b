"""The chat template of a tokenizer as a `Template`, and which template a model has.

It is rendered as transformers does it, letter for letter: that is what models are trained with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NoReturn

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
    SAMPLE,
    SYSTEM,
    TEMPLATE_FILE,
    PlainTemplate,
    Template,
    fingerprint_texts,
    no_file,
    turn_mark,
)
from tandem.engine.tokenizer import TokenizerInfo
from tandem.errors import GenerationError, first_line

_GAP = "\n\n"  # between document and question, within one message
_NO_DAY = "2024-07-26"  # where no day is named: what Llama 3 writes where it cannot know
_OTHER_DAY = "2019-11-03"  # with another name of everything


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
    ) -> None:
        """info: of the tokenizer. system_prompt: empty: none. jinja: a template instead of its own, from the file or
        model `source`. day: that it may write, as 2026-11-25; empty: always the same.
        """
        self._info, self._jinja, self._source = info, jinja or info.chat_template or "", str(source)
        self._system_prompt, self._day = system_prompt.strip(), day
        self._has_system_role = True
        try:
            self._find_parts()
        except GenerationError:
            if not self._system_prompt:
                raise
            self._has_system_role = False
            self._find_parts()

    @property
    def texts(self) -> Mapping[str, str]:
        """The system prompt, where it has a mark."""
        return {SYSTEM: self._system_prompt} if self._system == SYSTEM else {}

    @property
    def fingerprint(self) -> str:
        """A digest of the template as it is written, and of the system prompt."""
        return fingerprint_texts(self._jinja, self._system_prompt)

    @cached_property
    def writes_day(self) -> bool:
        """Whether what stands before or after the document is another text on another day."""
        other = self._saying(_OTHER_DAY, self._system_prompt)
        return (self.document, self.question(SAMPLE)) != (other.document, other.question(SAMPLE))

    def within(self, frame: Frame) -> ChatTemplate:
        """As of every template; the day matters where it is written only."""
        own = self._system_prompt
        system_prompt = own if frame.system_prompt is None else frame.system_prompt.strip()
        day = frame.day if self.writes_day else self._day
        return self if (day, system_prompt) == (self._day, own) else self._saying(day, system_prompt)

    def _saying(self, day: str, system_prompt: str) -> ChatTemplate:
        return ChatTemplate(self._info, system_prompt, self._jinja, self._source, day)

    def question(self, turns: Sequence[Message]) -> tuple[str, dict[str, str]]:
        """The text that follows the document, and what goes to each mark. An answer's may leave out a thought."""
        contents = {
            turn_mark(number): self._answer(turn.content) if turn.role == "assistant" else turn.content
            for number, turn in enumerate(turns)
        }
        return self._split(turns)[1], {**self.texts, **contents}

    def describe(self) -> str:
        """The template in a few words, with where the system prompt goes."""
        is_first = not self._has_system_role and self._system_prompt
        return "chat, the system prompt in the first message" if is_first else "chat"

    def _find_parts(self) -> None:
        self._system = SYSTEM if self._system_prompt else ""
        before, _ = self._split(SAMPLE[:1])
        if self._system not in before:
            raise self._error("the system prompt does not come before the document")
        # The template sees the prompt itself, unless that holds what the tokenizer would take for one of its tokens.
        if not any(text in self._system_prompt for text in (*self._info.added_tokens, *MARKS)):
            self._system = self._system_prompt
        before, question = self._split(SAMPLE[:1])
        alone = self._render(self._messages(SAMPLE[:1]))
        if not alone.endswith(question):
            raise self._error("a question without a document ends differently from one with a document")
        self._conversation = self._render(self._messages(SAMPLE))
        self.after_answer = self._conversation.partition(turn_mark(1))[2].partition(turn_mark(2))[0]
        if self._split(SAMPLE)[0] != before:
            raise self._error("what comes before the document depends on the messages after it")
        self.document = before
        self.bare = alone.removesuffix(question)
        if any(THOUGHT_END in text for text in (self._jinja, *self._info.added_tokens)):
            self.thinking = "begun" if question.rstrip().endswith(THOUGHT) else "marked"

    def _split(self, turns: Sequence[Message]) -> tuple[str, str]:
        """The document's part, with its mark and the gap after it, and what follows."""
        text = self._render(self._messages(turns, DOCUMENT + _GAP))
        marks = [DOCUMENT, *map(turn_mark, range(len(turns)))]
        known = set(marks)
        if [mark for mark in ANY_MARK.findall(text) if mark in known] != marks:
            raise self._error("it does not write every message once and in order")
        place = text.find(marks[1])
        return text[:place], text[place:]

    def _messages(self, turns: Sequence[Message], document: str = "") -> list[dict[str, str]]:
        """A conversation of marks."""
        messages = [{"role": turn.role, "content": turn_mark(number)} for number, turn in enumerate(turns)]
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
            written = self._render(messages)
        except GenerationError:
            return text
        is_framed = written.startswith(before) and written.removeprefix(before).endswith(after)
        return written.removeprefix(before).removesuffix(after) if is_framed else text

    def _render(self, messages: list[dict[str, str]]) -> str:
        """The text of a conversation and what makes the model answer. Raises GenerationError."""
        try:
            return _compile(self._jinja).render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                strftime_now=date.fromisoformat(self._day or _NO_DAY).strftime,
                **self._info.special_tokens,
            )
        except Exception as error:  # the template's own, or whatever its code runs into
            raise self._error(f"{first_line(error):.200}") from None

    def _error(self, reason: str) -> GenerationError:
        return GenerationError(
            f"The chat template{self._source and f' of {self._source}'} cannot be used: {reason}; "
            'set template to "plain", or to a file with a template of your own.'
        )


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
