"""Computes the caches of all documents of an index before the first question.

Existing ones are kept, so an interrupted run continues where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tandem.engine.engine import Engine
from tandem.engine.kv_disk import DiskStore
from tandem.errors import GenerationError


@dataclass(slots=True)
class PrecomputeReport:
    """What became of each document, in numbers of documents, and of the store."""

    num_computed: int = 0
    num_present: int = 0  # stored before, and intact
    num_too_long: int = 0  # longer than the context: cut, and computed, for each question
    num_left_out: int = 0  # beyond the store's budget, or refused by the disk: computed when used
    num_bytes: int = 0  # of the store


def precompute(
    engine: Engine,
    store: DiskStore,
    num_documents: int,
    document: Callable[[int], str],
    progress: Callable[[int, int], None] | None = None,
) -> PrecomputeReport:
    """Store the caches of all documents, each as soon as it is computed, and remove everything else from `store`.

    document(i): text of the i-th. progress(done, total) counts documents.
    """
    engine.caches.store = store
    report = PrecomputeReport()
    names = (store.name(_tokens(engine, document(number))) for number in range(num_documents))
    store.prune(set(names))
    bytes_per_token = 0.0
    for number in range(num_documents):
        if progress:
            progress(number, num_documents)
        tokens = _tokens(engine, document(number))
        if not tokens:
            report.num_too_long += 1
        elif store.get(tokens) is not None:
            report.num_present += 1
        elif not store.can_write or store.num_bytes + bytes_per_token * len(tokens) > store.max_bytes:
            report.num_left_out += 1  # storing it would evict what was stored just before
        else:
            bytes_per_token = engine.document_cache(document(number)).num_bytes / len(tokens)
            if store.get(tokens) is not None:
                report.num_computed += 1
            else:
                report.num_left_out += 1
    if progress:
        progress(num_documents, num_documents)
    report.num_bytes = store.num_bytes
    return report


def _tokens(engine: Engine, document: str) -> tuple[int, ...]:
    """The tokens of a document, none where it is too long."""
    try:
        return engine.document_tokens(document)
    except GenerationError:
        return ()
