"""The texts around a document and a question, with marks where these go, and as a user writes them in `template.json`.

A template is text of the model's maker or of the user: special tokens in it are recognised, and so is every other added
token that it writes. What takes the place of a mark (a document, a question, an earlier answer) is somebody's text, in
which none of them is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from tandem.errors import GenerationError, nearest
from tandem.system.paths import suggest_path

TEMPLATE_FILE = "template.json"

DOCUMENT = "\ufdd0"
"""The mark of the document. It is a noncharacter of Unicode: no text holds it."""

SYSTEM = "\ufdd3"
"""The mark of a system prompt that holds something which the tokenizer has as a token of its own."""


def turn_mark(number: int) -> str:
    """The mark of the content of a message: 0 is the first question, 1 its answer, and so on; the last is asked now."""
    return f"\ufdd1{number}\ufdd2"


class Template(Protocol):
    """The text of a row: `document` or `bare`, then `question`."""

    @property
    def document(self) -> str:
        """The cacheable part of a row with a document: holds the mark DOCUMENT once."""

    @property
    def bare(self) -> str:
        """What a row without a document has in its place."""

    @property
    def is_complete(self) -> bool:
        """Whether it writes its own beginning-of-sequence, so that none is added."""

    @property
    def texts(self) -> Mapping[str, str]:
        """Mark -> text, for marks whose text is the same in every row."""

    @property
    def after_answer(self) -> str:
        """What stands between an earlier answer and the next question: special tokens in it end answers."""

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits of all that it writes, whatever the day."""

    @property
    def writes_day(self) -> bool:
        """Whether it writes the day of the query."""

    def on(self, day: str) -> Template:
        """The same on a day, as 2026-11-25, for templates that write it; itself if it does not."""

    def answer(self, text: str) -> str:
        """What it makes of an earlier answer: it may leave out what the model thought."""

    def question(self, num_turns: int) -> str:
        """What follows in every row. num_turns: earlier messages, whose marks it holds before the question's."""

    def describe(self) -> str:
        """In a few words, for a user."""


@dataclass(frozen=True, slots=True)
class PlainTemplate:
    """Two texts with placeholders. GenerationError if one does not hold its own exactly once."""

    document_text: str = "{document}\n\n"  # the cacheable part
    query_text: str = "Question: {query}\nAnswer:"  # what follows it; alone in a row without a document
    source: str = ""  # the file that they come from

    def __post_init__(self) -> None:
        for name, part in (("document", self.document_text), ("query", self.query_text)):
            placeholder = "{" + name + "}"
            if not isinstance(part, str) or part.count(placeholder) != 1:
                raise GenerationError(
                    f"The template's part {name!r} must be a text that holds {placeholder} once, "
                    f"but it is {part!r:.200}; correct {self.source or 'it'}."
                )

    @classmethod
    def read(cls, path: Path) -> PlainTemplate:
        """From a file with the keys document and query, of which one may be missing. Raises GenerationError."""
        try:
            parts = json.loads(path.read_text(encoding="utf-8"))
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
    def document(self) -> str:
        """With the mark for the placeholder."""
        return self.document_text.replace("{document}", DOCUMENT)

    @property
    def bare(self) -> str:
        """Nothing."""
        return ""

    @property
    def is_complete(self) -> bool:
        """No: every row begins as the tokenizer begins a text."""
        return False

    @property
    def texts(self) -> Mapping[str, str]:
        """None."""
        return {}

    @property
    def after_answer(self) -> str:
        """No special token."""
        return ""

    @property
    def fingerprint(self) -> str:
        """Of both texts."""
        return fingerprint_texts(self.document_text, self.query_text)

    @property
    def writes_day(self) -> bool:
        """No."""
        return False

    def on(self, day: str) -> PlainTemplate:
        """Itself."""
        return self

    def answer(self, text: str) -> str:
        """The answer as it is."""
        return text

    def question(self, num_turns: int) -> str:
        """Earlier questions in the same form, each with its answer after it."""
        parts = []
        for number in range(0, num_turns + 1, 2):
            parts.append(self.query_text.replace("{query}", turn_mark(number)))
            if number < num_turns:
                gap = "" if parts[-1][-1].isspace() else " "
                parts.append(f"{gap}{turn_mark(number + 1)}\n\n")
        return "".join(parts)

    def describe(self) -> str:
        """Where it is from."""
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
