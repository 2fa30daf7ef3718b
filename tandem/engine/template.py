"""The texts around a document and a question, with marks where these go, and as a user writes them in `template.json`.

A template is text of the model's maker or of the user: special tokens in it are recognised, and so is every other added
token that it writes. What takes the place of a mark (a document, a question, an earlier answer) is somebody's text, in
which none of them is.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tokenizers import AddedToken, Encoding, Tokenizer
from tokenizers.models import BPE

from tandem.conversation import Frame, Message
from tandem.engine.tokenizer import copy_tokenizer, describe_steps
from tandem.errors import GenerationError, nearest
from tandem.system.paths import suggest_path

TEMPLATE_FILE = "template.json"

DOCUMENT = "\ufdd0"
"""The mark of the document. It is a noncharacter of Unicode: no text holds it."""

SYSTEM = "\ufdd3"
"""The mark of a system prompt that holds something which the tokenizer has as a token of its own."""

SAMPLE = (Message("user", ""), Message("assistant", ""), Message("user", ""))
"""A conversation, for what a template writes around each turn."""


MARKS = tuple(map(chr, range(0xFDD0, 0xFDD4)))
"""What marks are made of."""
ANY_MARK = re.compile("[\ufdd0\ufdd3]|\ufdd1[0-9]+\ufdd2")


def turn_mark(number: int) -> str:
    """The mark of the content of a message: 0 is the first question, 1 its answer, and so on; the last is asked now."""
    return f"\ufdd1{number}\ufdd2"


class Template(ABC):
    """The text of a row: `document` or `bare`, then `question`."""

    document: str
    """The cacheable part of a row with a document: holds the mark DOCUMENT once."""
    bare = ""
    """What a row without a document has in its place."""
    is_complete = False
    """Whether it writes its own beginning-of-sequence, so that none is added."""
    thinking = ""
    """Whether answers begin with a thought in <think> and </think>: "begun" where the template opens it, "marked" where
    the model may."""
    after_answer = ""
    """What stands between an earlier answer and the next question: special tokens in it end answers."""

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
        """Whether it writes the day of the query."""
        return False

    @abstractmethod
    def within(self, frame: Frame) -> Template:
        """This template with what a query says to it; itself where that changes nothing."""

    @abstractmethod
    def question(self, turns: Sequence[Message]) -> tuple[str, dict[str, str]]:
        """The text that follows the document in every row, and what goes to each mark in it, `texts` included.

        turns: the whole conversation, whose marks are in the text. GenerationError where the template has no form for
        them.
        """

    @property
    def written(self) -> str:
        """All that it may write."""
        return self.document + self.bare + self.question(SAMPLE)[0]

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
        except FileNotFoundError:
            raise no_file(path) from None
        except (OSError, ValueError, RecursionError) as error:
            raise GenerationError(f"{path} is not readable JSON: {error}; correct or delete it.") from None
        known = ("document", "query")
        if not isinstance(parts, dict):
            raise GenerationError(
                f"{path} must be an object with the keys {' and '.join(known)}, but it has "
                f"{type(parts).__name__}; correct or delete it."
            )
        for name in parts:
            if name not in known:
                raise GenerationError(
                    f"{path} has the key {name!r:.60}, but a template has {' and '.join(known)}; "
                    f"the nearest is {nearest(name, known)!r}."
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
        """With a query's system prompt before its first question; a party's own is for chat templates."""
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


def no_file(path: Path) -> GenerationError:
    """The error for a template that is not there."""
    return GenerationError(f"There is no template {path}; {suggest_path(path.absolute())}")


def check_files(setting: str, model: str) -> None:
    """GenerationError if the file that a setting names is not there, or no template; loads no tokenizer."""
    beside = Path(model) / TEMPLATE_FILE
    if setting == "auto" and beside.is_file():
        PlainTemplate.read(beside)
    if setting in ("auto", "chat", "plain"):
        return
    path = Path(setting).expanduser()
    if path.suffix == ".json":
        PlainTemplate.read(path)
    elif not path.is_file():
        raise no_file(path)


def encode(tokenizer: Tokenizer, text: str) -> Encoding:
    """Encode a text without adding special tokens.

    Other threads run meanwhile. `Tokenizer.encode` would keep Python's lock to its end, for seconds where a text has a
    megabyte.
    """
    return tokenizer.encode_batch([text], add_special_tokens=False)[0]


# ---- Tokens of a template's text with other texts at its marks ---------------------------------------------


Place = Literal["start", "marker", "text"]
"""Where a text begins: at the start of a row, after a marker, or within a text, which it continues without a gap."""


class Gap(NamedTuple):
    """A part of a row around one mark, tokenised as far as it does not depend on the text there."""

    lead: list[int]  # up to the last marker before the mark
    head: str  # text from there to the mark
    tail: str  # text from the mark to the next marker
    trail: list[int]
    tokenizer: Tokenizer  # for head, text and tail as one

    @property
    def num_fixed(self) -> int:
        """Tokens outside of head, text and tail."""
        return len(self.lead) + len(self.trail)

    def encode(self, text: str) -> Encoding:
        """Encode head, text and tail; offsets count from the beginning of head."""
        return encode(self.tokenizer, self.head + text + self.tail)

    def tokens(self, text: str) -> list[int]:
        """The whole part."""
        return [*self.lead, *self.encode(text).ids, *self.trail]


class TemplateTokenizer:
    """Tokenises as a tokenizer does a whole text, and puts other texts in without any marker of theirs.

    Markers are the tokenizer's special tokens, and every other added token that is not white space and that the
    template writes: many models have turn markers that are not called special.
    """

    def __init__(self, tokenizer: Tokenizer, template: str = "") -> None:
        """tokenizer: from now on it takes special tokens for text. template: all that the template writes."""
        tokenizer.encode_special_tokens = True
        self._whole = tokenizer
        added = {
            token.content: (index, token) for index, token in tokenizer.get_added_tokens_decoder().items()
        }
        inside = [name for name in added if name in template and not name.isspace()]  # of thousands
        written = set(any_of(inside).findall(template))
        self._markers = {
            name: (index, token)
            for name, (index, token) in added.items()
            if token.special or (name in written and not name.isspace())
        }
        self._pattern = any_of(self._markers)
        self._at_start = _hide(tokenizer, self._markers)
        self._after_special = _change_prefix(self._at_start, is_within_text=False)
        self._within_text = _change_prefix(self._at_start, is_within_text=True)

    def markers(self, text: str) -> tuple[int, ...]:
        """The ids of the markers in a template's text."""
        return tuple(self._markers[name][0] for name in self._pattern.findall(text))

    def encode_whole(self, text: str, fill: Mapping[str, str]) -> list[int]:
        """Tokens of a template's filled text, as the tokenizer itself takes it."""
        self._whole.encode_special_tokens = False
        ids = self._encode_piece(text, self._whole, fill)
        self._whole.encode_special_tokens = True
        return ids

    def encode(self, text: str, fill: Mapping[str, str], place: Place = "start") -> list[int]:
        """Tokens of a template's text. fill: mark -> text. place: where the text begins."""
        ids: list[int] = []
        for piece in self._split(text, place):
            ids += [piece] if isinstance(piece, int) else self._encode_piece(*piece, fill)
        return ids

    def gap(self, text: str, mark: str, fill: Mapping[str, str]) -> Gap:
        """The gap of a text with one more mark, which is filled later."""
        lead: list[int] = []
        gap: Gap | None = None
        for piece in self._split(text, "start"):
            if not isinstance(piece, int) and mark in piece[0]:
                head, tail = (_fill(part, fill) for part in piece[0].split(mark))
                gap = Gap(lead, head, tail, [], piece[1])
            else:
                target = lead if gap is None else gap.trail
                target += [piece] if isinstance(piece, int) else self._encode_piece(*piece, fill)
        assert gap is not None  # the mark is in the text
        return gap

    def _encode_piece(self, text: str, tokenizer: Tokenizer, fill: Mapping[str, str]) -> list[int]:
        return list(encode(tokenizer, _fill(text, fill)).ids)

    def _split(self, text: str, place: Place) -> list[int | tuple[str, Tokenizer]]:
        """Markers as their ids, and the texts between them with the tokenizer for each."""
        pieces: list[int | tuple[str, Tokenizer]] = []
        tokenizer = {"start": self._at_start, "marker": self._after_special, "text": self._within_text}[place]
        start = 0
        strips = False  # the marker before swallows white space
        for match in self._pattern.finditer(text):
            index, token = self._markers[match.group()]
            between = text[start : match.start()]
            between = between.lstrip() if strips else between
            between = between.rstrip() if token.lstrip else between
            pieces += [(between, tokenizer)] if between else []
            pieces.append(index)
            tokenizer, start, strips = self._after_special, match.end(), token.rstrip
        rest = text[start:].lstrip() if strips else text[start:]
        return [*pieces, (rest, tokenizer)] if rest else pieces


