"""Computes the caches of all documents of an index ahead of the first question.

What is there already is kept, so an interrupted run goes on where it was. Knows nothing of indexes or terminals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tandem.engine.engine import Engine
from tandem.engine.prefix_files import PrefixFiles
from tandem.errors import GenerationError


@dataclass(slots=True)
class PrecomputeReport:
    """What became of each document, in numbers of documents, and of the store."""

    num_computed: int = 0
    num_present: int = 0  # stored before, and sound
    num_too_long: int = 0  # longer than the context: cut, and computed, for each question
    num_left_out: int = 0  # beyond the store's budget, or refused by the disk: computed when used
    num_bytes: int = 0  # of the store


def precompute(
    engine: Engine,
    files: PrefixFiles,
    num_documents: int,
    document: Callable[[int], str],
    progress: Callable[[int, int], None] | None = None,
) -> PrecomputeReport:
    """Stores the caches of all documents in `files`, each as soon as it is computed, and removes everything else.

    document(i): text of the i-th. progress(done, total) counts documents.
    """
    engine.prefixes.store = files
    report = PrecomputeReport()
    names = (files.name(_tokens(engine, document(number))) for number in range(num_documents))
    files.prune(set(names))
    bytes_per_token = 0.0
    for number in range(num_documents):
        if progress:
            progress(number, num_documents)
        tokens = _tokens(engine, document(number))
        if not tokens:
            report.num_too_long += 1
        elif files.get(tokens) is not None:
            report.num_present += 1
        elif (
            not files.can_write or files.num_bytes + bytes_per_token * len(tokens) > files.max_bytes
        ):  # storing it would remove what was stored just before
            report.num_left_out += 1
        else:
            bytes_per_token = engine.prefix(document(number)).num_bytes / len(tokens)
            if files.get(tokens) is not None:
                report.num_computed += 1
            else:
                report.num_left_out += 1
    if progress:
        progress(num_documents, num_documents)
    report.num_bytes = files.num_bytes
    return report


def _tokens(engine: Engine, document: str) -> tuple[int, ...]:
    """Tokens of a document's prefix, none where it is too long."""
    try:
        return engine.prefix_tokens(document)
    except GenerationError:
        return ()
