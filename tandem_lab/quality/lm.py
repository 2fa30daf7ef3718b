"""Perplexity of a text over the number of documents, as in DRAGON section 7.2 and Figure 5.

Rolling windows; the first eighth of each is the query, the rest is scored. Knows methods and windows; nothing of
command lines, files or Ray.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from tandem.config.schema import WeightsConfig
from tandem.engine.engine import Engine
from tandem.retrieval.loaders import load_path
from tandem.topology import PARTIES, Party
from tandem_lab.errors import EvaluationError
from tandem_lab.quality import statistics
from tandem_lab.quality.aggregation import Floats
from tandem_lab.quality.document_sets import Counts, search
from tandem_lab.quality.methods import Method
from tandem_lab.quality.result import Result, Row
from tandem_lab.quality.setup import Parties, clipper
from tandem_lab.quality.teacher_forcing import Case, Teacher

Progress = Callable[[int, int], object]
Losses = dict[tuple[str, Counts], list[Floats]]


def evaluate_text(
    parties: Parties,
    text: str,
    methods: Mapping[str, Method],
    counts: Sequence[Counts],
    weights: WeightsConfig,
    *,
    window: int,
    document_tokens: int | None = None,
    context_tokens: int | None = None,
    most_windows: int | None = None,
    progress: Progress = lambda done, total: None,
) -> Result:
    """Score `text` by every method with every number of documents.

    window: in tokens. document_tokens: longest document. context_tokens: longest joined documents of context
    aggregation; None for both: what the model's context holds beside the window. Raises TandemError.
    """
    engine = parties.engines[Party.DEVICE]
    check_room(parties, window)
    tokenizer = Tokenizer.from_str(engine.tokenizer_json)
    cases = windows(tokenizer.encode(text, add_special_tokens=False).ids, window, engine.text, most_windows)
    if not cases:
        raise EvaluationError(
            "A text to score must hold words, but the first eighth of every window is blank; use another text."
        )
    teacher = Teacher(parties.engines, weights, clipper(engine, context_tokens))
    clip = clipper(engine, document_tokens)
    losses: Losses = defaultdict(list)
    for number, case in enumerate(cases):
        progress(number, len(cases))
        found = search(parties.retrievers, case.query, counts, is_halved=parties.is_halved, clip=clip)
        for key, each in teacher.losses(case, found, methods, counts).items():
            losses[key].append(each)
    progress(len(cases), len(cases))
    return Result(
        kind="lm",
        what=_what(cases, window, document_tokens, context_tokens, weights, parties),
        rows=tuple(row(methods[name], name, each, losses[name, each]) for each in counts for name in methods),
        comparisons=tuple(_comparisons(losses, methods, counts)),
        notes=tuple(teacher.notes.sentences()),
    )


def check_room(parties: Parties, window: int) -> None:
    """Raises EvaluationError unless a window and at least one token of a document fit every model's context."""
    for party in PARTIES:
        engine: Engine = parties.engines[party]
        if engine.context_length is not None and window + 2 > engine.context_length:
            raise EvaluationError(
                f"A window and a document must fit the model's context of {engine.context_length} tokens, but the "
                f"window has {window}; make it shorter."
            )


def row(method: Method, name: str, counts: Counts, losses: Sequence[Floats]) -> Row:
    """Perplexity with its interval; None where nothing was scored."""
    return Row(
        method=name,
        label=method.label,
        counts=counts,
        perplexity=statistics.perplexity(losses) if losses else None,
        perplexity_interval=statistics.perplexity_interval(losses) if len(losses) > 1 else None,
    )


def _comparisons(losses: Losses, methods: Mapping[str, Method], counts: Sequence[Counts]) -> list[str]:
    """Paired, at the largest numbers of documents: Tandem's weights against every other method."""
    if "evidence" not in methods:
        return []
    sentences = []
    for name in methods:
        if name != "evidence":
            most = max(counts)
            ratio, low, high = statistics.ratio_interval(losses["evidence", most], losses[name, most])
            interval = f" [{low:.3f}, {high:.3f}]" if len(losses[name, most]) > 1 else ""
            sentences.append(
                f"{most.device} + {most.cloud} documents: perplexity of evidence weights over that of {name}: "
                f"{ratio:.3f}{interval}."
            )
    return sentences


def _what(
    cases: Sequence[Case],
    window: int,
    document_tokens: int | None,
    context_tokens: int | None,
    weights: WeightsConfig,
    parties: Parties,
) -> dict[str, object]:
    return {
        "models": {party.value: parties.engines[party].name for party in PARTIES},
        "windows": len(cases),
        "window_tokens": window,
        "scored_tokens": int(np.sum([len(case.tokens) for case in cases])),
        "document_tokens": document_tokens,
        "context_tokens": context_tokens,
        "documents": "halves of one corpus" if parties.is_halved else "each side's own index",
        "weights": asdict(weights),
    }


# ---- Windows -----------------------------------------------------------------------------------------------------


QUERY_SHARE = 8
"""A window's first eighth is its query."""


def read_text(path: Path) -> str:
    """The text of a file, or of all readable files of a folder. Raises EvaluationError, RetrievalError."""
    if path.is_dir():
        return "\n\n".join(document.page_content for document in load_path(path).documents)
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise EvaluationError(
            f"A text to score is a file or a folder, but {path} cannot be read ({error.strerror}); check the path."
        ) from None
    except UnicodeDecodeError as error:
        raise EvaluationError(
            f"A text to score must be UTF-8, but {path} is not (byte {error.start}); save it as UTF-8."
        ) from None


def windows(
    ids: Sequence[int], length: int, text: Callable[[Sequence[int]], str], most: int | None = None
) -> list[Case]:
    """Cases of `length` tokens each; `most` spreads so many evenly over the text. text: ids -> text.

    Raises EvaluationError where the text does not fill one window, or a window has no eighth. A window whose query
    is blank finds no documents and is left out.
    """
    num_query = length // QUERY_SHARE
    if num_query < 1:
        raise EvaluationError(
            f"A window has at least {QUERY_SHARE} tokens, the first eighth being its query, but {length} were asked "
            "for; make it longer."
        )
    if len(ids) < length:
        raise EvaluationError(
            f"A text must fill at least one window of {length} tokens, but this one has {len(ids)}; "
            "use a longer text or shorter windows."
        )
    starts = [number * length for number in range(len(ids) // length)]
    if most is not None and most < len(starts):
        starts = [starts[number * len(starts) // most] for number in range(most)]
    cases = []
    for start in starts:
        query, tokens = ids[start : start + num_query], ids[start + num_query : start + length]
        if words := text(query).strip():
            cases.append(Case(words, tuple(query), tuple(tokens)))
    return cases
