"""Follows the events of one answer: its text on stdout as it comes, what a person should know on stderr."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

from tandem.cli.citing import CitedText
from tandem.cli.output import PlainText, StageLog, open_console, plural, printable
from tandem.cli.transcript import Transcript
from tandem.events import (
    Event,
    PeerEvent,
    ProvisionalEvent,
    RetractEvent,
    SourcesEvent,
    TokenEvent,
    WaitEvent,
)
from tandem.topology import SERVER, Party


def follow(
    events: Iterator[Event],
    transcript: Transcript,
    log: StageLog,
    *,
    provisional: bool = False,
    is_silent: bool = False,
    cite: bool = False,
) -> None:
    """Add every event to the transcript and print what it says. Raises TandemError.

    provisional: show drafts too, on a terminal. is_silent: print no text. cite: print it with marks.
    """
    is_live = provisional and not is_silent and LiveText.is_possible()
    text: LiveText | PlainText = LiveText() if is_live else PlainText(is_silent=is_silent)
    if cite and not is_silent:
        text = CitedText(transcript.events)
    late_notes: list[str] = []  # those that come amid the text are printed after it
    try:
        for event in events:
            transcript.events.append(event)
            match event:
                case TokenEvent():
                    text.commit(event.step, event.text)
                case ProvisionalEvent():
                    text.propose(event.step, event.text)
                case RetractEvent():
                    text.retract(event.step)
                case SourcesEvent() if text.has_begun:
                    late_notes += _notes(event)
                case _:
                    lines = list(_lines(event))
                    if lines and not log.is_quiet:
                        text.interrupt()
                    for line in lines:
                        log(line)
    finally:
        text.end()
        for note in late_notes:
            log(note)


def _notes(event: SourcesEvent) -> list[str]:
    return [f"{event.party}: {note}" for note in event.notes]


def _lines(event: Event) -> Iterator[str]:
    """Lines that a person should see at once, apart from the text."""
    match event:
        case SourcesEvent():
            duration = "" if math.isnan(event.retrieve_s) else f" in {event.retrieve_s:.2f} s"
            yield f"{event.party}: {plural(len(event.sources), 'document')}{duration}"
            yield from _notes(event)
        case WaitEvent():
            yield f"queue: this query waits until an open one ends ({event.num_ahead} before it)"
        case PeerEvent(is_alone=True):
            reason = f" ({event.reason})" if event.reason else ""
            alone = {
                Party.CLOUD: "the device continues alone",
                SERVER: "the worker that is asked continues alone",
            }
            who = alone.get(event.party, "the others go on")
            yield f"{event.party}: lost at token {event.step}, {who}{reason}"
        case PeerEvent():
            yield f"{event.party}: back at token {event.step}"
        case _:
            pass


class LiveText:
    """The twin of PlainText on a terminal: provisional text stands dimmed behind the committed text until it is
    committed or retracted. Lines that are complete scroll up; the last one is redrawn with what follows it."""

    @staticmethod
    def is_possible() -> bool:
        """Whether stdout is a terminal that can take text back."""
        return sys.stdout.isatty() and not open_console().is_dumb_terminal

    def __init__(self) -> None:
        from rich.live import Live

        self.has_begun = False
        self._console = open_console()
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._line = ""  # committed text of the last line so far
        self._pieces: dict[int, str] = {}  # provisional, by step

    def propose(self, step: int, text: str) -> None:
        """A provisional token adds `text`."""
        self._pieces[step] = printable(text)
        self._draw()

    def retract(self, step: int) -> None:
        """Provisional text from `step` on is void."""
        self._pieces = {before: text for before, text in self._pieces.items() if before < step}
        self._draw()

    def commit(self, step: int, text: str) -> None:
        """A committed token adds `text`, in the place of its provisional piece."""
        self._pieces.pop(step, None)
        text = printable(text)
        self._line += text if self.has_begun else text.lstrip()
        self.has_begun = self.has_begun or bool(self._line)
        self._draw()

    def interrupt(self) -> None:
        """Somebody else is about to write whole lines: take the last line away until the next event."""
        if self._live.is_started:
            self._live.update("", refresh=True)

    def end(self) -> None:
        """Nothing more comes: the committed text stays, with an end of line."""
        self._pieces.clear()
        self._live.transient = not self.has_begun
        self._draw()
        self._live.stop()

    def _draw(self) -> None:
        """Print the lines that are complete, then the last one and what is provisional."""
        from rich.text import Text

        self._live.start()
        *complete, self._line = self._fold(self._line)
        tail = "".join(self._pieces[step] for step in sorted(self._pieces))
        lines = self._fold(self._line + (tail if self.has_begun else tail.lstrip()))
        text = Text("\n".join(lines), no_wrap=True, overflow="ignore")
        text.stylize("dim", len(self._line))
        with self._console:  # one write
            if complete:
                self._console.print(Text("\n".join(complete), no_wrap=True, overflow="ignore"))
            self._live.update(text, refresh=True)

    def _fold(self, text: str) -> list[str]:
        """Lines that fit; the last column stays free, as terminals differ in where the cursor goes behind it."""
        from rich.cells import chop_cells

        width, folded = max(2, self._console.width - 1), list[str]()
        for paragraph in text.split("\n"):
            lines = chop_cells(paragraph, width) or [""]
            lines[-1] += paragraph[sum(map(len, lines)) :]  # what takes no cell is left out by chop_cells
            folded += lines
        return folded
