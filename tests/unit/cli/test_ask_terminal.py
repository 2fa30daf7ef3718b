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
from collections.abc import Sequence
from pathlib import Path

import pytest

from tandem.events import DoneEvent, Event, PeerEvent, ProvisionalEvent, RetractEvent, Source, SourcesEvent
from tandem.topology import Party

from .conftest import statistics, token
from .terminal import Terminal, fold, strip_end

CHILD = """
import pickle, sys, types
from tests.unit.cli.conftest import FakeTandem
from tandem.cli import main
module = types.ModuleType("tandem.client.tandem")
module.Tandem = FakeTandem(script=pickle.load(open(sys.argv[1], "rb")))
sys.modules["tandem.client.tandem"] = module
sys.exit(main(["ask", "Which game?", *sys.argv[2:]]))
"""
ROOT = Path(__file__).parents[3]
PIECES = (
    " Mira", " likes", " puzzle", " games", ".", "\n", "漢字", " かな", "🙂", " e\u0301te\u0301", " ते", " กำ",
    "\u1112\u1161", " donaudampfschifffahrt", "  ", " ok\ufe0f",
)  # fmt: skip


def shown(
    folder: Path, width: int, height: int, events: Sequence[Event], *options: str, **variables: str
) -> Terminal:
    """The terminal after the command."""
    written = run_on_terminal(folder, width, height, events, *options, **variables)
    assert b"\x1b[2m" in written, "provisional text was shown"
    screen = Terminal(width, height)
    screen.play(written.decode())
    return screen


def run_on_terminal(
    folder: Path, width: int, height: int, events: Sequence[Event], *options: str, **variables: str
) -> bytes:
    """What the command writes to a terminal."""
    script = folder / "events"
    script.write_bytes(pickle.dumps(list(events)))
    terminal, child_end = pty.openpty()
    fcntl.ioctl(child_end, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    environment = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
    }
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "TERM": "xterm"} | variables
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
        assert child.wait(120) == 0, written
    return written


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


@pytest.mark.parametrize(("width", "height"), [(9, 60), (9, 3), (20, 12), (80, 24)])
def test_the_committed_text_remains(tmp_path: Path, width: int, height: int) -> None:
    events, text = answer(random.Random(width), 150, ahead=6)
    terminal = shown(tmp_path, width, height, events, "--quiet")
    assert terminal.text() == strip_end(fold(text, width))
    assert terminal.column == 0, "the next prompt has a line of its own"
    assert not terminal.is_cursor_hidden


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
    above = [re.sub(r"^\[.*?\] +", "", line) for line in lines[: lines.index("Sources") - 1]]
    assert above == [
        "nodes      2 up (device, cloud)",
        "device     1 document in 0.02 s",
        "cloud      lost at token 1, the device continues alone",
        "Mira likes games",
    ]


def test_without_colour_provisional_text_is_still_dimmed(tmp_path: Path) -> None:
    events, _ = answer(random.Random(1), 40, ahead=4)
    written = run_on_terminal(tmp_path, 60, 20, events, NO_COLOR="1")
    assert b"\x1b[2m" in written
    assert not re.search(rb"\x1b\[[\d;]*(3|4|9|10)\d[;m]", written), "no colour"


def test_a_terminal_that_cannot_take_text_back_gets_committed_text_alone(tmp_path: Path) -> None:
    events, text = answer(random.Random(2), 40, ahead=4)
    written = run_on_terminal(tmp_path, 60, 20, events, "--quiet", TERM="dumb")
    assert written.decode().replace("\r\n", "\n") == f"{text}\n"


def test_a_pipe_gets_no_control_characters(tmp_path: Path) -> None:
    events, text = answer(random.Random(3), 40, ahead=4)
    script = tmp_path / "events"
    script.write_bytes(pickle.dumps(list(events)))
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYTHONUTF8": "1",
        "TERM": "xterm",
        "FORCE_COLOR": "1",
    }
    command = [sys.executable, "-c", CHILD, str(script), "--provisional"]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, env=environment, check=True)
    assert b"\x1b" not in done.stdout + done.stderr
    assert done.stdout.decode().startswith(f"{text}\n\nSources\n")
