"""A small terminal that wraps and scrolls as real ones do, on which the output of a command is played."""

from __future__ import annotations

import re
import unicodedata


class Terminal:
    """Rows of cells; a character beyond the last column wraps, a line beyond the last row scrolls all up."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.row, self.column = 0, 0
        self.is_cursor_hidden = False
        self.written = ""
        self.rows: list[list[str]] = [[" "] * width for _ in range(height)]
        self.scrolled: list[list[str]] = []

    def play(self, text: str) -> None:
        self.written += text
        for control, character in re.findall(r"\x1b\[(\??\d*[A-Za-z])|(.)", text, re.DOTALL):
            if control.startswith("?25"):
                self.is_cursor_hidden = control[-1] == "l"
            elif control:
                self._control(int(control[:-1] or 0), control[-1])
            elif character == "\n":
                self._down()
            elif character == "\r":
                self.column = 0
            else:
                self._put(character)

    def text(self) -> list[str]:
        """All lines, those that scrolled away first, without the spaces behind them."""
        return strip_end(["".join(row).rstrip() for row in [*self.scrolled, *self.rows]])

    def _control(self, count: int, name: str) -> None:
        match name:
            case "A":
                assert self.row >= count, "the cursor leaves the screen"
                self.row -= count
            case "K":
                assert count == 2, "of the whole line"
                self.rows[self.row] = [" "] * self.width
            case "m":
                pass
            case _:
                raise AssertionError(f"an unknown control {name!r}")

    def _put(self, character: str) -> None:
        wide = cells(character)
        assert character.isprintable() or wide == 0, repr(character)
        if wide == 0:
            self.rows[self.row][max(0, self.column - 1)] += character
            return
        if self.column + wide > self.width:
            self.column = 0
            self._down()
        self.rows[self.row][self.column : self.column + wide] = [character, *[""] * (wide - 1)]
        self.column += wide

    def _down(self) -> None:
        self.row += 1
        if self.row == self.height:
            self.row -= 1
            self.scrolled.append(self.rows.pop(0))
            self.rows.append([" "] * self.width)


def cells(character: str) -> int:
    """As terminals count: marks that stand over, under or within another character take none."""
    if unicodedata.category(character) in ("Mn", "Me", "Cf") or "\u1160" <= character <= "\u11ff":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def fold(text: str, width: int) -> list[str]:
    """The lines of a text on a terminal whose last column stays free, without the spaces behind them."""
    lines, column = [""], 0
    for character in text:
        if character == "\n" or column + cells(character) >= width:
            lines, column = [*lines, ""], 0
        lines[-1] += character.strip("\n")
        column += 0 if character == "\n" else cells(character)
    return [line.rstrip() for line in lines]


def strip_end(lines: list[str]) -> list[str]:
    """Without empty lines at the end."""
    return strip_end(lines[:-1]) if lines and not lines[-1] else lines
