"""`tandem search`: what a party's index finds for a question, without a model and without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, BadParameter, Option

from tandem.cli.options import (
    AsJson,
    PartyArgument,
    SettingsOptions,
    merge_filters,
    with_options,
)
from tandem.cli.output import (
    StageLog,
    describe_place,
    describe_score,
    emit,
    metadata_line,
    plural,
    print_json,
    text_lines,
)
from tandem.client.batch import check_question
from tandem.topology import Party

if TYPE_CHECKING:
    from tandem.config.schema import Config
    from tandem.retrieval import Hit

EXCERPT_LINES = 3


def parse_condition(text: str) -> tuple[str, str]:
    """Key and value of "source=notes.md". Raises a usage error."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise BadParameter(f"must be KEY=VALUE, such as source=notes.md (got {text!r})")
    return key, value


QuestionArgument = Annotated[
    str, Argument(metavar="QUESTION", help="what to look for, in quotes", show_default=False)
]
NumDocuments = Annotated[
    int | None,
    Option(metavar="N", min=1, help="passages to find (default: as many as for an answer)"),
]
Conditions = Annotated[
    list[Any] | None,
    Option(
        "--filter",
        metavar="KEY=VALUE",
        parser=parse_condition,
        help="only documents with this metadata, such as source=notes.md; repeat it with another value to admit both, "
        "with another key to narrow further",
    ),
]
Full = Annotated[bool, Option("--full", help="print whole passages, not their first lines")]


@with_options()
def search(
    party: PartyArgument,
    question: QuestionArgument,
    num_documents: NumDocuments = None,
    conditions: Conditions = None,
    full: Full = False,
    as_json: AsJson = False,
    *,
    settings: SettingsOptions,
) -> int:
    """Show which passages of one party's documents a question finds.

    Reads the index on this machine; no model is loaded and nothing is started.
    """
    check_question(question)
    log = StageLog(is_quiet=as_json)
    config = settings.load(log)
    filter = merge_filters((party, key, value) for key, value in conditions or ()).get(f"{party}_filter")
    count = num_documents or config.party(party).num_documents or 1
    hits = _find(party, config, question, count, filter, log)
    if as_json:
        passages = [_as_dict(rank, hit) for rank, hit in enumerate(hits, 1)]
        print_json(
            {"party": party, "index": config.party(party).index, "question": question, "passages": passages}
        )
    else:
        _print_hits(hits, full=full)
    return 0


def _find(
    party: Party, config: Config, question: str, count: int, filter: dict[str, Any] | None, log: StageLog
) -> list[Hit]:
    """The hits, best first. Raises TandemError, for a missing index before the embedder takes its time."""
    from tandem.actors.loading import load_embedder_and_scorer
    from tandem.retrieval.factory import open_retriever
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


def _print_hits(hits: list[Hit], *, full: bool) -> None:
    if not hits:
        emit("Nothing was found.")
    for rank, hit in enumerate(hits, 1):
        metadata = hit.document.metadata
        place = describe_place(metadata.get("source"), metadata.get("page"), metadata.get("line"))
        emit(f"{rank:>3}  {describe_score(hit.score)}  {place}")
        emit(*text_lines(hit.document.page_content, None if full else EXCERPT_LINES), sep="\n")
        if line := metadata_line(metadata):
            emit(line)


def _as_dict(rank: int, hit: Hit) -> dict[str, Any]:
    from tandem.retrieval.documents import describe_passage

    return {"rank": rank, "score": hit.score, "id": hit.id, **describe_passage(hit.document)}
