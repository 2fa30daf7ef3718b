"""`tandem index`: from one party's files to the index that it searches; `tandem search`: what that index finds."""

from __future__ import annotations

import inspect
import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from typer import Argument, BadParameter, Option

from tandem import plugins
from tandem.actors.loading import drop_stale_caches, patiently
from tandem.cli.options import AsJson, PartyArgument, SettingsOptions, merge_filters, with_options
from tandem.cli.output import (
    INDENT,
    StageLog,
    describe_place,
    describe_score,
    emit,
    metadata_line,
    plural,
    print_json,
    progress_bar,
    text_lines,
    warn,
)
from tandem.client.ask import check_question
from tandem.errors import ConfigError, RetrievalError, install_line
from tandem.support import is_foreign
from tandem.system.file_kinds import COMMON, as_text
from tandem.system.paths import index_folder
from tandem.system.processes import count_cores
from tandem.topology import Party

if TYPE_CHECKING:
    from tandem.config.schema import Config
    from tandem.engine.engine import PrecomputeReport
    from tandem.retrieval import BuildReport, Hit
    from tandem.retrieval.embedding import TextEmbedder


ID_KEY_BYTES = 32
SAMPLE_FILES, SAMPLE_CHARS = 200, 2_000
"""Of a folder, and of each file of it: whether they are in English."""


@with_options()
def index(
    party: PartyArgument,
    path: Annotated[
        str | None,
        Argument(
            metavar="PATH",
            help="a file or a folder (default: what the index was built from)",
            show_default=False,
        ),
    ] = None,
    add: Annotated[
        str | None,
        Option(metavar="PATH", help="add a file or a folder to what is there; later builds cover it too"),
    ] = None,
    delete: Annotated[
        list[str] | None,
        Option(metavar="NAME", help="remove a document, a folder or what --add added; may be repeated"),
    ] = None,
    replace: Annotated[
        bool, Option("--replace", help="make PATH what the index is built from, whatever it held before")
    ] = False,
    out: Annotated[
        str | None,
        Option(
            metavar="DIR",
            help="where the index goes (default: the one in the settings, else one folder per party)",
        ),
    ] = None,
    factory: Annotated[
        str | None, Option(metavar="F", help="kind of index: Flat, or like IVF512,Flat (default: by size)")
    ] = None,
    precompute_kv: Annotated[
        bool, Option("--precompute-kv", help="compute the caches of all chunks now, not when first used")
    ] = False,
    watch: Annotated[
        bool,
        Option(
            "--watch", help="follow the folders until it is stopped: what changes is indexed within seconds"
        ),
    ] = False,
    as_json: AsJson = False,
    *,
    settings: SettingsOptions,
) -> int:
    """Index one party's documents, or bring their index up to date.

    The index remembers its PATH: building it from another one is refused where a document would be lost. If it fails,
    the index that was there is kept.
    """
    from tandem.config.files import replace_settings
    from tandem.retrieval.store import has_index

    if path is not None and (add or delete):
        raise BadParameter("PATH must be left out with --add and --delete")
    if replace and path is None:
        raise BadParameter("--replace needs a PATH")
    if watch and (precompute_kv or as_json):
        raise BadParameter("--watch goes neither with --precompute-kv nor with --json")
    log = StageLog(is_quiet=as_json)
    config = settings.load(log, *([f"retrieval.factory={factory}"] if factory else []))
    configured = config.party(party).index_folder
    folder = Path(out).expanduser().absolute() if out else configured or index_folder(party)
    config = replace_settings(config, {party: {"index": str(folder)}})
    if precompute_kv:
        _check_store(config, party)
    embedder = _embedder(config, log)
    if watch and has_index(folder) and not (path or add or delete):
        return _watch(config, party, folder, embedder, log)
    report = _build(path, add, delete or [], folder, config, embedder, log, replace=replace)
    caches = None
    if precompute_kv:
        caches = compute_caches(config, party, log)
    else:
        drop_stale_caches(config, party, folder)
    if as_json:
        values = {"kv": caches} if caches else {}
        print_json({"party": party, "directory": str(folder), **asdict(report), **values})
        return 0
    is_named = any(text.startswith(f"{party}.index") for text in settings.overrides or ())
    _print_report(report, party, folder, is_in_settings=folder == configured and not is_named)
    if caches:
        _print_caches(caches)
    _print_foreign(folder, report.manifest.embedder)
    if config.party(party).num_documents == 0:
        setting = f"{party}.num_documents"
        emit(f"No question uses it while {setting} is 0, as the settings have it; set it to 4, for example.")
    if delete:
        emit("What a folder still holds comes back when it is indexed next; move it out of the folder.")
    return _watch(config, party, folder, embedder, log) if watch else 0


