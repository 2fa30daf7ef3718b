"""The texts around a document and a question, with marks where these go, by a user's file or a model's chat template.

A template is text of the model's maker or of the user: special tokens in it are recognised, and so is every other added
token that it writes. What takes the place of a mark (a document, a question, an earlier answer) is somebody's text, of
which no marker is made, of this template or of another one's.

A chat template is rendered as transformers does it, letter for letter: that is what models are trained with.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from tokenizers import AddedToken, Encoding, Tokenizer
from tokenizers.models import BPE

from tandem.conversation import SYSTEM_PROMPT, THOUGHT, THOUGHT_END, Frame, Message
from tandem.engine.tokenizer import WORD_BEGIN, TokenizerInfo, copy_tokenizer, describe_steps
from tandem.errors import GenerationError, first_line, nearest
from tandem.system.paths import suggest_path

TEMPLATE_FILE = "template.json"

MARKS = tuple(map(chr, range(0xFDD0, 0xFDD4)))
"""Noncharacters of Unicode, of which marks are made: no text holds them."""
DOCUMENT = "\ufdd0"
"""The mark of the document."""
SYSTEM = "\ufdd3"
"""The mark of a system prompt that holds something which the tokenizer has as a token of its own."""
SAMPLE = (Message("user", ""), Message("assistant", ""), Message("user", ""))
"""A conversation, for what a template writes around each turn."""
ANY_MARK = re.compile("[\ufdd0\ufdd3]|\ufdd1[0-9]+\ufdd2")


def turn_mark(number: int) -> str:
    """The mark of the content of a message: 0 is the first question, 1 its answer, and so on; the last is asked now."""
    return f"\ufdd1{number}\ufdd2"


class Template(ABC):
    """The text of a row: `document` or `bare`, then `question`."""

    document: str  # the cacheable part of a row with a document: holds the mark DOCUMENT once
    bare = ""  # what a row without a document has in its place
    is_complete = False  # whether it writes its own beginning-of-sequence, so that none is added
    thinking = ""
    """Whether answers begin with a thought in <think> and </think>: "begun" where the template opens it, "marked" where
    the model may."""
    after_answer = ""
    """The text between an earlier answer and the next question: special tokens in it end answers."""

    @property
    def texts(self) -> Mapping[str, str]:
        """Mark -> text, for marks whose text is the same in every row."""
        return {}

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """16 hexadecimal digits of all that it writes, whatever the day."""

    @property
    def writes_day(self) -> bool:
        """Whether what it writes depends on the day of the query."""
        return False

    @abstractmethod
    def within(self, frame: Frame) -> Template:
        """This template with a query's frame; itself where that changes nothing."""

    @abstractmethod
    def question(self, turns: Sequence[Message]) -> tuple[str, dict[str, str]]:
        """The text that follows the document in every row, and what goes to each mark in it, `texts` included.

        turns: the whole conversation, whose marks are in the text. GenerationError where the template has no form for
        them.
        """

    @abstractmethod
    def describe(self) -> str:
        """The template in a few words, for a user."""


