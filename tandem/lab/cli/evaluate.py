"""`tandem eval lm` and `tandem eval qa`: how good the answers are, by method and number of documents.

The table goes to stdout, progress to stderr. Runs in this process: no cluster is started.
"""

from __future__ import annotations

from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.cli.bar import Bar
from tandem.cli.terminal import Progress, print_json, settings
from tandem.errors import ConfigError, EvaluationError
from tandem.topology import Party

if TYPE_CHECKING:
    from tandem.lab.quality.document_sets import Counts
    from tandem.lab.quality.result import Result

DEFAULT_WINDOW = 1024
MAX_DOCUMENTS = 1000
RESULT_PLOT = "result.png"


def lm(args: Namespace) -> int:
    """Scores a text. Raises TandemError."""
    from tandem.lab.quality import methods
    from tandem.lab.quality.lm import evaluate_text
    from tandem.lab.quality.setup import load
    from tandem.lab.quality.windows import read_text

    progress = Progress(is_quiet=args.json)
    chosen, counts, out = methods.select_methods(args.methods), counts_of(args.counts), _folder(args.out)
    text = read_text(Path(args.text))
    if not text.strip():
        raise EvaluationError(f"A text to score must hold words, but {args.text} holds none; use another.")
    config = settings(args, (), progress)
    documents = None if args.documents is None else Path(args.documents)
    parties = load(config, documents, progress, Bar("index", is_quiet=args.json))
    context = parties.engines[Party.DEVICE].context_length
    window = args.window or min(DEFAULT_WINDOW, (context or 2 * DEFAULT_WINDOW) // 2)
    result = evaluate_text(
        parties,
        text,
        chosen,
        counts,
        config.weights,
        window=window,
        document_tokens=args.document_tokens,
        context_tokens=args.context_tokens,
        most_windows=args.windows,
        progress=Bar("eval", is_quiet=args.json),
    )
    return _finish(result, out, args, progress)


def qa(args: Namespace) -> int:
    """Asks questions. Raises TandemError."""
    from tandem.lab.quality import methods
    from tandem.lab.quality.document_sets import Counts
    from tandem.lab.quality.qa import evaluate_questions
    from tandem.lab.quality.questions import read_questions
    from tandem.lab.quality.setup import load
    from tandem.lab.training.bundle import QUESTIONS

    progress = Progress(is_quiet=args.json)
    chosen, out = methods.select_methods(args.methods), _folder(args.out)
    questions = read_questions(QUESTIONS if args.questions is None else Path(args.questions))[: args.limit]
    config = settings(args, (), progress)
    own = [Counts(config.device.num_documents, config.cloud.num_documents)]
    counts = own if args.counts is None else counts_of(args.counts)
    result = evaluate_questions(
        load(config, None, progress),
        questions,
        chosen,
        counts,
        config,
        progress=Bar("eval", is_quiet=args.json),
    )
    return _finish(result, out, args, progress)


def counts_of(text: str) -> list[Counts]:
    """Numbers of documents such as "0,1,4" for each side alike, or "4+16" for device and cloud."""
    from tandem.lab.quality.document_sets import Counts

    counts = []
    for part in text.split(","):
        numbers = [number.strip() for number in part.split("+")]
        is_plain = all(each.isascii() and each.isdigit() and int(each) <= MAX_DOCUMENTS for each in numbers)
        if len(numbers) > 2 or not is_plain:
            raise ConfigError(
                f"Numbers of documents are given as 0,4,16, or as 4+16 for device and cloud, at most {MAX_DOCUMENTS}, "
                f"but {part.strip()!r} is neither; correct it."
            )
        counts.append(Counts(int(numbers[0]), int(numbers[-1])))
    return list(dict.fromkeys(counts))


def _folder(given: str | None) -> Path | None:
    """The folder to write to; said now rather than after the work if it is a file."""
    if given is not None and Path(given).exists() and not Path(given).is_dir():
        raise EvaluationError(
            f"--out needs the name of a folder, but {given!r} is a file; choose another name."
        )
    return None if given is None else Path(given)


def _finish(result: Result, out: Path | None, args: Namespace, progress: Progress) -> int:
    from tandem.lab.quality.result import table, write

    if args.json:
        print_json(result.as_dict())
    else:
        print(table(result))
    if out is not None:
        write(result, out)
        if find_spec("matplotlib") is None:
            progress("plot: none was drawn, matplotlib is not installed; install tandem-rag[plot]")
        else:
            from tandem.lab.quality.plot import plot_evaluation

            plot_evaluation(result, out / RESULT_PLOT)
        progress(f"out: {out}")
    return 0
