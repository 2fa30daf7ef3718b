"""What commands write: provisional text, notes and progress on a terminal, in a pipe, in any encoding.

A small terminal that wraps and scrolls as real ones do is played, and what stands on it is read.
"""

from __future__ import annotations

import io
import json
import random
import re
import sys
from collections.abc import Callable

import pytest

from tandem.cli import main
from tandem.cli.answer import LiveText
from tandem.cli.output import PlainText, StageLog, emit, print_json, progress_bar, warn
from tandem.events import DoneEvent, Event, ProvisionalEvent, RetractEvent

from .conftest import FakeTandem, Run, statistics, token
from .terminal import Terminal, fold, strip_end

ALPHABET = ("a", " word", "\n", "\u00e9", "\u6f22", "e\u0301", "  ", "\t", " longer words", "\x1b[31m")
PIECES = (
    " Mira", " likes", " puzzle", " games", ".", "\n", "漢字", " かな", "🙂", " e\u0301te\u0301", " ते", " กำ",
    "\u1112\u1161", " donaudampfschifffahrt", "  ", " ok\ufe0f",
)  # fmt: skip
Open = Callable[..., Terminal]
Show = Callable[..., Terminal]


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

    def open_terminal(width: int, height: int = 200) -> Terminal:
        terminal = Terminal(width, height)
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("LINES", str(height))
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
    for _ in range(15):
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


# ---- `tandem ask --provisional` --------------------------------------------------------------------------------


@pytest.fixture
def show(tandem: FakeTandem, open_terminal: Open) -> Show:
    """The terminal after the command has answered with these events."""

    def show(events: list[Event], *options: str, width: int = 60, height: int = 20) -> Terminal:
        tandem.script = events
        terminal = open_terminal(width, height)
        assert main(["ask", "Which game?", "--provisional", *options]) == 0
        return terminal

    return show


def proposed(step: int, text: str) -> ProvisionalEvent:
    return ProvisionalEvent(step=step, token=0, text=text, shown_at_s=0.1)


def answer(rng: random.Random, num_tokens: int, ahead: int) -> tuple[list[Event], str]:
    """An answer with up to `ahead` provisional tokens, a third of them wrong; and its text."""
    events: list[Event] = []
    shown: list[str] = []
    texts = ["Mira", *rng.choices(PIECES, k=num_tokens - 1)]
    for step, text in enumerate(texts):
        while len(shown) < min(num_tokens, step + rng.randrange(ahead + 1)):
            shown.append(rng.choice(PIECES) if rng.random() < 0.3 else texts[len(shown)])
            events.append(proposed(len(shown) - 1, shown[-1]))
        if len(shown) > step and shown[step] != text:
            del shown[step:]
            events.append(RetractEvent(step=step))
        shown += [text] if len(shown) == step else []
        events.append(token(step, text))
    return [*events, DoneEvent(reason="eos", statistics=statistics())], "".join(texts)


@pytest.mark.parametrize(("width", "height"), [(9, 60), (9, 3), (20, 12), (80, 24)])
def test_the_committed_text_remains(show: Show, width: int, height: int) -> None:
    events, text = answer(random.Random(width), 150, ahead=6)
    terminal = show(events, "--quiet", width=width, height=height)
    assert "\x1b[2m" in terminal.written, "provisional text was shown"
    assert terminal.text() == strip_end(fold(text, width))
    assert terminal.column == 0, "the next prompt has a line of its own"
    assert not terminal.is_cursor_hidden


def test_a_terminal_that_cannot_take_text_back_gets_committed_text_alone(
    show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    events, text = answer(random.Random(2), 40, ahead=4)
    assert show(events, "--quiet").written.replace("\r\n", "\n") == f"{text}\n"


def test_a_pipe_gets_no_control_characters(
    run: Run, tandem: FakeTandem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    tandem.script, text = answer(random.Random(3), 40, ahead=4)
    shown = run("ask", "Which game?", "--provisional")
    assert "\x1b" not in shown.out + shown.err
    assert shown.out.startswith(f"{text}\n\nSources\n")


# ---- progress ----------------------------------------------------------------------------------------------------


def test_progress_on_a_terminal(open_terminal: Open) -> None:
    terminal = open_terminal(80)
    with progress_bar("cloud") as advance:
        for done in range(1, 201):
            advance(done, 200)
    (line,) = terminal.text()
    assert line.startswith("cloud ")
    assert "100%" in line
    assert not terminal.is_cursor_hidden


# ---- text from outside ---------------------------------------------------------------------------------------

ATTACKS = [
    "\x1b[2Jgone", "\x1b]0;title\x07", "\x9b31mred", "two\rone", "back\b\b\b\b", "\u202etxt.exe",
    "\u2066isolated\u2069", "\x7f",
]  # fmt: skip
STEERS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


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
    assert not STEERS.search(written)
    assert written.strip()


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
    assert not STEERS.search(raw.getvalue().decode(encoding))
