"""Provisional text on a terminal: a small terminal is played, and what stands on it is read."""

from __future__ import annotations

import io
import os
import random
import re
import shutil

import pytest

from tandem.cli.screen import Screen

ALPHABET = ("a", " word", "\n", "é", "漢", "e\u0301", "  ", "\t", " longer words", "\x1b[31m")


class Terminal(io.StringIO):
    """Rows of cells, and the few controls that a Screen uses. A character beyond the last column is an error."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, self.row, self.column, self.rows = width, 0, 0, [""]

    def write(self, text: str) -> int:
        for control, character in re.findall(r"\x1b\[(\d*[A-Zm])|(.)", text, re.DOTALL):
            if control:
                self._control(control)
            elif character == "\n":
                self.row, self.column = self.row + 1, 0
                if self.row == len(self.rows):
                    self.rows.append("")
            elif character == "\r":
                self.column = 0
            else:
                self._put(character)
        return len(text)

    def _control(self, control: str) -> None:
        count = int(control[:-1] or 0)
        match control[-1]:
            case "A":
                self.row -= count
                assert self.row >= 0
            case "C":
                self.column += count
            case "J":
                self.rows[self.row] = self._cut(self.rows[self.row])
                del self.rows[self.row + 1 :]

    def _cut(self, row: str) -> str:
        """The characters of a row before the cursor."""
        kept, cells = "", 0
        for character in row:
            cells += _width(character)
            if cells > self.column:
                break
            kept += character
        return kept

    def _put(self, character: str) -> None:
        assert character.isprintable(), repr(character)
        self.rows[self.row] += character
        self.column += _width(character)
        assert self.column < self.width, "the last column stays free"


def _width(character: str) -> int:
    return {"漢": 2, "\u0301": 0}.get(character, 1)


def read(terminal: Terminal) -> str:
    """All but what a line break or a tab may have changed."""
    return re.sub(r"\s", "", "".join(terminal.rows))


def squeezed(text: str) -> str:
    return re.sub(r"\s|\x1b", "", text)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Terminal:
    width = getattr(request, "param", 20)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((width, 24)))
    return Terminal(width)


@pytest.mark.parametrize("terminal", [8, 20, 80], indirect=True)
def test_what_stands_there_is_always_committed_then_provisional(terminal: Terminal) -> None:
    rng = random.Random(terminal.width)
    for _ in range(30):
        terminal.__init__(terminal.width)  # type: ignore[misc]
        screen, committed, pieces = Screen(terminal), "", list[str]()
        step = 0
        for _ in range(60):
            match rng.choice(["propose", "propose", "commit", "retract"]):
                case "propose":
                    pieces.append(rng.choice(ALPHABET))
                    screen.propose(step + len(pieces) - 1, pieces[-1])
                case "retract" if pieces:
                    cut = rng.randrange(len(pieces))
                    del pieces[cut:]
                    screen.retract(step + cut)
                case "commit":
                    text = pieces.pop(0) if pieces else rng.choice(ALPHABET)
                    screen.commit(step, text)
                    committed, step = committed + text, step + 1
            assert read(terminal) == squeezed(committed + "".join(pieces))
        screen.end()
        assert read(terminal) == squeezed(committed)
        assert terminal.column == 0


def test_the_leading_space_is_left_out_provisional_or_not(terminal: Terminal) -> None:
    screen = Screen(terminal)
    screen.propose(0, " Mira")
    screen.propose(1, " likes")
    assert terminal.rows == ["Mira likes"]
    screen.retract(1)
    screen.commit(0, " Mira")
    screen.commit(1, " hates")
    screen.end()
    assert terminal.rows == ["Mira hates", ""]


def test_what_others_write_in_between_stays(terminal: Terminal) -> None:
    screen = Screen(terminal)
    screen.commit(0, "One")
    screen.propose(1, " two")
    screen.interrupt()
    terminal.write("a note\n")
    screen.propose(2, " three")
    assert terminal.rows == ["One", "a note", " two three"]
    screen.commit(1, " two")
    screen.retract(2)
    screen.end()
    assert terminal.rows == ["One", "a note", " two", ""]
