"""Cuts a text into windows of tokens: the first part of each is the query, the rest is scored (DRAGON 7.2).

Windows follow each other without overlap, so no token counts twice; what is left at the end of the text, shorter
than a window, is not used. Knows texts and token ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tandem.retrieval.loaders import load_path
from tandem_lab.errors import EvaluationError
from tandem_lab.quality.teacher_forcing import Case

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