index.__doc__ = f"{inspect.cleandoc(index.__doc__ or '')}\n\n\b\n{as_text()}\n\n{COMMON}"


def _build(
    path: str | None,
    add: str | None,
    delete: list[str],
    out: Path,
    config: Config,
    embedder: TextEmbedder,
    log: StageLog,
    *,
    replace: bool,
) -> BuildReport:
    """A new index, or the changed one. Raises TandemError, also where nothing is there that could be deleted.

    What is wrong with the source is found before the embedder takes its time.
    """
    from tandem.retrieval import build_index, update_index

    options: dict[str, Any] = {
        **config.retrieval.build_options,
        "num_threads": count_cores(),
        "progress": lambda done, total: log(f"chunks: {done} of {total}"),
    }
    if not (add or delete):
        source = None if path is None else Path(path).expanduser()
        key = secrets.token_bytes(ID_KEY_BYTES)  # an existing index keeps its own
        return patiently(
            out, lambda: build_index(source, out, embedder, replace=replace, id_key=key, **options)
        )
    added = () if add is None else Path(add).expanduser()
    report = patiently(out, lambda: update_index(out, embedder, add=added, delete=delete, **options))
    if add is None and report.is_unchanged and report.problems:
        raise RetrievalError(report.problems[0])
    return report


def _watch(config: Config, party: Party, folder: Path, embedder: TextEmbedder, log: StageLog) -> int:
    logger = logging.getLogger("tandem")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler := _WatchLog(log))
    try:
        log(f"watch: the folders of {folder}, until Ctrl-C")
        plugins.find("watcher", "here")(party, config, folder, embedder)
    except KeyboardInterrupt:
        log("watch: stopped")
    finally:
        logger.removeHandler(handler)
    return 0


class _WatchLog(logging.Handler):
    """Shows what is logged as lines of the command."""

    def __init__(self, log: StageLog) -> None:
        super().__init__()
        self._show = log

    def emit(self, record: logging.LogRecord) -> None:
        """Show one record."""
        self._show(f"watch: {record.getMessage()}")


def _embedder(config: Config, log: StageLog) -> TextEmbedder:
    """The embedder of the settings, which is loaded when a build first needs it."""
    from tandem.actors.loading import load_embedder

    def load() -> TextEmbedder:
        log("embedder: loading")
        embedder = load_embedder(config, num_threads=count_cores())
        log(f"embedder: {embedder.name}")
        return embedder

    return cast("TextEmbedder", _Late(load))


class _Late:
    """Something that is made when it is first used."""

    def __init__(self, make: Callable[[], object]) -> None:
        self._made = cache(make)

    def __getattr__(self, name: str) -> object:
        return getattr(self._made(), name)


def _print_report(report: BuildReport, party: Party, out: Path, *, is_in_settings: bool) -> None:
    for problem in report.problems:
        warn(problem)
    summary = f"{plural(report.num_files, 'file')}, {plural(report.num_chunks, 'chunk')}"
    if report.problems:
        summary += f", {plural(len(report.problems), 'problem')}"
    action = "Unchanged" if report.is_unchanged else "Indexed"
    emit(f"{action}: {summary} in {out} ({report.manifest.factory}, {report.manifest.embedder})")
    changes = f"{report.num_added} added, {report.num_replaced} replaced, {report.num_deleted} deleted"
    changes += f", {report.num_changed} with other metadata" if report.num_changed else ""
    embedded = plural(report.num_embedded, "text")
    emit(f"Chunks: {changes}, {report.num_unchanged} unchanged; {embedded} embedded")
    emit(f"From: {', '.join(report.manifest.roots)}")
    if is_in_settings:
        emit("Use it: tandem ask QUESTION")
        return
    emit(f"Use it: tandem ask --set {party}.index={out} QUESTION")
    emit(f'or permanently, in tandem.toml: {party}.index = "{out}"')


