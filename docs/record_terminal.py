"""A terminal recording for the README: `python -m docs.record_terminal --out docs/ask.svg`.

Asks SmolLM2 a question under a pseudo-terminal, follows it on a virtual screen, and writes an SVG that plays it in a
loop, or shows its end where motion is not wanted. What the terminal shows is recorded as it is; only pauses are cut.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import pty
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pyte

from tandem.corpora import SMOLLM2, example_question

ARGUMENTS = ("ask", "--provisional", "--seed", "7", example_question("household"))
SETTINGS = f"""
[cluster]
start_timeout_s = 900  # for machines that have other work to do
[device]
model = "{SMOLLM2}"
[cloud]
model = "{SMOLLM2}"
"""
"""What they would be without a file, on a machine that has this model."""
COLUMNS, ROWS = 100, 27
MAX_PAUSE_S = 0.7
"""Longer ones, in which nothing changes, are cut to this."""
HOLD_S = 5.0
"""How long the end is shown."""
CELL = (8.43, 19)
"""Width and height in pixels, of a font of 14."""
MARGIN = 14
COLORS = {
    "default": "#d7dde5",
    "black": "#484f58",
    "red": "#ff7b72",
    "green": "#7ee787",
    "brown": "#e3b341",
    "blue": "#79c0ff",
    "magenta": "#d2a8ff",
    "cyan": "#76e3ea",
    "white": "#d7dde5",
    "brightblack": "#7d8590",
}
"""By the names that pyte has for them; of a bright one the plain one's."""
DIM, GREY = 2, 90
"""Select Graphic Rendition: faint, which pyte does not know, and the grey that stands for it here."""
EXTENDED = {38, 48}
"""What follows these is the number of a colour."""


class Style(NamedTuple):
    """How characters look."""

    color: str
    is_bold: bool


Row = tuple[tuple[int, str, Style], ...]
"""Pieces of one style: first column, text, style."""


class Piece(NamedTuple):
    """What a row shows for a while."""

    row: int
    start_s: float
    end_s: float
    content: Row


class Screen(pyte.Screen):
    """A screen that shows faint text in grey."""

    def select_graphic_rendition(self, *attributes: int, **options: bool) -> None:
        """Set colours and brightness, as the terminal is told."""
        if not EXTENDED & set(attributes):
            attributes = tuple(GREY if attribute == DIM else attribute for attribute in attributes)
        super().select_graphic_rendition(*attributes, **options)


