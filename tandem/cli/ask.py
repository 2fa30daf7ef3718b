"""`tandem ask`: one question, its answer as it grows, then sources and statistics; or many, from a file or a pipe.

The answer goes to stdout; stages, notes and errors go to stderr.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tandem.cli.checks import bundled_model_note
from tandem.cli.follow import follow, make_printer
from tandem.cli.many import print_items, progress_of
from tandem.cli.options import (
    QUESTION_SETTINGS,
    AsJson,
    ConfigFile,
    Filters,
    Join,
    NumDocuments,
    Overrides,
    Seed,
    load_settings,
    merge_filters,
    new_seed,
    parse_count,
    parse_party,
    setting_overrides,
    with_models,
    with_settings,
)
from tandem.cli.output import StageLog, print_json, warn
from tandem.cli.transcript import Transcript
from tandem.client.questions import STDIN, check_question, read_texts
from tandem.config.schema import placement_of
from tandem.errors import ConfigError, QueryError
from tandem.events import DoneEvent
from tandem.topology import Party

if TYPE_CHECKING:
    from tandem.client.tandem import Tandem
    from tandem.config.schema import Config


QuestionArgument = Annotated[
    str, typer.Argument(metavar="QUESTION", help="what to ask, in quotes", show_default=False)
]
QuestionOrStdin = Annotated[
    str | None,
    typer.Argument(
        metavar="QUESTION",
        help="what to ask, in quotes; - reads questions from standard input, one per line",
        show_default=False,
    ),
]
QuestionFile = Annotated[
    str | None,
    typer.Option(
        "--file",
        metavar="FILE",
        help="ask the questions of this file instead, one per line, or JSON lines with the field question",
    ),
]
Concurrency = Annotated[
    int | None,
    typer.Option(
        metavar="N", parser=parse_count, help="of many questions, how many are answered at once (default: 8)"
    ),
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
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="ask this running cluster (default: the one that `tandem up` started here; without any, one is started "
        "and stopped afterwards)",
    ),
]
ShowSources = Annotated[
    bool, typer.Option("--show-sources", help="print the passages that this side's model read")
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
    join: str = ""  # a join link, or a file that holds it; empty: there is a cluster, or one is started
    is_fresh: bool = False  # start a cluster, whatever runs
    filters: dict[str, Any] = field(default_factory=dict)  # device_filter and cloud_filter
    provisional: bool = False  # whether drafts are shown

    @classmethod
    def create(cls, text: str, seed: int | None, only: Party | None = None, **options: Any) -> Question:
        """With a new seed unless one is given. Raises QueryError for an empty text, a usage error for both clusters."""
        if options.get("join") and (options.get("address") or options.get("is_fresh")):
            raise typer.BadParameter("--join runs the device here; leave out --address and --fresh.")
        if options.get("address") and options.get("is_fresh"):
            raise typer.BadParameter("--fresh starts a cluster for this question; leave out --address.")
        check_question(text)
        return cls(text=text, seed=new_seed() if seed is None else seed, only=only, **options)


@with_models
@with_settings(*QUESTION_SETTINGS)
def ask(
    question: QuestionOrStdin = None,
    file: QuestionFile = None,
    seed: Seed = None,
    only: Only = None,
    provisional: Provisional = False,
    num_documents: NumDocuments = None,
    filters: Filters = None,
    concurrency: Concurrency = None,
    address: Address = None,
    join: Join = None,
    fresh: Fresh = False,
    show_sources: ShowSources = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
    **settings: Any,
) -> int:
    """Ask a question and stream the answer with its sources; or ask many, and print answers in their order.

    With --json many answers are JSON lines, one object each.
    """
    is_many = _is_many(question, file, provisional=provisional)
    log = StageLog(is_quiet=quiet)
    asked: dict[str, Any] = {
        "only": only,
        "filters": merge_filters(filters or ()),
        "address": address or "",
        "join": join or "",
        "is_fresh": fresh,
    }
    texts = read_texts(file or STDIN) if is_many else []
    query = Question.create(
        texts[0] if is_many or question is None else question, seed, provisional=provisional, **asked
    )
    config = load_settings(config_file, overrides, setting_overrides(settings, num_documents), log)
    if (note := bundled_model_note(config)) and not quiet:
        warn(note)
    if is_many:
        with open_tandem(query, config, log) as tandem:
            options = {"seed": seed, "only": only, **query.filters}
            items = tandem.batch(texts, concurrency=concurrency or 8, progress=progress_of(texts), **options)
            return print_items(items, as_json=as_json, is_quiet=quiet)
    transcript = stream_answer(query, config, log, is_silent=as_json, is_quiet=quiet)
    return print_rest(transcript, show_sources=show_sources, quiet=quiet, as_json=as_json)


def _is_many(question: str | None, file: str | None, *, provisional: bool) -> bool:
    """Whether a list of questions is read. Raises a usage error where it is unclear what to ask."""
    if question is not None and file is not None:
        raise typer.BadParameter(
            f"`tandem ask` takes a question or --file (got {question!r:.60} and {file}); leave out one."
        )
    if question is None and file is None:
        raise typer.BadParameter("`tandem ask` needs a QUESTION, - or --file FILE.")
    is_many = file is not None or question == STDIN
    if is_many and provisional:
        raise typer.BadParameter(
            "`tandem ask --provisional` shows the drafts of one answer; ask one question."
        )
    return is_many


def stream_answer(
    question: Question, config: Config, log: StageLog, *, is_silent: bool = False, is_quiet: bool = False
) -> Transcript:
    """Ask and follow the answer to its end, printing its text as it comes; a cluster that was started is stopped.

    is_silent: print no text; is_quiet: no notes amid it either. Raises TandemError.
    """
    decoding = config.decoding
    transcript = Transcript(
        question.text, question.seed, placement_of(decoding), question.only, mode=decoding.mode
    )
    with open_tandem(question, config, log) as tandem:
        shown: dict[str, Any] = {"is_silent": is_silent, "is_quiet": is_quiet}
        stream_on(tandem, question, transcript, log, **shown, resumable=config.cluster.keep_unfinished)
    return transcript


def stream_on(
    tandem: Tandem,
    question: Question,
    transcript: Transcript,
    log: StageLog,
    *,
    is_silent: bool = False,
    is_quiet: bool = False,
    **options: Any,
) -> None:
    """The same on a cluster that is open, into a transcript. options: further ones of `Tandem.stream`."""
    events = tandem.stream(
        question.text,
        seed=question.seed,
        only=question.only,
        show_drafts=question.provisional,
        **question.filters,
        **options,
    )
    printer = make_printer(question.provisional, is_silent=is_silent)
    follow(events, transcript, printer, log, is_quiet=is_quiet)


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


def open_tandem(question: Question, config: Config, log: StageLog) -> Tandem:
    """What is named, in the settings, or running here: a device, or a cluster; one of our own if there is none.

    With --join, --fresh or the runtime "inline" it is always one of our own. Raises TandemError.
    """
    address = ""
    if question.join:
        from tandem.client.tandem import Tandem

        return Tandem.join(question.join, config, progress=log)
    if config.cluster.runtime == "inline":
        _refuse_address(question)
    elif not question.is_fresh:
        address = question.address or config.cluster.address
        if not address:
            from tandem.sites.attached import is_device_running

            if not config.is_federated and is_device_running():
                from tandem.client.tandem import Tandem

                return Tandem.connect(None, config, progress=log)
            from tandem.cluster.discovery import find_local

            address = find_local(config, log) or ""
    from tandem.client.tandem import Tandem

    if address:
        return Tandem.connect(address, config, progress=log)
    return Tandem.launch(config, progress=log)


def _refuse_address(question: Question) -> None:
    """Raise ConfigError for the address of a cluster."""
    if question.address:
        raise ConfigError(
            f'--address names a running Ray cluster (got {question.address!r}), but the runtime is "inline"; leave out '
            "one of them."
        )


def print_rest(transcript: Transcript, *, show_sources: bool, quiet: bool, as_json: bool) -> int:
    """Sources and statistics, or everything as JSON; returns the exit code. Raises QueryError as `exit_code`."""
    if as_json:
        print_json(transcript.as_dict())
    code = exit_code(transcript)
    if not as_json and (show_sources or not quiet):
        print("\nSources", *transcript.source_lines(with_passages=show_sources), sep="\n")
    if not as_json and not quiet:
        print("\nStatistics", *transcript.statistics_lines(), sep="\n")
    return code