# ---- Languages that the embedder does not know ---------------------------------------------------------------


def _print_foreign(out: Path, embedder: str) -> None:
    """How many of the files in an index are not in English, where some are and its embedder knows no other language."""
    from tandem.config.schema import MULTILINGUAL
    from tandem.retrieval.embedding import HUB_NAME
    from tandem.retrieval.store import Snapshot

    if embedder != HUB_NAME:
        return
    with Snapshot(out) as index:
        texts = [index.documents(rows[:2]) for rows in index.sources().values()]
    count = sum(is_foreign("\n".join(chunk.page_content for chunk in chunks)) for chunks in texts)
    if count:
        get = "" if has_multilingual() else f" and run `{install_line(MULTILINGUAL)}`"
        verb = "is" if count == 1 else "are"
        emit(
            f"{count} of {plural(len(texts), 'file')} {verb} not in English, which is all that the embedder knows; set "
            f'retrieval.embedder to "{MULTILINGUAL}"{get}.'
        )


def choose_embedder(folders: Iterable[Path]) -> str:
    """What `retrieval.embedder` should be for some folders: "multilingual" where a file of them is not in English and
    that embedder is on this machine, else "auto". Reads the first SAMPLE_FILES of each."""
    from tandem.config.schema import MULTILINGUAL
    from tandem.retrieval.loaders import read_files, walk_path

    if has_multilingual():
        for folder in folders:
            passages = read_files(islice(walk_path(folder, "", []), SAMPLE_FILES), []).documents
            first = {passage.metadata["source"]: passage.text for passage in reversed(passages)}
            if any(is_foreign(text[:SAMPLE_CHARS]) for text in first.values()):
                return MULTILINGUAL
    return "auto"


def has_multilingual() -> bool:
    """Whether the embedder of many languages is on this machine."""
    from tandem.config.schema import E5_NAME, MULTILINGUAL
    from tandem.engine.places import is_cached
    from tandem.retrieval.embedding import resolve

    try:
        place = resolve(MULTILINGUAL)
    except RetrievalError:
        return False
    return place != E5_NAME or is_cached(place, "modules.json")


# ---- Caches of chunks --------------------------------------------------------------------------------------


def _check_store(config: Config, party: Party) -> None:
    kind = config.party(party).kv_store
    if kind != "disk":
        raise ConfigError(
            f'Caches are precomputed for a store on disk, but {party}.kv_store is "{kind}"; '
            'set it to "disk", or omit --precompute-kv.'
        )


def compute_caches(
    config: Config,
    party: Party,
    log: StageLog,
    follow: Callable[[int, int], object] = lambda done, total: None,
) -> PrecomputeReport:
    """Those of all chunks of an index that are missing. follow: may raise to end it. Raises TandemError."""
    from tandem.actors.loading import load_engine, open_disk_store
    from tandem.engine.engine import precompute
    from tandem.retrieval import Index
    from tandem.retrieval.retriever import kv_folder

    own = config.party(party)
    log(f"model: loading {own.model}")
    engine = load_engine(own)
    store = open_disk_store(own, engine, kv_folder(party, config), warn)
    chunks = Index.open(Path(own.index))
    with progress_bar("caches", is_quiet=log.is_quiet) as advance:

        def show(done: int, total: int) -> None:
            advance(done, total)
            follow(done, total)

        return precompute(engine, store, len(chunks), lambda row: chunks.document(row).page_content, show)


def _print_caches(report: PrecomputeReport) -> None:
    counts = f"{plural(report.num_computed, 'chunk')} computed, {report.num_present} already there"
    emit(f"Caches: {counts}; {report.num_bytes / 1e6:.1f} MB")
    left_out = (
        (report.num_too_long, "exceed", "exceeds", "the model's context", "retrieval.chunk_chars"),
        (
            report.num_left_out,
            "do not fit",
            "does not fit",
            "into the store or on its disk",
            "kv_max_bytes, or free space",
        ),
    )
    for count, several, one, where, remedy in left_out:
        if count:
            verb = one if count == 1 else several
            warn(f"{plural(count, 'chunk')} {verb} {where} and will be computed when used; change {remedy}.")


