"""`tandem ask`: one question, its answer as it grows, then sources and statistics.

The answer goes to stdout; stages, notes and errors go to stderr.
"""

from __future__ import annotations

import contextlib
import json
import math
import secrets
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tandem.cli.options import (
    AsJson,
    ConfigFile,
    Overrides,
    Seed,
    load_settings,
    parse_party,
    sampling_overrides,
    with_sampling,
)
from tandem.cli.output import LiveText, PlainText, StageLog, plural, print_json
from tandem.cli.transcript import Transcript
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
from tandem.topology import PARTIES, Party

if TYPE_CHECKING:
    from tandem.client import Tandem
    from tandem.config import Config


def parse_filter(text: str) -> tuple[str, str, str]:
    """Party, key and value of "device:source=notes.md". Raises a usage error."""
    party, _, rest = text.partition(":")
    key, equals, value = rest.partition("=")
    if party not in set(PARTIES) or not key or not equals:
        raise typer.BadParameter(f"must be PARTY:KEY=VALUE, such as device:source=notes.md (got {text!r})")
    return party, key, value


QuestionArgument = Annotated[
    str, typer.Argument(metavar="QUESTION", help="what to ask, in quotes", show_default=False)
]
Only = Annotated[
    Party | None,
    typer.Option(
        metavar="PARTY",
        parser=parse_party,
        help="let the device or the cloud answer by itself; nothing crosses the link",
    ),
]
Provisional = Annotated[
    bool,
    typer.Option(
        "--provisional",
        help="show drafts at once, dimmed, until they are committed or replaced (on a terminal and with --json; "
        "elsewhere only committed text is printed)",
    ),
]
Filters = Annotated[
    list[Any] | None,
    typer.Option(
        "--filter",
        metavar="PARTY:KEY=VALUE",
        parser=parse_filter,
        help="use only that party's documents with this metadata, such as device:source=notes.md; repeat it with "
        "another value to admit both, with another key to narrow further",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="ask this running cluster (default: the one that `tandem up` started here; without any, one is started "
        "and stopped afterwards)",
    ),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="start a new cluster for this question, even where one runs")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="print only the answer")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of whom, apart from the settings."""

    text: str
    seed: int
    only: Party | None = None  # the party that answers by itself
    address: str = ""  # of a running cluster; empty: that of the settings, or the one that runs here
    is_fresh: bool = False  # start a cluster, whatever runs
    filters: dict[str, Any] = field(default_factory=dict)  # device_filter and cloud_filter
    provisional: bool = False  # whether drafts are shown

    @classmethod
    def create(cls, text: str, seed: int | None, only: Party | None, **options: Any) -> Question:
        """With a new seed unless one is given. Raises QueryError for an empty text, a usage error for both clusters."""
        if options.get("address") and options.get("is_fresh"):
            raise typer.BadParameter("--fresh starts a cluster for this question; leave out --address.")
        if not text.strip():
            raise QueryError(f"The question is empty (got {text!r}).")
        return cls(text=text, seed=secrets.randbits(63) if seed is None else seed, only=only, **options)


@with_sampling
def ask(
    question: QuestionArgument,
    seed: Seed = None,
    only: Only = None,
    provisional: Provisional = False,
    filters: Filters = None,
    address: Address = None,
    fresh: Fresh = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
    **sampling: Any,
) -> int:
    """Ask a question and stream the answer with its sources."""
    query = Question.create(
        question,
        seed,
        only,
        address=address or "",
        is_fresh=fresh,
        filters=_merge_filters(filters or ()),
        provisional=provisional,
    )
    log = StageLog(is_quiet=quiet)
    config = load_settings(config_file, overrides, sampling_overrides(sampling), log)
    transcript = stream_answer(query, config, log, is_silent=as_json, is_quiet=quiet)
    if as_json:
        print_json(transcript.as_dict())
    elif not quiet:
        _print_details(transcript)
    return exit_code(transcript)


def stream_answer(
    question: Question, config: Config, log: StageLog, *, is_silent: bool = False, is_quiet: bool = False
) -> Transcript:
    """Ask and follow the answer to its end, printing its text as it comes; a cluster that was started is stopped.

    is_silent: print no text; is_quiet: no notes amid it either. Raises TandemError.
    """
    transcript = Transcript(question.text, question.seed, config.decoding.placement, question.only)
    with _open(question.address, config, log, is_fresh=question.is_fresh) as tandem:
        events = tandem.stream(
            question.text,
            seed=question.seed,
            only=question.only,
            show_drafts=question.provisional,
            **question.filters,
        )
        printer = _printer(question.provisional, is_silent=is_silent)
        _follow(events, transcript, printer, log, is_quiet=is_quiet)
    return transcript


def exit_code(transcript: Transcript) -> int:
    """Of the command; says on stderr why an answer is incomplete. Raises QueryError where it failed."""
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


def _merge_filters(filters: Iterable[tuple[str, str, str]]) -> dict[str, dict[str, list[Any]]]:
    """`device_filter` and `cloud_filter`. What is typed may be a text or a number, so both are admitted."""
    merged: dict[str, dict[str, list[Any]]] = {}
    for party, key, value in filters:
        values = merged.setdefault(f"{party}_filter", {}).setdefault(key, [])
        values.append(value)
        with contextlib.suppress(ValueError):
            number = json.loads(value) if len(value) < 100 else value
            values += [number] if isinstance(number, int | float) else []
    return merged


def _open(address: str, config: Config, log: StageLog, *, is_fresh: bool = False) -> Tandem:
    """The cluster at `address`, of the settings, or running here; one of our own if there is none or `is_fresh`."""
    from tandem.cluster.discovery import find_local

    if not is_fresh:
        address = address or config.cluster.address or find_local(config, log) or ""
    from tandem.client import Tandem

    if address and not is_fresh:
        return Tandem.connect(address, config, progress=log)
    return Tandem.launch(config, progress=log)


def _printer(provisional: bool, *, is_silent: bool) -> PlainText | LiveText:
    is_live = provisional and not is_silent and LiveText.is_possible()
    return LiveText() if is_live else PlainText(is_silent=is_silent)


def _follow(
    events: Iterator[Event],
    transcript: Transcript,
    printer: PlainText | LiveText,
    log: StageLog,
    *,
    is_quiet: bool,
) -> None:
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
        case PeerEvent(is_alone=True):
            reason = f" ({event.reason})" if event.reason else ""
            log(f"cloud: lost at token {event.step}, the device continues alone{reason}")
        case PeerEvent():
            log(f"cloud: back at token {event.step}")
        case _:
            pass


def _print_details(transcript: Transcript) -> None:
    print("\nSources", *transcript.source_lines(), sep="\n")
    if transcript.done is not None:
        print("\nStatistics", *transcript.statistics_lines(), sep="\n")
