"""Follows the events of one answer: its text on stdout as it comes, what a person should know on stderr."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tandem.cli.output import LiveText, PlainText, StageLog, plural
from tandem.cli.transcript import Transcript
from tandem.events import (
    AcceptanceLowEvent,
    Event,
    PeerEvent,
    ProvisionalEvent,
    RetractEvent,
    SourcesEvent,
    TokenEvent,
    WaitEvent,
)
from tandem.topology import SERVER, Party


def make_printer(provisional: bool, *, is_silent: bool) -> PlainText | LiveText:
    """What writes the text of an answer. provisional: drafts too, on a terminal; is_silent: nothing."""
    is_live = provisional and not is_silent and LiveText.is_possible()
    return LiveText() if is_live else PlainText(is_silent=is_silent)


def follow(
    events: Iterator[Event],
    transcript: Transcript,
    printer: PlainText | LiveText,
    log: StageLog,
    *,
    is_quiet: bool,
) -> None:
    """Add every event to the transcript and print what it says. Raises TandemError."""
    late_notes: list[str] = []  # those that come amid the text are printed after it
    try:
        for event in events:
            transcript.add(event)
            _print_text(event, printer)
            if isinstance(event, SourcesEvent) and printer.has_begun:
                late_notes += [f"{event.party}: {note}" for note in event.notes]
                continue
            if isinstance(event, PeerEvent | SourcesEvent) and not is_quiet:
                printer.interrupt()
            _log_event(event, log)
    finally:
        printer.end()
        for note in late_notes:
            log(note)


def _print_text(event: Event, printer: PlainText | LiveText) -> None:
    match event:
        case TokenEvent():
            printer.commit(event.step, event.text)
        case ProvisionalEvent():
            printer.propose(event.step, event.text)
        case RetractEvent():
            printer.retract(event.step)
        case _:
            pass


def _log_event(event: Event, log: StageLog) -> None:
    """What a person should know at once, apart from the text."""
    match event:
        case SourcesEvent():
            duration = "" if math.isnan(event.retrieve_s) else f" in {event.retrieve_s:.2f} s"
            log(f"{event.party}: {plural(len(event.sources), 'document')}{duration}")
            for note in event.notes:
                log(f"{event.party}: {note}")
        case WaitEvent():
            log(f"queue: this query waits until an open one ends ({event.num_ahead} before it)")
        case AcceptanceLowEvent():
            log(
                f"drafts: of the last {event.rate:.0%} were accepted, of those before {event.usual_rate:.0%}; the "
                "answer stays exact, but make a drafter for the cloud's present model (tandem draft train --help)"
            )
        case PeerEvent(is_alone=True):
            reason = f" ({event.reason})" if event.reason else ""
            alone = {
                Party.CLOUD: "the device continues alone",
                SERVER: "the worker that is asked continues alone",
            }
            who = alone.get(event.party, "the others go on")
            log(f"{event.party}: lost at token {event.step}, {who}{reason}")
        case PeerEvent():
            log(f"{event.party}: back at token {event.step}")
        case _:
            pass
