"""Live text on a terminal and progress: a small terminal is played, and what stands on it is read."""

from __future__ import annotations

import io
import json
import random
import re
import sys
from collections.abc import Callable

import pytest

from tandem.cli.output import PlainText, StageLog, emit, print_json, progress_bar, warn
from tandem.cli.stream import LiveText

from .terminal import Terminal

ALPHABET = ("a", " word", "\n", "\u00e9", "\u6f22", "e\u0301", "  ", "\t", " longer words", "\x1b[31m")
Open = Callable[[int], Terminal]


class Stream(io.StringIO):
    """Plays what is written on a terminal."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__()
        self._terminal = terminal

    def write(self, text: str) -> int:
        self._terminal.play(text.replace("\n", "\r\n"))  # as the terminal driver does
        return super().write(text)

    def isatty(self) -> bool:
        return True


@pytest.fixture
def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Open:
    """Makes stdout and stderr a terminal of some width."""
    monkeypatch.setenv("TERM", "xterm")

    def open_terminal(width: int) -> Terminal:
        terminal = Terminal(width, 200)
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("LINES", "200")
        monkeypatch.setattr(sys, "stdout", Stream(terminal))
        monkeypatch.setattr(sys, "stderr", Stream(terminal))
        return terminal

    return open_terminal


def read(terminal: Terminal) -> str:
    """All but what a line break or a tab may have changed."""
    return squeezed("".join(terminal.text()))


def squeezed(text: str) -> str:
    return re.sub(r"\s|\x1b", "", text)


@pytest.mark.parametrize("width", [8, 20, 80])
def test_what_stands_there_is_always_committed_then_provisional(width: int, open_terminal: Open) -> None:
    rng = random.Random(width)
    for _ in range(30):
        terminal = open_terminal(width)
        live, committed, pieces = LiveText(), "", list[str]()
        step = 0
        for _ in range(60):
            match rng.choice(["propose", "propose", "commit", "retract"]):
                case "propose":
                    pieces.append(rng.choice(ALPHABET))
                    live.propose(step + len(pieces) - 1, pieces[-1])
                case "retract" if pieces:
                    cut = rng.randrange(len(pieces))
                    del pieces[cut:]
                    live.retract(step + cut)
                case "commit":
                    text = pieces.pop(0) if pieces else rng.choice(ALPHABET)
                    live.commit(step, text)
                    committed, step = committed + text, step + 1
            assert read(terminal) == squeezed(committed + "".join(pieces))
        live.end()
        assert read(terminal) == squeezed(committed)
        assert terminal.column == 0


def test_the_leading_space_is_left_out_provisional_or_not(open_terminal: Open) -> None:
    terminal = open_terminal(20)
    live = LiveText()
    live.propose(0, " Mira")
    live.propose(1, " likes")
    assert terminal.text() == ["Mira likes"]
    live.retract(1)
    live.commit(0, " Mira")
    live.commit(1, " hates")
    live.end()
    assert terminal.text() == ["Mira hates"]
    assert (terminal.row, terminal.column) == (1, 0)


def test_what_others_write_stands_above_the_line_that_grows(open_terminal: Open) -> None:
    terminal = open_terminal(20)
    live = LiveText()
    live.commit(0, "Zero\nOne")
    live.propose(1, " two")
    live.interrupt()
    print("a note", file=sys.stderr)
    live.propose(2, " three")
    assert terminal.text() == ["Zero", "a note", "One two three"]
    live.commit(1, " two")
    live.retract(2)
    live.end()
    assert terminal.text() == ["Zero", "a note", "One two"]


def test_an_answer_of_no_text_leaves_nothing(open_terminal: Open) -> None:
    terminal = open_terminal(20)
    live = LiveText()
    live.propose(0, " draft")
    live.retract(0)
    live.end()
    assert terminal.text() == []
    assert (terminal.row, terminal.column) == (0, 0)
    assert not terminal.is_cursor_hidden


def test_a_stage_is_one_line_however_long(open_terminal: Open, capsys: pytest.CaptureFixture[str]) -> None:
    StageLog()("stage: " + "word " * 40)
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "\x1b" not in shown
    assert shown.endswith("] stage      " + "word " * 40 + "\n")
    terminal = open_terminal(40)
    StageLog()("nodes: [red]2 up")
    assert terminal.text()[0].endswith("] nodes      [red]2 up")


def test_progress_on_a_terminal(open_terminal: Open) -> None:
    terminal = open_terminal(80)
    with progress_bar("cloud") as advance:
        for done in range(1, 201):
            advance(done, 200)
    (line,) = terminal.text()
    assert line.startswith("cloud ")
    assert "100%" in line
    assert not terminal.is_cursor_hidden


def test_progress_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("cloud") as advance:
        for done in range(1, 201):
            advance(done, 200)
    lines = [f"cloud: {tenth}0 %" if tenth else "cloud: 0 %" for tenth in range(11)]
    assert capsys.readouterr() == ("", "\n".join(lines) + "\n")


def test_progress_that_is_not_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("cloud", is_quiet=True) as advance:
        advance(1, 2)
    assert capsys.readouterr() == ("", "")


# ---- text from outside ---------------------------------------------------------------------------------------

ATTACKS = [
    "\x1b[2Jgone",
    "\x1b]0;title\x07",
    "\x9b31mred",
    "two\rone",
    "back\b\b\b\b",
    "\u202etxt.exe",
    "\u2066isolated\u2069",
    "\x7f",
]


@pytest.mark.parametrize("text", ATTACKS)
@pytest.mark.parametrize("way", ["emit", "warn", "answer", "log"])
def test_text_from_outside_steers_no_terminal(
    text: str, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    match way:
        case "emit":
            emit("name:", text)
        case "warn":
            warn(text)
        case "log":
            StageLog()(f"stage: {text}")
        case "answer":
            answer = PlainText()
            answer.commit(0, "begins ")
            answer.commit(1, text)
            answer.end()
    written = "".join(capsys.readouterr())
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", written)
    assert written.strip()


def test_an_answers_tabs_and_lines_stay(capsys: pytest.CaptureFixture[str]) -> None:
    answer = PlainText()
    answer.commit(0, " a\tb\n")
    answer.commit(1, "\u05e9\u200d\U0001f600")
    answer.end()
    assert capsys.readouterr().out == "a\tb\n\u05e9\u200d\U0001f600\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
@pytest.mark.parametrize("text", ["caf\u00e9 \U0001f600 \u958b", "half \ud83d", *ATTACKS])
def test_any_encoding_can_be_written(encoding: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text loses what the encoding lacks, JSON loses nothing."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding, write_through=True))
    emit(text)
    size = len(raw.getvalue())
    print_json({"text": text})
    assert json.loads(raw.getvalue()[size:].decode(encoding)) == {"text": text}
    assert not re.search(
        "[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", raw.getvalue().decode(encoding)
    )
