"""`tandem chat` against a scripted Tandem, with lines from a pipe and on a pseudo-terminal."""

from __future__ import annotations

import io
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandem.conversation import Message
from tandem.events import StepEvent

from .conftest import FakeTandem, Run, answer_events

ANSWER = "Mira likes puzzle games."
TURN = [Message("user", "Which game?"), Message("assistant", ANSWER)]
Type = Callable[..., None]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Type:
    """Puts lines on standard input."""
    return lambda *lines: monkeypatch.setattr(
        "sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines))
    )


def notes(shown: Any) -> list[str]:
    """What stands on stderr behind the stages."""
    return [line for line in shown.err.splitlines() if not line.startswith("[")]


def test_questions_share_a_cluster_and_a_conversation(tandem: FakeTandem, typed: Type, run: Run) -> None:
    typed("Which game?", "", "  And which walk? ", "/reset", "Which soup?")
    histories: list[Any] = []
    stream = tandem.stream
    tandem.stream = lambda question, **options: (  # type: ignore[method-assign]
        histories.append(list(options["history"] or ())) or stream(question, **options)
    )
    shown = run("chat", "--only", "device", "--filter", "device:source=a.md", "--stop", "END", code=0)
    said = ["> Which game?", ANSWER, "> And which walk?", ANSWER, "> /reset", "> Which soup?", ANSWER]
    assert shown.out.splitlines() == said, "who reads the output knows which answer is whose"
    assert [question for question, _ in tandem.asked] == ["Which game?", "And which walk?", "Which soup?"]
    assert histories == [[], TURN, []]
    options = [options for _, options in tandem.asked]
    assert len({each["seed"] for each in options}) == 3
    assert all((each["only"], each["device_filter"]) == ("device", {"source": ["a.md"]}) for each in options)
    assert len(tandem.started) == tandem.num_closed == 1
    assert tandem.started[0][1].sampling.stop == ("END",)


@pytest.mark.parametrize("leave", ["/quit", "/exit", "/bye"])
def test_commands(tandem: FakeTandem, typed: Type, run: Run, leave: str) -> None:
    typed("/sources", "Which game?", "/sources", "/stats", "/surces", "/help", leave, "never asked")
    tandem.script = [*answer_events()[:2], StepEvent(party="device", text="Mira"), *answer_events()[2:]]
    shown = run("chat", "--seed", "7", code=0)
    lines = shown.out.splitlines()
    assert lines[:8] == [
        "> /sources",
        "> Which game?",
        ANSWER,
        "> /sources",
        "  device  0.62  notes/mira.txt",
        "    Mira likes",
        "    puzzle games.",
        "  cloud   2 documents that stay there: c7, c8",
    ]
    assert "  seed       7" in lines
    assert [line.split()[0] for line in lines[-5:]] == ["/sources", "/stats", "/reset", "/help", "/quit"]
    assert notes(shown) == [
        "tandem: There is no answer yet; ask a question.",
        *("tandem: device: Mira", "tandem: device: a note"),
        "tandem: There is no command '/surces'; did you mean /sources?",
    ]
    assert len(tandem.asked) == 1


def test_control_c_cancels_the_answer_and_stays(tandem: FakeTandem, typed: Type, run: Run) -> None:
    typed("Which game?", "/stats")
    tandem.script = [*answer_events()[:4], KeyboardInterrupt()]
    shown = run("chat", code=0)
    assert shown.out == "> Which game?\nMira likes\n> /stats\n"
    assert notes(shown) == [
        "tandem: the answer was cancelled",
        "tandem: There is no answer yet; ask a question.",
    ]
    assert tandem.num_closed == 1


CHILD = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from tests.unit.cli.conftest import FakeTandem
from tandem.cli import main
import tandem.client.tandem
tandem.client.tandem.Tandem = FakeTandem()
sys.exit(main(["chat"]))
"""


def test_on_a_terminal_control_c_empties_the_line_and_control_d_leaves(tmp_path: Path) -> None:
    terminal, child_end = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "TERM": "xterm"}
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=child_end, stdout=child_end, stderr=child_end, cwd=tmp_path,
        env=environment,
    )  # fmt: skip
    os.close(child_end)
    screen = Screen(terminal)
    screen.wait_for("> ")
    os.write(terminal, b"half a ques")
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    screen.wait_for("> ")
    os.write(terminal, b"Which game?\n")
    screen.wait_for(f"{ANSWER}.*> ")
    os.write(terminal, b"\x04")
    assert child.wait(120) == 0
    os.close(terminal)


class Screen:
    """What was written to a terminal since the last time something was awaited."""

    def __init__(self, terminal: int) -> None:
        self.terminal = terminal

    def wait_for(self, pattern: str) -> None:
        text = b""
        while not re.search(pattern, text.decode(), re.DOTALL):
            text += os.read(self.terminal, 4096)