@dataclass(frozen=True)
class PlainTemplate(Template):
    """Two texts with placeholders. GenerationError if one does not hold its own exactly once."""

    document_text: str = "{document}\n\n"  # the cacheable part
    query_text: str = "Question: {query}\nAnswer:"  # what follows it; alone in a row without a document
    source: str = ""  # the file that they come from
    system_prompt: str = ""  # of a query, which stands before its first question

    def __post_init__(self) -> None:
        for name, part in (("document", self.document_text), ("query", self.query_text)):
            placeholder = "{" + name + "}"
            if not isinstance(part, str) or part.count(placeholder) != 1:
                raise GenerationError(
                    f"The template's part {name!r} must be a text that holds {placeholder} once, "
                    f"but it is {part!r:.200}; correct {self.source or 'it'}."
                )
        object.__setattr__(self, "document", self.document_text.replace("{document}", DOCUMENT))

    @classmethod
    def read(cls, path: Path) -> PlainTemplate:
        """Read a file with the keys document and query, of which one may be missing. Raises GenerationError."""
        try:
            parts = json.loads(path.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, RecursionError) as error:
            raise GenerationError(f"{path} is not readable JSON: {error}; correct or delete it.") from None
        keys = ("document", "query")
        if not isinstance(parts, dict):
            raise GenerationError(
                f"{path} must be an object with the keys {' and '.join(keys)}, but it has "
                f"{type(parts).__name__}; correct or delete it."
            )
        for name in parts:
            if name not in keys:
                raise GenerationError(
                    f"{path} has the key {name!r:.60}, but a template has {' and '.join(keys)}; "
                    f"the nearest is {nearest(name, keys)!r}."
                )
        return cls(**{f"{name}_text": part for name, part in parts.items()}, source=str(path))

    @property
    def texts(self) -> Mapping[str, str]:
        """The system prompt, if there is one."""
        return {SYSTEM: self.system_prompt} if self.system_prompt else {}

    @property
    def fingerprint(self) -> str:
        """A digest of both texts."""
        return fingerprint_texts(self.document_text, self.query_text)

    def within(self, frame: Frame) -> PlainTemplate:
        """This template with a query's system prompt before its first question; a party's own is for chat templates."""
        system_prompt = (frame.system_prompt or "").strip()
        return self if system_prompt == self.system_prompt else replace(self, system_prompt=system_prompt)

    def question(self, turns: Sequence[Message]) -> tuple[str, dict[str, str]]:
        """Earlier questions in the same form, each with its answer after it."""
        parts = [f"{SYSTEM}\n\n"] if self.system_prompt else []
        for number in range(0, len(turns), 2):
            parts.append(self.query_text.replace("{query}", turn_mark(number)))
            if number + 1 < len(turns):
                gap = "" if parts[-1][-1].isspace() else " "
                parts.append(f"{gap}{turn_mark(number + 1)}\n\n")
        contents = {turn_mark(number): turn.content for number, turn in enumerate(turns)}
        return "".join(parts), {**contents, **self.texts}

    def describe(self) -> str:
        """The origin of the template."""
        return f"plain text of {Path(self.source).name}" if self.source else "plain text"


def fingerprint_texts(*texts: str) -> str:
    """16 hexadecimal digits."""
    return sha256(json.dumps(texts).encode()).hexdigest()[:16]


def encode(tokenizer: Tokenizer, texts: list[str]) -> list[Encoding]:
    """Encode texts without adding special tokens.

    `Tokenizer.encode` would keep Python's lock to its end, for seconds where a text has a megabyte.
    """
    return list(tokenizer.encode_batch(texts, add_special_tokens=False))


# ---- Tokens of a template's text with other texts at its marks ---------------------------------------------


MARKER = re.compile(r"<{1,2}(?!0x)[^<>\s]+>{1,2}|\[/?[A-Za-z_]{2,}\]")
"""The names of tokens that mark a turn, a tool or a thought in any family: <|user|>, </s>, <start_of_turn>, [INST]."""
Place = Literal["start", "marker", "text"]
"""Where a text begins: at the start of a row, after a marker, or within a text, which it continues without a gap."""


