"""`tandem lab eval`: how good the answers are, by method and number of documents.

The table goes to stdout, progress to stderr. Runs in this process: no cluster is started.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.cli.options import MODELS, AsJson, SettingsOptions, with_options
from tandem.cli.output import StageLog, print_json, progress_bar
from tandem.errors import ConfigError
from tandem.topology import PARTIES
from tandem_lab.errors import EvaluationError
from tandem_lab.quality.methods import NUM_PASSAGES

if TYPE_CHECKING:
    from tandem.config.schema import Config
    from tandem_lab.quality.document_sets import Counts
    from tandem_lab.quality.result import Result

DEFAULT_METHODS = "none,rag,rag-each,rag-right,static,evidence"
MAX_NEW_TOKENS = 48
COMPARED = "rag,rag-right,static,evidence,pced,nbce,delta,steps"
HELD_OUT = "held-out"
MAX_DOCUMENTS = 1000


def _parse_split(text: str) -> str:
    """A split by its name. Raises a usage error."""
    from tandem_lab.quality.questions import SPLITS

    if text not in SPLITS:
        raise typer.BadParameter(f"must be {', '.join(SPLITS[:-1])} or {SPLITS[-1]} (got {text!r})")
    return text


Questions = Annotated[
    str | None,
    typer.Argument(
        metavar="QUESTIONS",
        help='household, bridges (each needs a note and a page), jsonl: {"question": ..., "answers": [...]} per line, '
        "or json in SQuAD's form, whose paragraphs are dealt to both parties (default: household; with a bundled model "
        "its own)",
        show_default=False,
    ),
]
Split = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        parser=_parse_split,
        help=f"ask those of a split: tune, held-out or all (default: {HELD_OUT} of those with a name, all of others)",
    ),
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help=f"longest answer, in tokens (default: {MAX_NEW_TOKENS}, unless the settings change theirs)",
    ),
]
Passages = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help=f"passages in the prompt of rag (default: {NUM_PASSAGES})"),
]
Limit = Annotated[int | None, typer.Option(metavar="N", min=1, help="ask the first N (default: all)")]
NumDocuments = Annotated[
    str | None,
    typer.Option(
        "--counts",
        metavar="LIST",
        help="documents per party, or device+cloud (default: those of the settings)",
    ),
]
Methods = Annotated[
    str | None,
    typer.Option(
        "--methods",
        metavar="LIST",
        help=f"what is compared (default: {DEFAULT_METHODS}; rag-right where all questions name their sources)",
        show_default=False,
    ),
]
Compare = Annotated[
    bool, typer.Option("--compare", help=f"what the field has: the methods {COMPARED}", show_default=False)
]
Out = Annotated[str | None, typer.Option(metavar="DIR", help="write result.json, table.txt and predictions")]


@with_options(*MODELS)
def evaluate(
    questions: Questions = None,
    split: Split = None,
    limit: Limit = None,
    counts: NumDocuments = None,
    methods: Methods = None,
    compare: Compare = False,
    passages: Passages = None,
    max_new_tokens: MaxNewTokens = None,
    out: Out = None,
    as_json: AsJson = False,
    *,
    settings: SettingsOptions,
) -> int:
    """Measure how many questions are answered right, and what an answer costs."""
    from tandem_lab.bundled import QUESTIONS
    from tandem_lab.quality.document_sets import Counts
    from tandem_lab.quality.methods import select_methods
    from tandem_lab.quality.qa import check_sources, evaluate_questions
    from tandem_lab.quality.questions import (
        SETS,
        read_questions,
        read_set,
        select_split,
        shuffle,
        with_documents,
    )
    from tandem_lab.quality.setup import load
    from tandem_lab.quality.squad import read_squad

    log = StageLog(is_quiet=as_json)
    config = _limit_answers(settings.load(log), max_new_tokens)
    if questions is None and all(config.party(party).index == "household" for party in PARTIES):
        questions = "household"
    methods_ = select_methods(methods or (COMPARED if compare else DEFAULT_METHODS))
    folder = _check_folder(out)
    if questions in SETS:
        config = with_documents(config, questions)
        asked = read_set(questions, split or HELD_OUT)[:limit]
    elif questions is not None and questions.endswith(".json"):
        name, entries = read_squad(Path(questions))
        config = with_documents(config, name)
        asked = shuffle(select_split(entries, split or HELD_OUT))[:limit]
    else:
        entries = read_questions(QUESTIONS if questions is None else Path(questions))
        asked = select_split(entries, split or "all")[:limit]
    if methods is None and not all(question.sources for question in asked):
        del methods_["rag-right"]
    check_sources(asked, methods_)
    own = [Counts(config.device.num_documents, config.cloud.num_documents)]
    counts_ = own if counts is None else parse_counts(counts)
    parties = load(config, log)
    with progress_bar("eval", is_quiet=as_json) as advance:
        result = evaluate_questions(
            parties,
            asked,
            methods_,
            counts_,
            config,
            num_passages=passages or NUM_PASSAGES,
            progress=advance,
        )
    return _finish(result, folder, log, as_json=as_json)


def parse_counts(text: str) -> list[Counts]:
    """Numbers of documents such as "0,1,4" for both parties alike, or "4+16" for device and cloud."""
    from tandem_lab.quality.document_sets import Counts

    counts = []
    for part in text.split(","):
        numbers = [number.strip() for number in part.split("+")]
        is_plain = all(
            number.isascii() and number.isdigit() and int(number) <= MAX_DOCUMENTS for number in numbers
        )
        if len(numbers) > 2 or not is_plain:
            raise ConfigError(
                f"Numbers of documents are given as 0,4,16, or as 4+16 for device and cloud, at most {MAX_DOCUMENTS} "
                f"(got {part.strip()!r})."
            )
        counts.append(Counts(int(numbers[0]), int(numbers[-1])))
    return list(dict.fromkeys(counts))


def _limit_answers(config: Config, max_new_tokens: int | None) -> Config:
    """Settings with this longest answer; None: one with which an evaluation ends, unless they have their own."""
    from tandem.config.schema import SamplingParams

    if max_new_tokens is None:
        own = config.sampling.max_new_tokens
        max_new_tokens = MAX_NEW_TOKENS if own == SamplingParams().max_new_tokens else own
    return replace(config, sampling=replace(config.sampling, max_new_tokens=max_new_tokens))


def _check_folder(name: str | None) -> Path | None:
    """The folder to write to. Raises EvaluationError now rather than after the work if it is a file."""
    if name is not None and Path(name).exists() and not Path(name).is_dir():
        raise EvaluationError(
            f"--out needs the name of a folder, but {name!r} is a file; choose another name."
        )
    return None if name is None else Path(name)


def _finish(result: Result, out: Path | None, log: StageLog, *, as_json: bool) -> int:
    from tandem_lab.quality.result import table, write

    if as_json:
        print_json(result.as_dict())
    else:
        print(table(result))
    if out is not None:
        write(result, out)
        log(f"out: {out}")
    return 0