def record(command: Sequence[str], folder: str | None = None) -> Iterator[tuple[float, bytes]]:
    """What a command writes to its terminal, and when, in seconds since the last piece. folder: where it runs."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "COLORTERM": ""}
    process = subprocess.Popen(
        command, cwd=folder, stdin=its, stdout=its, stderr=its, env=environment, start_new_session=True
    )
    os.close(its)
    last_s = time.monotonic()
    with contextlib.suppress(OSError):  # the terminal of a process that has ended
        while data := os.read(ours, 1 << 16):
            now_s = time.monotonic()
            yield now_s - last_s, data
            last_s = now_s
    os.close(ours)
    if process.wait():
        raise SystemExit(f"{shlex.join(command)} ended with {process.returncode}.")


def follow(title: str, chunks: Iterator[tuple[float, bytes]]) -> tuple[list[Piece], float]:
    """What each row showed and when, and how long all of it takes. title: the line that the user typed."""
    screen = Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    stream.feed(f"$ {title}\r\n".encode())
    pieces: list[Piece] = []
    shown: dict[int, tuple[float, Row]] = {}
    now_s = 0.0
    for pause_s, data in chunks:
        _note(screen, now_s, shown, pieces)
        now_s += min(pause_s, MAX_PAUSE_S)
        stream.feed(data)
    _note(screen, now_s, shown, pieces)
    end_s = now_s + HOLD_S
    pieces += [Piece(row, start_s, end_s, content) for row, (start_s, content) in shown.items()]
    return [piece for piece in pieces if piece.content and piece.end_s > piece.start_s], end_s


def _note(screen: Screen, now_s: float, shown: dict[int, tuple[float, Row]], pieces: list[Piece]) -> None:
    """Compare every row with what it showed before."""
    for row in range(ROWS):
        content = _read_row(screen, row)
        start_s, before = shown.get(row, (now_s, ()))
        if content != before:
            pieces.append(Piece(row, start_s, now_s, before))
            shown[row] = now_s, content


def _read_row(screen: Screen, row: int) -> Row:
    cells = [screen.buffer[row][column] for column in range(COLUMNS)]
    styled = [(column, cell.data, _style(cell)) for column, cell in enumerate(cells)]
    pieces = []
    for style, group in groupby(styled, key=lambda cell: cell[2]):
        first, *rest = group
        text = "".join(data for _, data, _ in (first, *rest))
        if text.strip():
            pieces.append((first[0], text.rstrip(), style))
    return tuple(pieces)


def _style(cell: pyte.screens.Char) -> Style:
    color = f"#{cell.fg}" if cell.fg not in COLORS and len(cell.fg) == 6 else cell.fg
    color = COLORS.get(color) or COLORS.get(color.removeprefix("bright"), color)
    return Style(color, cell.bold)


def draw(title: str, pieces: Sequence[Piece], end_s: float) -> str:
    """An SVG that plays the pieces, and shows the last ones where it cannot."""
    width, height = round(COLUMNS * CELL[0]) + 2 * MARGIN, ROWS * CELL[1] + 2 * MARGIN
    spans = sorted({(piece.start_s, piece.end_s) for piece in pieces})
    names = {span: f"k{number}" for number, span in enumerate(spans)}
    rules = [f"@keyframes {names[span]}{{{_keyframes(*span, end_s)}}}" for span in spans]
    rules += [
        f".{names[span]}{{animation:{names[span]} {end_s:.2f}s step-end infinite"
        f"{'' if span[1] == end_s else ';visibility:hidden'}}}"
        for span in spans
    ]
    rules.append("@media(prefers-reduced-motion:reduce){text{animation:none!important}}")
    rows = [_draw_piece(piece, names[piece.start_s, piece.end_s]) for piece in pieces]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
            f"<title>A terminal: {escape(title)}</title>",
            "<style>text{font:14px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}",
            *rules,
            "</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>',
            *rows,
            "</svg>\n",
        ]
    )


def _keyframes(start_s: float, end_s: float, whole_s: float) -> str:
    """Visible from one time to the other, of a loop."""
    hidden, visible = "{visibility:hidden}", "{visibility:visible}"
    rules = [f"0%{hidden}"] if start_s else []
    rules.append(f"{100 * start_s / whole_s:.3f}%{visible}")
    rules += [f"{100 * end_s / whole_s:.3f}%{hidden}"] if end_s < whole_s else [f"100%{visible}"]
    return "".join(rules)


def _draw_piece(piece: Piece, name: str) -> str:
    top = MARGIN + (piece.row + 0.75) * CELL[1]
    spans = [
        f'<tspan x="{MARGIN + column * CELL[0]:.1f}"{_attributes(style)}>{escape(text)}</tspan>'
        for column, text, style in piece.content
    ]
    return f'<text class="{name}" y="{top:.1f}">{"".join(spans)}</text>'


def _attributes(style: Style) -> str:
    return f' fill="{style.color}"' + (' font-weight="bold"' if style.is_bold else "")


def main() -> None:
    """Write the recording."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/ask.svg"), help="the file to write")
    out: Path = parser.parse_args().out
    title = shlex.join(["tandem", *ARGUMENTS])
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tandem.toml").write_text(SETTINGS, "utf-8")
        pieces, end_s = follow(title, record([sys.executable, "-m", "tandem", *ARGUMENTS], folder))
    out.write_text(draw(title, pieces, end_s), "utf-8")


if __name__ == "__main__":
    main()
