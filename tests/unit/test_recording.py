"""The recorder of terminals: what a program wrote is in its picture, for as long as it was shown."""

from __future__ import annotations

import sys
from xml.etree import ElementTree

import pytest

from docs.record_terminal import COLORS, HOLD_S, MAX_PAUSE_S, draw, follow, record

SCRIPT = r"""
import sys, time
assert sys.stdout.isatty()
sys.stdout.write("\x1b[2mdraft <1>\x1b[0m")
sys.stdout.flush()
time.sleep(0.2)
sys.stdout.write("\r\x1b[K\x1b[1mfinal & whole\x1b[0m\r\n")
"""


def test_what_was_written_is_shown_as_long_as_it_was_there() -> None:
    pieces, end_s = follow("demo", record([sys.executable, "-c", SCRIPT]))
    shown = {piece.content[0][1]: piece for piece in pieces}
    assert list(shown) == ["draft <1>", "$ demo", "final & whole"]
    title, draft, final = shown["$ demo"], shown["draft <1>"], shown["final & whole"]
    assert (title.row, draft.row, final.row) == (0, 1, 1)
    assert title.end_s == final.end_s == end_s == final.start_s + HOLD_S
    assert draft.end_s == final.start_s <= 2 * MAX_PAUSE_S
    assert draft.content[0][2].color == COLORS["brightblack"]
    assert final.content[0][2].is_bold
    picture = draw("demo", pieces, end_s)
    texts = [
        "".join(element.itertext())
        for element in ElementTree.fromstring(picture).iter()
        if "text" in element.tag
    ]
    assert texts == list(shown)


def test_a_command_that_fails_makes_no_picture() -> None:
    with pytest.raises(SystemExit, match="ended with 3"):
        follow("demo", record([sys.executable, "-c", "raise SystemExit(3)"]))
