"""`tandem ask --provisional` on a pseudo-terminal: what stands there at the end is the committed text and the notes.

The command runs in a process of its own, on a scripted Tandem; what it wrote is played on a small terminal that wraps
and scrolls as real ones do.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import pty
import random
import re
import struct
import subprocess
import sys
import termios
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pytest

from tandem.events import DoneEvent, Event, PeerEvent, ProvisionalEvent, RetractEvent, Source, SourcesEvent
from tandem.topology import Party

from .conftest import statistics, token

CHILD = """
import pickle, sys, types
from tests.unit.cli.conftest import FakeTandem
from tandem.cli import main
module = types.ModuleType("tandem.client")
module.Tandem = FakeTandem(script=pickle.load(open(sys.argv[1], "rb")))
sys.modules["tandem.client"] = module
sys.exit(main(["ask", "Which game?", *sys.argv[2:]]))
"""
ROOT = Path(__file__).parents[3]
PIECES = (
    " Mira", " likes", " puzzle", " games", ".", "\n", "漢字", " かな", "🙂", " e\u0301te\u0301", " ते", " กำ",
    "\u1112\u1161", " donaudampfschifffahrt", "  ", " ok\ufe0f",
)  # fmt: skip


class Terminal:
    """Rows of cells; a character beyond the last column wraps, a line beyond the last row scrolls all up."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.row, self.column = 0, 0
        self.rows: list[list[str]] = [[" "] * width for _ in range(height)]
        self.scrolled: list[list[str]] = []

    def play(self, text: str) -> None:
        for control, character in re.findall(r"\x1b\[(\d*[A-Za-z])|(.)", text, re.DOTALL):
            if control:
                self._control(int(control[:-1] or 1), control[-1])
            elif character == "\n":
                self._down()
            elif character == "\r":
                self.column = 0
            else:
                self._put(character)

    def text(self) -> list[str]:
        """All lines, those that scrolled away first, without the spaces behind them."""
        return ended(["".join(row).rstrip() for row in [*self.scrolled, *self.rows]])

    def _control(self, count: int, name: str) -> None:
        match name:
            case "A":
                self.row = max(0, self.row - count)
            case "C":
                self.column = min(self.width - 1, self.column + count)
            case "J":
                self.rows[self.row][self.column :] = [" "] * (self.width - self.column)
                self.rows[self.row + 1 :] = [[" "] * self.width for _ in self.rows[self.row + 1 :]]
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


def shown(folder: Path, width: int, height: int, events: Sequence[Event], *options: str) -> Terminal:
    """The terminal after the command."""
    script = folder / "events"
    script.write_bytes(pickle.dumps(list(events)))
    terminal, child_end = pty.openpty()
    fcntl.ioctl(child_end, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "TERM": "xterm"}
    command = [sys.executable, "-c", CHILD, str(script), "--provisional", *options]
    child = subprocess.Popen(
        command, stdin=child_end, stdout=child_end, stderr=child_end, cwd=folder, env=environment
    )
    os.close(child_end)
    written = b""
    try:
        while piece := _read(terminal):
            written += piece
    finally:
        os.close(terminal)
        assert child.wait(30) == 0, written
    assert b"\x1b[2m" in written, "provisional text was shown"
    screen = Terminal(width, height)
    screen.play(written.decode())
    return screen


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


def answer(rng: random.Random, num_tokens: int, ahead: int) -> tuple[list[Event], str]:
    """An answer with up to `ahead` provisional tokens, a third of them wrong; and its text."""
    events: list[Event] = []
    shown: list[str] = []
    texts = ["Mira", *rng.choices(PIECES, k=num_tokens - 1)]
    for step, text in enumerate(texts):
        while len(shown) < min(num_tokens, step + rng.randrange(ahead + 1)):
            shown.append(rng.choice(PIECES) if rng.random() < 0.3 else texts[len(shown)])
            events.append(ProvisionalEvent(step=len(shown) - 1, token=0, text=shown[-1], shown_at_s=0.1))
        if len(shown) > step and shown[step] != text:
            del shown[step:]
            events.append(RetractEvent(step=step))
        shown += [text] if len(shown) == step else []
        events.append(token(step, text))
    return [*events, DoneEvent(reason="eos", statistics=statistics())], "".join(texts)


def broken(text: str, width: int) -> list[str]:
    """The lines of a text on a terminal whose last column stays free, without the spaces behind them."""
    lines, column = [""], 0
    for character in text:
        if character == "\n" or column + cells(character) >= width:
            lines, column = [*lines, ""], 0
        lines[-1] += character.strip("\n")
        column += 0 if character == "\n" else cells(character)
    return [line.rstrip() for line in lines]


def ended(lines: list[str]) -> list[str]:
    """Without empty lines at the end."""
    return ended(lines[:-1]) if lines and not lines[-1] else lines


@pytest.mark.parametrize(("width", "height"), [(9, 60), (9, 3), (20, 12), (80, 24)])
def test_the_committed_text_remains(tmp_path: Path, width: int, height: int) -> None:
    events, text = answer(random.Random(width), 150, ahead=6)
    terminal = shown(tmp_path, width, height, events, "--quiet")
    assert terminal.text() == ended(broken(text, width))
    assert terminal.column == 0, "the next prompt has a line of its own"


def test_notes_have_lines_of_their_own(tmp_path: Path) -> None:
    """Sources that come after provisional text and before the first token; a peer that is lost amid the answer."""
    source = Source(party=Party.DEVICE, id="d1", title="notes.txt", score=0.5)
    events: list[Event] = [
        ProvisionalEvent(step=0, token=0, text=" Mira", shown_at_s=0.1),
        SourcesEvent(party=Party.DEVICE, sources=(source,), retrieve_s=0.02, prefill_s=0.1),
        ProvisionalEvent(step=1, token=0, text=" likes", shown_at_s=0.1),
        token(0, " Mira"),
        SourcesEvent(party=Party.CLOUD, sources=(), retrieve_s=0.02, prefill_s=0.1),
        PeerEvent(step=1, is_alone=True),
        token(1, " likes"),
        ProvisionalEvent(step=2, token=0, text=" cats", shown_at_s=0.1),
        RetractEvent(step=2),
        token(2, " games"),
        DoneEvent(reason="eos", statistics=statistics()),
    ]
    lines = shown(tmp_path, 100, 40, events).text()
    told = [re.sub(r"^\[.*?\] +", "", line) for line in lines[: lines.index("Sources") - 1]]
    assert told == [
        "nodes      2 up (device, cloud)",
        "device     1 document in 0.02 s",
        "Mira",
        "cloud      lost at token 1, the device goes on alone",
        " likes games",
    ]
