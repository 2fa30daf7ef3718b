"""`tandem ask`: one question, its answer as it grows, then sources and statistics.

The answer goes to stdout; stages, notes and errors go to stderr.
"""

from __future__ import annotations

import contextlib
import json
import math
import secrets
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandem.cli import access, outputs
from tandem.cli.screen import Screen
from tandem.cli.terminal import Progress, plural, print_json, settings
from tandem.cli.transcript import Transcript
from tandem.config import Config
from tandem.errors import QueryError
from tandem.events import (
    DoneEvent,
    Event,
    PeerEvent,
    ProvisionalEvent,
    RetractEvent,
    SourcesEvent,
    TokenEvent,
)
from tandem.topology import Party

if TYPE_CHECKING:
    from tandem.client import Tandem


def run(args: Namespace) -> int:
    """Asks one question. Raises TandemError; a cluster that was started is stopped in any case."""
    if not args.question.strip():
        raise QueryError(f"A question must hold a word, but it is {args.question!r}; ask something.")
    record = None if args.timeline is None else outputs.check_file("--timeline", args.timeline)
    plot = None if args.plot is None else outputs.check_plot("--plot", args.plot)
    progress = Progress(is_quiet=args.quiet)
    config = settings(args, _overrides(args), progress)
    seed = secrets.randbits(63) if args.seed is None else args.seed
    alone = None if args.alone is None else Party(args.alone)
    transcript = Transcript(args.question, seed, config.decoding.placement, alone)
    filters = _filters(args.filter)
    with _opened(args.address or config.cluster.address, config, progress) as tandem:
        _stream(tandem, config, transcript, progress, args, filters)
    if args.json:
        print_json(transcript.as_dict())
    elif not args.quiet:
        _print_rest(transcript)
    _write(transcript, record, plot, progress)
    return _outcome(transcript)


def _overrides(args: Namespace) -> list[str]:
    """Options that are settings, so that they are checked before anything is started."""
    options = {"max_new_tokens": args.max_new_tokens, "temperature": args.temperature}
    return [f"sampling.{name}={value}" for name, value in options.items() if value is not None]


def _filters(given: Sequence[tuple[str, str, str]]) -> dict[str, dict[str, list[Any]]]:
    """`device_filter` and `cloud_filter`. What is typed may be a text or a number, so both are let through."""
    filters: dict[str, dict[str, list[Any]]] = {}
    for party, key, value in given:
        values = filters.setdefault(f"{party}_filter", {}).setdefault(key, [])
        values.append(value)
        with contextlib.suppress(ValueError):
            number = json.loads(value) if len(value) < 100 else value
            values += [number] if isinstance(number, int | float) else []
    return filters


def _opened(address: str, config: Config, progress: Progress) -> Tandem:
    """The running cluster at `address`, or one of our own."""
    if address:
        access.for_cluster(address)
    from tandem.client import Tandem

    if address:
        return Tandem.connect(address, config, progress=progress)
    return Tandem.launch(config, progress=progress)


def _stream(
    tandem: Tandem,
    config: Config,
    transcript: Transcript,
    progress: Progress,
    args: Namespace,
    filters: Mapping[str, Any],
) -> None:
    """Follows the answer to its end; prints its text as it comes if asked to."""
    events = tandem.stream(
        transcript.question,
        **vars(config.sampling),
        **vars(config.decoding),
        seed=transcript.seed,
        timeout_s=config.cluster.query_timeout_s,
        only=transcript.alone,
        **filters,
        show_drafts=args.provisional,
    )
    is_rewritten = args.provisional and not args.json and sys.stdout.isatty()
    printer = Screen() if is_rewritten else _Printer(is_silent=args.json)
    late: list[str] = []  # notes that come amid the text are told after it; its sources are listed at the end
    try:
        for event in events:
            transcript.add(event)
            _print(event, printer)
            if isinstance(event, SourcesEvent) and printer.has_begun:
                late += [f"{event.party}: {note}" for note in event.notes]
                continue
            if isinstance(event, PeerEvent | SourcesEvent) and not args.quiet:
                printer.interrupt()
            _tell(event, progress)
    finally:
        printer.end()
        for note in late:
            progress(note)


def _print(event: Event, printer: Screen | _Printer) -> None:
    match event:
        case TokenEvent():
            printer.commit(event.step, event.text)
        case ProvisionalEvent():
            printer.propose(event.step, event.text)
        case RetractEvent():
            printer.retract(event.step)
        case _:
            pass


class _Printer:
    """Writes the committed answer to stdout as it grows, without the space that tokenizers put before its first word.

    The plain twin of `Screen`.
    """

    def __init__(self, *, is_silent: bool) -> None:
        self._is_silent = is_silent
        self.has_begun = False

    def propose(self, step: int, text: str) -> None:
        pass

    def retract(self, step: int) -> None:
        pass

    def interrupt(self) -> None:
        pass

    def commit(self, step: int, text: str) -> None:
        text = text if self.has_begun else text.lstrip()
        if text and not self._is_silent:
            self.has_begun = True
            print(text, end="", flush=True)

    def end(self) -> None:
        if self.has_begun:
            print(flush=True)


def _tell(event: Event, progress: Progress) -> None:
    """What a person should know at once, apart from the text."""
    match event:
        case SourcesEvent():
            took = "" if math.isnan(event.retrieve_s) else f" in {event.retrieve_s:.2f} s"
            progress(f"{event.party}: {plural(len(event.sources), 'document')}{took}")
            for note in event.notes:
                progress(f"{event.party}: {note}")
        case PeerEvent(is_alone=True):
            why = f" ({event.reason})" if event.reason else ""
            progress(f"cloud: lost at token {event.step}, the device goes on alone{why}")
        case PeerEvent():
            progress(f"cloud: back at token {event.step}")
        case _:
            pass


def _print_rest(transcript: Transcript) -> None:
    print("\nSources", *transcript.source_lines(), sep="\n")
    if transcript.done is not None:
        print("\nStatistics", *transcript.statistics_lines(), sep="\n")


def _write(transcript: Transcript, record: Path | None, plot: Path | None, progress: Progress) -> None:
    """The files that were asked for; of an answer that was cut short, as far as it went."""
    if record is None and plot is None:
        return
    from tandem.lab.timeline import perfetto as trace
    from tandem.lab.timeline.intervals import timeline
    from tandem.lab.timeline.pipeline import plot_pipeline

    found = timeline(transcript.events, transcript.placement)
    if record is not None:
        outputs.write_text("--timeline", record, trace.to_json(found))
        progress(f"timeline: {record}, for Perfetto (ui.perfetto.dev) or a script")
    if plot is not None and found.steps:
        who = f"placement {transcript.placement}" if transcript.alone is None else f"{transcript.alone} alone"
        title = f"{plural(len(found.steps), 'token')}, {who}, seed {transcript.seed}"
        plot_pipeline(found, plot, title=title)
        progress(f"plot: {plot}")
    elif plot is not None:
        progress(f"plot: none, for there is no token; {plot} is not written")


def _outcome(transcript: Transcript) -> int:
    """The exit code; says on stderr why an answer is incomplete."""
    match transcript.done:
        case DoneEvent(reason="failed", error=error):
            raise QueryError(error or "The answer could not be completed; try again.")
        case DoneEvent(reason="cancelled"):
            print("tandem: the question was cancelled", file=sys.stderr)
            return 1
        case None:
            raise QueryError("The answer ended without a result; see `tandem status`, then ask again.")
        case _:
            return 0
