"""What the commands print: stages and progress on stderr, live text on a terminal, JSON for scripts."""

from __future__ import annotations

import json
import math
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

NUM_PROGRESS_LINES = 10
TAB = "    "


def open_console(*, stderr: bool = False) -> Console:
    """A rich console for plain text on stdout or stderr; in a pipe it writes neither colour nor control characters."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, force_terminal=stream.isatty(), highlight=False, markup=False, emoji=False)


class StageLog:
    """Lines on stderr that say what happens and when, counted from the first moment of the command."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._console = None if is_quiet else open_console(stderr=True)
        self._start_s = time.monotonic()

    def __call__(self, line: str) -> None:
        """Print "stage: what happened" as one aligned line."""
        if self._console is None:
            return
        from rich.text import Text

        stage, colon, rest = line.partition(": ")
        what = f"{stage:<10} {rest}" if colon else line
        elapsed = f"[{time.monotonic() - self._start_s:5.1f} s]"
        self._console.print(Text.assemble((elapsed, "dim"), " ", what), soft_wrap=True)


@contextmanager
def progress_bar(label: str, *, is_quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A function of (done, total) that shows progress on stderr: a bar on a terminal, ten lines elsewhere."""
    if is_quiet:
        yield lambda done, total: None
    elif not sys.stderr.isatty():
        yield _line_printer(label)
    else:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        with Progress(*columns, console=open_console(stderr=True), redirect_stdout=False) as progress:
            task = progress.add_task(label, total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)


def _line_printer(label: str) -> Callable[[int, int], None]:
    """Prints a line for every tenth of the way."""
    last_tenth = -1

    def advance(done: int, total: int) -> None:
        nonlocal last_tenth
        tenth = done * NUM_PROGRESS_LINES // max(1, total)
        if tenth != last_tenth:
            last_tenth = tenth
            print(f"{label}: {100 * done // max(1, total)} %", file=sys.stderr, flush=True)

    return advance


class PlainText:
    """Writes committed text to stdout as it comes; provisional text is not shown."""

    def __init__(self, *, is_silent: bool = False) -> None:
        self._is_silent = is_silent
        self.has_begun = False

    def propose(self, step: int, text: str) -> None:
        """A provisional token adds `text`."""

    def retract(self, step: int) -> None:
        """Provisional text from `step` on is void."""

    def interrupt(self) -> None:
        """Somebody else is about to write whole lines."""

    def commit(self, step: int, text: str) -> None:
        """A committed token adds `text`; the space that tokenizers put before the first word is left out."""
        text = text if self.has_begun else text.lstrip()
        if text and not self._is_silent:
            self.has_begun = True
            print(text, end="", flush=True)

    def end(self) -> None:
        """Nothing more comes."""
        if self.has_begun:
            print(flush=True)


class LiveText:
    """The twin of PlainText on a terminal: provisional text stands dimmed behind the committed text until it is
    committed or retracted. Lines that are complete scroll up; the last one is redrawn with what follows it."""

    @staticmethod
    def is_possible() -> bool:
        """Whether stdout is a terminal that can take text back."""
        return sys.stdout.isatty() and not open_console().is_dumb_terminal

    def __init__(self) -> None:
        from rich.live import Live

        self.has_begun = False
        self._console = open_console()
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._line = ""  # committed text of the last line so far
        self._pieces: dict[int, str] = {}  # provisional, by step

    def propose(self, step: int, text: str) -> None:
        """A provisional token adds `text`."""
        self._pieces[step] = printable(text)
        self._draw()

    def retract(self, step: int) -> None:
        """Provisional text from `step` on is void."""
        self._pieces = {known: text for known, text in self._pieces.items() if known < step}
        self._draw()

    def commit(self, step: int, text: str) -> None:
        """A committed token adds `text`, in the place of its provisional piece."""
        self._pieces.pop(step, None)
        text = printable(text)
        self._line += text if self.has_begun else text.lstrip()
        self.has_begun = self.has_begun or bool(self._line)
        self._draw()

    def interrupt(self) -> None:
        """Somebody else is about to write whole lines: take the last line away until the next event."""
        if self._live.is_started:
            self._live.update("", refresh=True)

    def end(self) -> None:
        """Nothing more comes: the committed text stays, with an end of line."""
        self._pieces.clear()
        self._live.transient = not self.has_begun
        self._draw()
        self._live.stop()

    def _draw(self) -> None:
        """Print the lines that are complete, then the last one and what is provisional."""
        from rich.text import Text

        self._live.start()
        *complete, self._line = self._fold(self._line)
        tail = "".join(self._pieces[step] for step in sorted(self._pieces))
        lines = self._fold(self._line + (tail if self.has_begun else tail.lstrip()))
        text = Text("\n".join(lines), no_wrap=True, overflow="ignore")
        text.stylize("dim", len(self._line))
        with self._console:  # one write
            if complete:
                self._console.print(Text("\n".join(complete), no_wrap=True, overflow="ignore"))
            self._live.update(text, refresh=True)

    def _fold(self, text: str) -> list[str]:
        """Lines that fit; the last column stays free, as terminals differ in where the cursor goes behind it."""
        from rich.cells import chop_cells

        width, folded = max(2, self._console.width - 1), list[str]()
        for paragraph in text.split("\n"):
            lines = chop_cells(paragraph, width) or [""]
            lines[-1] += paragraph[sum(map(len, lines)) :]  # what takes no cell is left out by chop_cells
            folded += lines
        return folded


def printable(text: str) -> str:
    """Without characters that would move the cursor; a tab becomes spaces."""
    return "".join(
        character
        for character in text.replace("\t", TAB)
        if character == "\n" or unicodedata.category(character) != "Cc"
    )


def print_json(value: Any) -> None:
    """One JSON object on stdout."""
    print(json.dumps(json_safe(value), indent=2, ensure_ascii=False))


def json_safe(value: Any) -> Any:
    """A value with null in the place of every nan and infinity, which JSON lacks."""
    if isinstance(value, dict):
        return {str(key): json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def warn(sentence: str) -> None:
    """One sentence on stderr that does not end the command."""
    print(f"tandem: {sentence}", file=sys.stderr)


def plural(count: int, noun: str) -> str:
    """A count with its noun: 1 chunk, 2 chunks."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
