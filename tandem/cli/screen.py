"""An answer on a terminal while it grows, with provisional text behind it, dimmed, that may be taken back.

Knows the size of the terminal and where its own text ends; nothing of queries. It breaks lines itself, so that it
always knows the row and column of what it wrote.
"""

from __future__ import annotations

import shutil
import sys
import unicodedata
from typing import TextIO

DIM, NORMAL = "\x1b[2m", "\x1b[22m"
CLEAR_BELOW = "\x1b[J"
TAB = 4
"""Spaces that stand for a tab."""


class Screen:
    """Committed text, then provisional pieces by step."""

    def __init__(self, out: TextIO | None = None) -> None:
        """out: a terminal; None: stdout."""
        self.has_begun = False
        self._out = out or sys.stdout
        size = shutil.get_terminal_size()
        self._width, self._height = max(2 * TAB, size.columns), size.lines
        self._column = 0  # where the committed text ends
        self._pieces: dict[int, str] = {}  # provisional, by step
        self._rows = 0  # that the provisional text takes below the committed one

    def propose(self, step: int, text: str) -> None:
        """A provisional token adds `text`."""
        self._pieces[step] = text
        self._draw("")

    def retract(self, step: int) -> None:
        """Provisional text from `step` on is void."""
        self._pieces = {known: text for known, text in self._pieces.items() if known < step}
        self._draw("")

    def commit(self, step: int, text: str) -> None:
        """A committed token adds `text`, in the place of its provisional piece."""
        self._pieces.pop(step, None)
        text = text if self.has_begun else text.lstrip()
        self.has_begun = self.has_begun or bool(text)
        self._draw(text)

    def interrupt(self) -> None:
        """Somebody else is about to write whole lines: hide the provisional text until the next draw, end the line."""
        self._write(self._erased() + ("\n" if self._column else ""))
        self._column = self._rows = 0

    def end(self) -> None:
        """Nothing more comes: the committed text stays, with an end of line."""
        self._pieces.clear()
        self._draw("")
        if self.has_begun:
            self._write("\n")
        self._column = 0

    def _draw(self, committed: str) -> None:
        """Erase what is provisional, write what is newly committed, then what is provisional now."""
        erased = self._erased()
        body, self._column = self._broken(committed, self._column)
        tail = "".join(self._pieces[step] for step in sorted(self._pieces))
        shown, _ = self._broken(tail if self.has_begun else tail.lstrip(), self._column)
        # No row that scrolls away can be erased, so the one where the committed text ends must stay.
        shown = "\n".join(shown.split("\n")[: self._height])
        self._rows = shown.count("\n")
        self._write(erased + body + (f"{DIM}{shown}{NORMAL}" if shown else ""))

    def _erased(self) -> str:
        """What takes the provisional text away, the cursor back to the end of the committed one."""
        back = f"\x1b[{self._rows}A" if self._rows else ""
        return f"{back}\r" + (f"\x1b[{self._column}C" if self._column else "") + CLEAR_BELOW

    def _broken(self, text: str, column: int) -> tuple[str, int]:
        """`text` from `column` on with line breaks where the terminal ends, and the column after it."""
        parts = []
        for character in filter(_is_shown, text):
            cells = _cells(character)
            # The last column stays free: where the cursor is behind it differs between terminals.
            if character == "\n" or column + cells >= self._width:
                parts.append("\n")
                column = 0
            if character != "\n":
                parts.append(" " * cells if character == "\t" else character)
                column += cells
        return "".join(parts), column

    def _write(self, text: str) -> None:
        print(text, end="", file=self._out, flush=True)


def _is_shown(character: str) -> bool:
    """Not what would move the cursor behind our back."""
    return character in "\n\t" or unicodedata.category(character) != "Cc"


def _cells(character: str) -> int:
    """Columns that a character takes."""
    if character == "\t":
        return TAB
    category = unicodedata.category(character)
    if character == "\n" or category in ("Mn", "Me", "Cf") or "\u1160" <= character <= "\u11ff":
        return 0  # what stands over, under or within another character; the range is of vowels within a Hangul syllable
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