EXCERPT_LINES = 3


def parse_condition(text: str) -> tuple[str, str]:
    """Key and value of "source=notes.md". Raises a usage error."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise BadParameter(f"must be KEY=VALUE, such as source=notes.md (got {text!r})")
    return key, value


@with_options()
def search(
    party: PartyArgument,
    question: Annotated[
        str, Argument(metavar="QUESTION", help="what to look for, in quotes", show_default=False)
    ],
    num_documents: Annotated[
        int | None, Option(metavar="N", min=1, help="passages to find (default: as many as for an answer)")
    ] = None,
    conditions: Annotated[
        list[Any] | None,
        Option(
            "--filter",
            metavar="KEY=VALUE",
            parser=parse_condition,
            help="only documents with this metadata, such as source=notes.md; repeat it with another value to admit "
            "both, with another key to narrow further",
        ),
    ] = None,
    full: Annotated[bool, Option("--full", help="print whole passages, not the lines that fit best")] = False,
    as_json: AsJson = False,
    *,
    settings: SettingsOptions,
) -> int:
    """Show which passages of one party's documents a question finds.

    Reads the index on this machine; no model is loaded and nothing is started.
    """
    from tandem.retrieval.documents import describe_passage

    check_question(question)
    log = StageLog(is_quiet=as_json)
    config = settings.load(log)
    filter = merge_filters((party, key, value) for key, value in conditions or ()).get(f"{party}_filter")
    count = num_documents or config.party(party).num_documents or 1
    hits = _find(party, config, question, count, filter, log)
    if not as_json:
        _print_hits(hits, "" if full else question)
        return 0
    passages = [
        {"rank": rank, "score": hit.score, "id": hit.id, **describe_passage(hit.document)}
        for rank, hit in enumerate(hits, 1)
    ]
    print_json(
        {"party": party, "index": config.party(party).index, "question": question, "passages": passages}
    )
    return 0


def _find(
    party: Party, config: Config, question: str, count: int, filter: dict[str, Any] | None, log: StageLog
) -> list[Hit]:
    """The hits, best first. Raises TandemError, for a missing index before the embedder takes its time."""
    from tandem.actors.loading import load_embedder_and_scorer
    from tandem.retrieval.retriever import open_retriever
    from tandem.retrieval.store import read_manifest

    own = config.party(party)
    if own.index_folder is not None:
        read_manifest(Path(own.index_folder))
    log(f"index: {own.index}")
    embedder, scorer = load_embedder_and_scorer(config)
    retriever = open_retriever(party, config, embedder, scorer)
    hits = list(retriever.search(question, count, filter=filter))
    of = f" of {retriever.num_documents}" if retriever.num_documents is not None else ""
    log(f"found: {plural(len(hits), 'passage')}{of}")
    return hits


def _print_hits(hits: list[Hit], question: str) -> None:
    """question: of each passage the lines that have most of its words are shown; "": all."""
    if not hits:
        emit("Nothing was found.")
    for rank, hit in enumerate(hits, 1):
        metadata = hit.document.metadata
        place = describe_place(metadata.get("source"), metadata.get("page"), metadata.get("line"))
        emit(f"{rank:>3}  {describe_score(hit.score)}  {place}")
        lines = list(text_lines(hit.document.page_content))
        emit(*(excerpt(lines, question) if question else lines), sep="\n")
        if line := metadata_line(metadata):
            emit(line)


def excerpt(lines: Sequence[str], question: str) -> list[str]:
    """EXCERPT_LINES lines of a text in a row that have most words of a question, the first ones of equals, with dots
    where there is more."""
    from tandem.retrieval.words import parts_of

    asked = {part for part in parts_of(question) if len(part) > 2 or part.isdigit()}
    starts = range(max(1, len(lines) - EXCERPT_LINES + 1))
    start = max(starts, key=lambda at: len(asked & parts_of(" ".join(lines[at : at + EXCERPT_LINES]))))
    end = start + EXCERPT_LINES
    return [f"{INDENT}..."] * (start > 0) + list(lines[start:end]) + [f"{INDENT}..."] * (end < len(lines))
