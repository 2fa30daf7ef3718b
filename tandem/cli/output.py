"""The output of the commands: stages and progress on stderr; passages for people, JSON for scripts."""

from __future__ import annotations

import json
import math
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard

from tandem.client.answers import to_plain

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 100
INDENT = TAB = "    "
PLACE_KEYS = ("source", "chunk", "page", "line")
"""Metadata that say where a passage is; its heading shows them."""


def open_console(*, stderr: bool = False) -> Console:
    """A rich console for plain text on stdout or stderr; in a pipe it writes neither colour nor control characters."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, force_terminal=stream.isatty(), highlight=False, markup=False, emoji=False)


class StageLog:
    """Lines on stderr that say what happens and when, counted from the first moment of the command."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self.is_quiet = is_quiet
        self._console = None if is_quiet else open_console(stderr=True)
        self._start_s = time.monotonic()

    def __call__(self, line: str) -> None:
        """Print "stage: what happened" as one aligned line."""
        if self._console is None:
            return
        from rich.text import Text

        stage, colon, rest = _fit(printable(line), sys.stderr).partition(": ")
        what = f"{stage:<10} {rest}" if colon else stage
        elapsed = f"[{time.monotonic() - self._start_s:5.1f} s]"
        self._console.print(Text.assemble((elapsed, "dim"), " ", what), soft_wrap=True)


@contextmanager
def progress_bar(label: str, *, is_quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A function of (done, total) that shows progress as a bar on stderr, where that is a terminal."""
    from rich.progress import Progress

    console = open_console(stderr=True)
    is_hidden = is_quiet or not console.is_terminal
    with Progress(console=console, redirect_stdout=False, disable=is_hidden) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


# ---- the one way out for text: nothing that came from outside steers the terminal -----------------------------


def emit(*values: object, sep: str = " ", end: str = "\n", to_stderr: bool = False) -> None:
    """Print at once, without characters that steer a terminal; what the stream's encoding lacks becomes "?"."""
    stream = sys.stderr if to_stderr else sys.stdout
    print(_fit(clean(sep.join(map(str, values))), stream), end=end, file=stream, flush=True)


def _fit(text: str, stream: Any) -> str:
    """The part of a text that a stream can write."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def clean(text: str) -> str:
    """Without what moves a cursor, colours or commands a terminal, or reorders what stands around it."""
    return _STEERING.sub("", text)


def printable(text: str) -> str:
    """The text with spaces in place of tabs, for text that is folded or drawn in columns."""
    return clean(text.replace("\t", TAB))


_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters but line end and tab, and Unicode's controls of the writing direction (category Cf)."""
_ESCAPED = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""The same in JSON, which escapes the others anyway, with line ends of Unicode and halves of surrogate pairs."""


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """One JSON object on stdout, as `to_plain` has it, in ASCII where stdout is not UTF-8; a line with indent None."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    text = json.dumps(to_plain(value), indent=indent, ensure_ascii=encoding != "utf8")
    print(_ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text), flush=True)


class PlainText:
    """Writes committed text to stdout as it comes."""

    def __init__(self, *, is_silent: bool = False) -> None:
        self._is_silent = is_silent
        self.has_begun = False

    def commit(self, step: int, text: str) -> None:
        """A committed token adds `text`; the space that tokenizers put before the first word is left out."""
        text = text if self.has_begun else text.lstrip()
        if text and not self._is_silent:
            self.has_begun = True
            emit(text, end="")

    def end(self) -> None:
        """Nothing more comes."""
        if self.has_begun:
            emit()


def warn(sentence: str) -> None:
    """One sentence on stderr that does not end the command."""
    emit(f"tandem: {sentence}", to_stderr=True)


def plural(count: int, noun: str) -> str:
    """A count with its noun: 1 chunk, 2 chunks."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


# ---- Passages: where each comes from, how well it fits, and what it says --------------------------------------


def describe_place(title: str | None, page: int | None, line: int | None) -> str:
    """A document's title, and its page or line if it has some."""
    name = printable(title or "a document without a source")
    places = (f", {key} {number}" for key, number in (("page", page), ("line", line)) if number is not None)
    return name + next(places, "")


def describe_score(score: float | None) -> str:
    """A score in four columns; nothing where it is not known."""
    return f"{score:4.2f}" if is_scored(score) else ""


def is_scored(score: float | None) -> TypeGuard[float]:
    """Whether a score is known: the other party's are not."""
    return score is not None and not math.isnan(score)


def text_lines(text: str) -> Iterator[str]:
    """A text below its heading: indented, folded, without what would move a cursor."""
    for line in printable(text).splitlines():
        yield from (INDENT + part for part in textwrap.wrap(" ".join(line.split()), WIDTH - len(INDENT)))


def metadata_line(metadata: Mapping[str, Any]) -> str:
    """The metadata that a file brought along, as one line; "" if there are none."""
    values = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        for key, value in metadata.items()
        if key not in PLACE_KEYS
    }
    return INDENT + printable(", ".join(f"{key}={value}" for key, value in values.items())) if values else ""