def any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Matches the longest of some texts; nothing if there are none."""
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)")


def _fill(text: str, fill: Mapping[str, str]) -> str:
    return ANY_MARK.sub(lambda match: fill.get(match.group(), match.group()), text)


def _hide(tokenizer: Tokenizer, markers: Mapping[str, tuple[int, AddedToken]]) -> Tokenizer:
    """The tokenizer for texts that others wrote: it makes none of these tokens.

    BPE makes tokens by its merges, which never lead to an added token. Other models know whole pieces, among them the
    markers, which therefore get names that no text holds.
    """
    if isinstance(tokenizer.model, BPE):
        if all(token.special for _, token in markers.values()):
            return tokenizer
        copy = copy_tokenizer(tokenizer, special=markers)
        copy.encode_special_tokens = True
        return copy
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in markers]
    pieces = state["model"]["vocab"]
    if isinstance(pieces, dict):
        kept = {name: index for name, index in pieces.items() if name not in markers}
        hidden = {f"\ufdd4{index}": index for name, index in pieces.items() if name in markers}
        state["model"]["vocab"] = kept | hidden
    else:
        unknown = state["model"].get("unk_id")
        for index, (name, score) in enumerate(pieces):
            if name in markers and index != unknown:
                pieces[index] = [f"\ufdd4{index}", score]
    copy = Tokenizer.from_str(json.dumps(state))
    copy.encode_special_tokens = True
    return copy


def _change_prefix(tokenizer: Tokenizer, *, is_within_text: bool) -> Tokenizer:
    """The tokenizer for a text that does not begin a sequence: without the space that it puts before the first word.

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
    """A normaliser or pre-tokenizer, as JSON."""
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
