"""`tandem ask`: one question, its answer as it grows, then sources and statistics, or many; `tandem chat`.

Answers go to stdout; stages, notes and errors go to stderr. `tandem chat` reads lines, in a pipe as on a terminal.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, BadParameter, Option

from tandem.cli.answer import Transcript, cited_lines, exit_code, follow, mark
from tandem.cli.options import (
    QUESTION_SETTINGS,
    AskOptions,
    OutputOptions,
    PlaceOptions,
    SettingsOptions,
    with_options,
)
from tandem.cli.output import StageLog, emit, plural, print_json, warn
from tandem.client.answers import describe_citations, new_seed
from tandem.client.ask import STDIN, check_question, read_texts
from tandem.conversation import Message
from tandem.corpora import AUTO, TOYS
from tandem.errors import TandemError, did_you_mean
from tandem.topology import PARTIES, in_words

if TYPE_CHECKING:
    from tandem.client.ask import BatchItem, BatchProgress
    from tandem.client.tandem import Answerer
    from tandem.config.schema import Config, DecodingConfig
    from tandem.events import Source


@with_options(*QUESTION_SETTINGS)
def ask(
    question: Annotated[
        str | None,
        Argument(
            metavar="QUESTION",
            help="what to ask, in quotes; - reads questions from standard input, one per line",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="ask the questions of this file instead, one per line, or JSON lines with the field question",
        ),
    ] = None,
    *,
    query: AskOptions,
    provisional: Annotated[
        bool,
        Option(
            "--provisional",
            help="show drafts at once, dimmed, until they are committed or replaced (on a terminal and with --json; "
            "elsewhere only committed text is printed)",
        ),
    ] = False,
    cite: Annotated[
        bool,
        Option(
            "--cite",
            help="mark what your documents said, [1], and list them below; the text comes sentence by sentence",
        ),
    ] = False,
    concurrency: Annotated[
        int | None,
        Option(metavar="N", min=1, help="of many questions, how many are answered at once (default: 8)"),
    ] = None,
    place: PlaceOptions,
    output: OutputOptions,
    settings: SettingsOptions,
) -> int:
    """Ask a question and stream the answer with its sources; or ask many, and print answers in their order.

    With --json many answers are JSON lines, one object each. Exit code 3 if an answer was written without a party that
    was away, 4 if one was cut at its limit of tokens or fell silent.
    """
    from tandem.config.files import replace_settings

    if provisional and cite:
        raise BadParameter(
            "`tandem ask --cite` shows whole sentences, and --provisional drafts; leave out one."
        )
    texts = _read_questions(question, file, provisional=provisional)
    log = StageLog(is_quiet=output.quiet)
    config = settings.load(log)
    if config.cluster.runtime == "inline":  # one question is over before a folder is followed
        config = replace_settings(config, {party: {"watch": False} for party in PARTIES})
    if not output.quiet:
        note_toy(config)
    if texts is not None:
        options = {"seed": query.seed, **query.options()}
        with place.open_to_ask(config, log) as tandem:
            items = tandem.batch(texts, concurrency=concurrency or 8, progress=_progress_of(texts), **options)
            return _print_items(items, as_json=output.as_json, is_quiet=output.quiet, cite=cite)
    assert question is not None
    seed = new_seed() if query.seed is None else query.seed
    with place.open_to_ask(config, log) as tandem:
        stream = tandem.stream(question, seed=seed, show_drafts=provisional, **query.options())
        events = follow(
            stream, log, provisional=provisional, is_silent=output.as_json, cite=question if cite else ""
        )
    return _print_rest(Transcript(question, seed, query.only, config.decoding, events), output, cite=cite)


def _read_questions(question: str | None, file: str | None, *, provisional: bool) -> list[str] | None:
    """The list of questions that is to be read; None: it is one. Raises a usage error where it is unclear what to ask,
    and QueryError."""
    if question is not None and file is not None:
        raise BadParameter(
            f"`tandem ask` takes a question or --file (got {question!r:.60} and {file}); leave out one."
        )
    if question is None and file is None:
        raise BadParameter("`tandem ask` needs a QUESTION, - or --file FILE.")
    if file is None and question != STDIN:
        check_question(question)
        return None
    if provisional:
        raise BadParameter("`tandem ask --provisional` shows the drafts of one answer; ask one question.")
    return read_texts(file or STDIN)


def _print_rest(transcript: Transcript, output: OutputOptions, *, cite: bool) -> int:
    """Print cited documents, sources and statistics, or everything as JSON; returns the exit code. Raises QueryError
    where the answer failed."""
    if output.as_json:
        print_json(transcript.as_dict())
    transcript.done.check()
    if transcript.done.reason == "cancelled":
        warn("the question was cancelled")
    if transcript.done.error:
        warn(transcript.done.error)
    code = exit_code(transcript.answer)
    if output.as_json:
        return code
    if cite:
        emit("\nCited", *cited_lines(transcript.answer), sep="\n")
    if output.show_sources or not output.quiet:
        emit("\nSources", *transcript.source_lines(with_passages=output.show_sources), sep="\n")
    if not output.quiet:
        emit("\nStatistics", *transcript.statistics_lines(), sep="\n")
    return code


def note_toy(config: Config) -> None:
    """Say on stderr where the bundled model is given documents that are not the bundled ones."""
    if note := toy_problem(config):
        warn(f"{'; '.join(note)}.")


def toy_problem(config: Config) -> tuple[str, str] | None:
    """The problem and the remedy where the bundled model is given documents that are not the bundled ones."""
    sections = {
        f"workers.{party}" if party in config.workers else str(party): config.party(party)
        for party in config.parties
    }
    others = [
        f"{section}.index"
        for section, own in sections.items()
        if own.index not in (AUTO, "bundled") and own.num_documents
    ]
    if not others or all(own.model not in TOYS for own in sections.values()):
        return None
    verb = "names" if len(others) == 1 else "name"
    return (
        "The bundled model is a demonstration that can read the bundled documents only, but "
        f"{' and '.join(others)} {verb} others",
        f"set {' and '.join(f'{section}.model' for section in sections)} to a model of your own",
    )


# ---- many questions: answers in their order, each as soon as those before it are there --------------------------


def _progress_of(questions: Sequence[str]) -> BatchProgress | None:
    if not sys.stderr.isatty() or sys.stdout.isatty():
        return None
    width = len(str(len(questions)))

    def show(done: int, total: int) -> None:
        end = "\n" if done == total else "\r"
        emit(f"{done:{width}} of {total} answered", end=end, to_stderr=True)

    return show


def _print_items(items: Iterable[BatchItem], *, as_json: bool, is_quiet: bool, cite: bool) -> int:
    codes, errors = list[int](), list[Exception]()
    for item in _in_order(items):
        codes.append(exit_code(item.answer) if item.answer else 1)
        errors += [item.error] if item.error else []
        if as_json:
            print_json(_as_dict(item), indent=None)
        else:
            emit("\n".join(_item_lines(item, is_quiet=is_quiet, cite=cite)))
    if errors:
        warn(f"{len(errors)} of {plural(len(codes), 'question')} failed; the first: {errors[0]}")
    return 1 if errors else max(codes, default=0)


def _in_order(items: Iterable[BatchItem]) -> Iterator[BatchItem]:
    waiting: dict[int, BatchItem] = {}
    position = 0
    for item in items:
        waiting[item.index] = item
        while position in waiting:
            yield waiting.pop(position)
            position += 1


def _as_dict(item: BatchItem) -> dict[str, Any]:
    answer = item.answer
    return {
        "index": item.index,
        "question": item.question,
        "answer": answer.text if answer else None,
        "error": str(item.error) if item.error else None,
        "reason": answer.reason if answer else None,
        "seed": answer.seed if answer else None,
        "degraded": answer.degraded_reason if answer else None,
        "sources": answer.sources if answer else [],
        "citations": describe_citations(answer.citations, answer.sources) if answer else [],
        "support": answer.support if answer else None,
        "notes": list(answer.notes) if answer else [],
        "steps": answer.steps if answer else [],
        "statistics": answer.statistics if answer else None,
    }


def _item_lines(item: BatchItem, *, is_quiet: bool, cite: bool) -> Iterator[str]:
    answer = item.answer
    text, cited = f"(failed: {item.error})" if answer is None else answer.text, list[str]()
    if answer is not None and cite:
        text, cited = mark(text, answer.citations), cited_lines(answer)
    if is_quiet:
        yield from [text, *cited]
        return
    yield from [""] if item.index else []
    yield f"{item.index + 1}. {item.question}"
    yield from [text, *cited]
    if answer is not None:
        yield from [f"   {line}" for line in (*answer.steps, answer.degraded_reason) if line]
        yield f"   from {_origin(answer.sources)}"


def _origin(sources: Sequence[Source]) -> str:
    """Titles where they are known, and how many documents stay with each party."""
    titles = [source.title for source in sources if source.title is not None]
    parties = dict.fromkeys([*PARTIES, *(each.party for each in sources)])
    opaque = {party: sum(each.party == party and each.title is None for each in sources) for party in parties}
    counts = [f"{plural(count, 'document')} of {in_words(party)}" for party, count in opaque.items() if count]
    return ", ".join([*dict.fromkeys(titles), *counts]) or "no document"


COMMANDS = {
    "/sources": "documents of the last answer, with passages",
    "/stats": "its statistics",
    "/reset": "forget the conversation so far",
    "/help": "these lines",
    "/quit": "leave",
}
PROMPT = "> "
WELCOME = "Ask a question; /help lists the commands, /quit or Ctrl-D leaves."


@with_options(*QUESTION_SETTINGS)
def chat(*, query: AskOptions, place: PlaceOptions, settings: SettingsOptions) -> int:
    """Ask one question after the other; each answer is context for the next question.

    Documents are retrieved for every question separately. Lines that begin with / are commands: /sources and /stats of
    the last answer, /reset for a new conversation, /help, /quit. Ctrl-C cancels an answer, Ctrl-D leaves.
    """
    log = StageLog()
    config = settings.load(log)
    note_toy(config)
    with place.open_to_ask(config, log) as tandem:
        return Chat(tandem, query, config.decoding).run()


class Chat:
    """The loop, the conversation so far, and the last answer."""

    def __init__(self, tandem: Answerer, query: AskOptions, decoding: DecodingConfig) -> None:
        """query: how each question is asked."""
        self._tandem = tandem
        self._query = query
        self._decoding = decoding
        self._history: list[Message] = []
        self._last: Transcript | None = None
        self._num_failed = 0

    def run(self) -> int:
        """Read and answer lines until the end of input or a word that leaves; 1 if a question of a pipe failed."""
        is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        if is_terminal:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  (lines can be edited and fetched again)
            emit(WELCOME, to_stderr=True)
        while (line := self._read(PROMPT if is_terminal else "")) not in (None, "/quit", "/exit", "/bye"):
            if line and not is_terminal:
                emit(f"{PROMPT}{line}")  # a terminal shows what was typed
            if line:
                self._obey(line) if line.startswith("/") else self._ask(line)
        return 0 if is_terminal or not self._num_failed else 1

    def _read(self, prompt: str) -> str | None:
        """The next line, stripped; None at the end of input. Ctrl-C on a terminal only empties the line."""
        try:
            return input(prompt).strip()
        except EOFError:
            emit(end="\n" if prompt else "")
            return None
        except KeyboardInterrupt:
            if not prompt:
                raise
            emit()
            return ""

    def _obey(self, line: str) -> None:
        last = self._last
        match line:
            case "/sources" if last:
                emit(*last.source_lines(with_passages=True), sep="\n")
            case "/stats" if last:
                emit(*last.statistics_lines(), sep="\n")
            case "/sources" | "/stats":
                warn("There is no answer yet; ask a question.")
            case "/reset":
                self._history.clear()
                self._last = None
                emit("A new conversation.", to_stderr=True)
            case "/help":
                emit(*(f"  {name:<9} {meaning}" for name, meaning in COMMANDS.items()), sep="\n")
            case _:
                warn(f"There is no command {line!r:.60}; {did_you_mean(line, COMMANDS)}")

    def _ask(self, text: str) -> None:
        """Answer one question; the turn joins the conversation if it was answered."""
        seed = new_seed() if self._query.seed is None else self._query.seed
        options = {"seed": seed, "show_drafts": False, **self._query.options()}
        try:
            stream = self._tandem.stream(text, history=self._history or None, **options)
            last = Transcript(
                text, seed, self._query.only, self._decoding, follow(stream, StageLog(is_quiet=True))
            )
            last.done.check()
        except KeyboardInterrupt:
            warn("the answer was cancelled")
        except TandemError as error:
            self._num_failed += 1
            warn(f"{error}{' /reset begins a new conversation.' if self._history else ''}")
        else:
            for line in filter(None, (*last.answer.steps, *last.answer.notes, last.answer.degraded_reason)):
                warn(str(line))
            self._last = last
            self._history += [Message("user", text), Message("assistant", last.answer.text)]