class Encoded(NamedTuple):
    """Tokens of a text, and where each begins and ends in it."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class TextTokenizer:
    """Tokenises texts that others wrote, and never makes a marker of them.

    Where the tokenizer would, by a vocabulary with pieces for it or by a normalizer that makes one text of several, the
    text is cut within what became the marker, and each part is tokenised anew.
    """

    def __init__(self, first: Tokenizer, within: Tokenizer, forbidden: frozenset[int]) -> None:
        """first: for the text; within: for what follows a cut, which puts no space in front. forbidden: markers."""
        self._first, self._within, self.forbidden = first, within, forbidden

    def encode(self, text: str) -> Encoded:
        """The tokens of a text, without special ones."""
        found = list[tuple[int, Encoded]]()
        parts = [(0, len(text))]
        while parts:  # in rounds, for a text may hold a marker at every third character
            others = encode(self._within, [text[start:end] for start, end in parts if start])
            whole = encode(self._first, [text[: parts[0][1]]]) if parts[0][0] == 0 else []
            cut = list[tuple[int, int]]()
            for (start, end), encoding in zip(parts, whole + others, strict=True):
                tokens = zip(encoding.ids, encoding.offsets, strict=True)
                places = [(token, (first + start, last + start)) for token, (first, last) in tokens]
                middles = {sum(place) // 2 for token, place in places if token in self.forbidden}
                if bounds := sorted(place for place in middles if start < place < end):
                    cut += pairwise([start, *bounds, end])
                    continue
                kept = [each for each in places if each[0] not in self.forbidden]
                found.append((start, Encoded([token for token, _ in kept], [place for _, place in kept])))
            parts = cut
        encoded = [part for _, part in sorted(found)]
        return Encoded(
            [token for part in encoded for token in part.ids],
            [place for part in encoded for place in part.offsets],
        )


class Gap(NamedTuple):
    """A part of a row around one mark, tokenised as far as it does not depend on the text there."""

    lead: list[int]  # up to the last marker before the mark
    head: str  # text from there to the mark
    tail: str  # text from the mark to the next marker
    trail: list[int]
    tokenizer: TextTokenizer  # for head, text and tail as one

    def encode(self, text: str) -> Encoded:
        """Encode head, text and tail; offsets count from the beginning of head."""
        return self.tokenizer.encode(self.head + text + self.tail)

    def tokens(self, text: str) -> list[int]:
        """The whole part."""
        return [*self.lead, *self.encode(text).ids, *self.trail]


class TemplateTokenizer:
    """Tokenises as a tokenizer does a whole text, and puts other texts in without any marker of theirs.

    Markers are the tokenizer's special tokens, every other added token that is not white space and that the template
    writes, for many models have turn markers that are not called special, and any other token with the name of one.
    """

    def __init__(self, tokenizer: Tokenizer, template: str = "") -> None:
        """tokenizer: from now on it takes special tokens for text. template: all that the template writes."""
        tokenizer.encode_special_tokens = True
        self._whole = tokenizer
        added = {name: (index, AddedToken(name)) for name, index in _marker_pieces(tokenizer).items()}
        added |= {
            token.content: (index, token) for index, token in tokenizer.get_added_tokens_decoder().items()
        }
        inside = [name for name in added if name in template and not name.isspace()]  # of thousands
        written = set(any_of(inside).findall(template))
        self._markers = {
            name: (index, token)
            for name, (index, token) in added.items()
            if token.special or (name in written and not name.isspace()) or MARKER.fullmatch(name)
        }
        self._pattern = any_of(self._markers)
        forbidden = frozenset(index for index, _ in self._markers.values()) - _unknown(tokenizer)
        first = tokenizer
        if not all(token.special for _, token in self._markers.values()):
            first = copy_tokenizer(tokenizer, special=self._markers)
            first.encode_special_tokens = True
        after = _change_prefix(first, is_within_text=False)
        within = _change_prefix(first, is_within_text=True)
        self._tokenizers = {
            place: TextTokenizer(each, within, forbidden)
            for place, each in (("start", first), ("marker", after), ("text", within))
        }

    @property
    def within_text(self) -> TextTokenizer:
        """For a text that continues another one without a gap."""
        return self._tokenizers["text"]

    def markers(self, text: str) -> tuple[int, ...]:
        """Ids of the markers in a template's text."""
        return tuple(self._markers[name][0] for name in self._pattern.findall(text))

    def encode_whole(self, text: str, fill: Mapping[str, str]) -> list[int]:
        """Tokens of a template's filled text, as the tokenizer itself takes it."""
        self._whole.encode_special_tokens = False
        ids = list(encode(self._whole, [_fill(text, fill)])[0].ids)
        self._whole.encode_special_tokens = True
        return ids

    def encode(self, text: str, fill: Mapping[str, str], place: Place = "start") -> list[int]:
        """Tokens of a template's text. fill: mark -> text. place: where the text begins."""
        ids: list[int] = []
        for piece in self._split(text, place):
            ids += [piece] if isinstance(piece, int) else piece[1].encode(_fill(piece[0], fill)).ids
        return ids

    def gap(self, text: str, mark: str, fill: Mapping[str, str]) -> Gap:
        """The gap around one more mark of a text, which is filled later."""
        lead: list[int] = []
        gap: Gap | None = None
        for piece in self._split(text, "start"):
            if not isinstance(piece, int) and mark in piece[0]:
                head, tail = (_fill(part, fill) for part in piece[0].split(mark))
                gap = Gap(lead, head, tail, [], piece[1])
            else:
                target = lead if gap is None else gap.trail
                target += [piece] if isinstance(piece, int) else piece[1].encode(_fill(piece[0], fill)).ids
        assert gap is not None  # the mark is in the text
        return gap

    def _split(self, text: str, place: Place) -> list[int | tuple[str, TextTokenizer]]:
        """Markers as their ids, and the texts between them with the tokenizer for each."""
        pieces: list[int | tuple[str, TextTokenizer]] = []
        tokenizer = self._tokenizers[place]
        start = 0
        strips = False  # the marker before swallows white space
        for match in self._pattern.finditer(text):
            index, token = self._markers[match.group()]
            between = text[start : match.start()]
            between = between.lstrip() if strips else between
            between = between.rstrip() if token.lstrip else between
            pieces += [(between, tokenizer)] if between else []
            pieces.append(index)
            tokenizer, start, strips = self._tokenizers["marker"], match.end(), token.rstrip
        rest = text[start:].lstrip() if strips else text[start:]
        return [*pieces, (rest, tokenizer)] if rest else pieces


def any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Matches the longest of some texts; nothing if there are none."""
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)")


def _fill(text: str, fill: Mapping[str, str]) -> str:
    return ANY_MARK.sub(lambda match: fill.get(match.group(), match.group()), text)


def _marker_pieces(tokenizer: Tokenizer) -> dict[str, int]:
    """Tokens of a vocabulary, besides added ones, with the names of markers. BPE makes tokens by its merges, which lead
    to none; other models have whole pieces."""
    if isinstance(tokenizer.model, BPE) and not tokenizer.model.ignore_merges:
        return {}
    pieces = tokenizer.get_vocab(with_added_tokens=False).items()
    return {piece: index for piece, index in pieces if MARKER.fullmatch(piece.lstrip(WORD_BEGIN))}


def _unknown(tokenizer: Tokenizer) -> frozenset[int]:
    """The token that stands for what a vocabulary lacks, which any text may hold."""
    if hasattr(tokenizer.model, "unk_token"):
        index = tokenizer.token_to_id(tokenizer.model.unk_token or "")
    else:
        index = json.loads(tokenizer.to_str())["model"].get("unk_id")
    return frozenset(() if index is None else (index,))


def _change_prefix(tokenizer: Tokenizer, *, is_within_text: bool) -> Tokenizer:
    """A tokenizer for a text that does not begin a sequence, which puts no space before its first word.

    is_within_text: nor before the first word of each text between special tokens.
    """
    steps = describe_steps(tokenizer)
    parts = {name: steps[name] for name in ("normalizer", "pre_tokenizer")}
    changed = {name: _without_prefix(part, is_within_text) for name, part in parts.items()}
    if changed == parts:
        return tokenizer
    copy = copy_tokenizer(tokenizer, steps=changed)
    copy.encode_special_tokens = True
    return copy


def _without_prefix(part: Any, is_within_text: bool) -> Any:
    if isinstance(part, list):
        kept = [each for each in part if not (is_within_text and each.get("type") == "Prepend")]
        return [_without_prefix(each, is_within_text) for each in kept]
    if not isinstance(part, dict):
        return part
    if part.get("type") == "Prepend":
        return None if is_within_text else part
    changed = {key: _without_prefix(value, is_within_text) for key, value in part.items()}
    if part.get("prepend_scheme") == "first" or (is_within_text and "prepend_scheme" in part):
        changed["prepend_scheme"] = "never"
    if is_within_text and "add_prefix_space" in part:
        changed["add_prefix_space"] = False
    return changed


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
        ends_thought: bool = False,
    ) -> None:
        """info: of the tokenizer. system_prompt: empty: none. jinja: a template instead of its own, from the file or
        model `source`. day: that it may write, as 2026-11-25; empty: always the same. ends_thought: as of a `Frame`.
        """
        self._info, self._jinja, self._source = info, jinja or info.chat_template or "", str(source)
        self._system_prompt, self._day, self._ends_thought = system_prompt.strip(), day, ends_thought
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
        """The system prompt, where a mark stands for it."""
        return {SYSTEM: self._system_prompt} if self._system == SYSTEM else {}

    @property
    def fingerprint(self) -> str:
        """A digest of the template as it is written, and of the system prompt."""
        return fingerprint_texts(self._jinja, self._system_prompt)

    @cached_property
    def writes_day(self) -> bool:
        """Whether what stands before or after the document is another text on another day."""
        return self._split(SAMPLE) != self._saying(_OTHER_DAY, self._system_prompt)._split(SAMPLE)

    def within(self, frame: Frame) -> ChatTemplate:
        """This template with a query's system prompt, its day where it is written, and an end to the thought."""
        own = self._system_prompt
        system_prompt = own if frame.system_prompt is None else frame.system_prompt.strip()
        day = frame.day if self.writes_day else self._day
        wanted = day, system_prompt, frame.ends_thought and bool(self.thinking)
        return self if wanted == (self._day, own, self._ends_thought) else self._saying(*wanted)

    def _saying(self, day: str, system_prompt: str, ends_thought: bool = False) -> ChatTemplate:
        return ChatTemplate(self._info, system_prompt, self._jinja, self._source, day, ends_thought)

    def question(self, turns: Sequence[Message]) -> tuple[str, dict[str, str]]:
        """The text that follows the document, and the text of each mark. An answer's may leave out a thought."""
        opened = "" if self.thinking == "begun" else f"{THOUGHT}\n"
        thought = f"{opened}\n{THOUGHT_END}\n\n" if self._ends_thought else ""
        contents = {
            turn_mark(number): self._answer(turn.content) if turn.role == "assistant" else turn.content
            for number, turn in enumerate(turns)
        }
        return self._split(turns)[1] + thought, {**self.texts, **contents}

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
        expected = set(marks)
        if [mark for mark in ANY_MARK.findall(text) if mark in expected] != marks:
            raise self._error("it does not write every message once and in order")
        place = text.find(marks[1])
        return text[:place], text[place:]

    def _messages(self, turns: Sequence[Message], document: str = "") -> list[dict[str, str]]:
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
    """Compile a template, with what transformers offers it. It is a stranger's program: nothing leads out of the
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
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Dict:
    """Makes dictionaries, as the class itself would, whose attributes stay out of sight."""

    def __call__(self, *items: Any, **named: Any) -> dict[Any, Any]:
        return dict(*items, **named)

    def fromkeys(self, *given: Any) -> dict[Any, Any]:
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


def check_files(setting: str, model: str) -> None:
    """GenerationError if the file that a setting names is not there, or no template; loads no tokenizer."""
    path = _find_file(setting, model)
    if path is not None and path.suffix == ".json":
        PlainTemplate.read(path)


def find_template(setting: str, model: str, info: TokenizerInfo, system_prompt: str) -> Template:
    """The template that a setting names for a model. Raises GenerationError.

    setting: "auto" (template.json next to the model, else the tokenizer's chat template, else plain), "chat", "plain",
    or the path of a template.json or of a chat template in Jinja. model: a directory or hub id.
    """
    path = _find_file(setting, model)
    if path is not None:
        if path.suffix == ".json":
            return PlainTemplate.read(path)
        try:
            return ChatTemplate(info, system_prompt, path.read_text(encoding="utf-8-sig"), path)
        except (OSError, UnicodeDecodeError) as error:
            raise GenerationError(f"The template {path} cannot be read: {error}; correct the file.") from None
    if setting == "plain" or (setting == "auto" and not info.chat_template):
        return PlainTemplate()
    if not info.chat_template:
        raise GenerationError(
            f'The tokenizer of {model!r} has no chat template; set template to "plain", or to a file with one.'
        )
    return ChatTemplate(info, system_prompt, source=model)


def _find_file(setting: str, model: str) -> Path | None:
    """The file of a template; None where a setting needs none. GenerationError if there is no such file."""
    if setting in ("chat", "plain"):
        return None
    path = Path(model) / TEMPLATE_FILE if setting == "auto" else Path(setting).expanduser()
    if path.is_file():
        return path
    if setting == "auto":
        return None
    raise GenerationError(f"There is no template {path}; {suggest_path(path.absolute())}")
