"""What a build did, counted from the chunks before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tandem.retrieval.documents import RESERVED, Document
from tandem.retrieval.index import Index, read_manifest
from tandem.retrieval.manifest import Manifest
from tandem.retrieval.tables import canonical


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """What a build did."""

    num_files: int  # files, or other sources, that the index holds something of
    num_chunks: int
    num_added: int  # chunks that are new
    num_replaced: int  # chunks in place of others from the same source
    num_deleted: int  # chunks that are gone
    num_changed: int  # chunks whose text stayed and whose metadata are others
    num_unchanged: int  # chunks that stayed
    num_embedded: int  # texts that had to be embedded
    problems: list[str]  # one sentence for each thing left out
    manifest: Manifest
    is_unchanged: bool  # the index there was already of these chunks and this embedder: nothing was written


def make_report(
    directory: Path,
    previous: Index | None,
    chunks: Sequence[Document],
    problems: list[str],
    num_embedded: int,
    *,
    is_unchanged: bool,
) -> BuildReport:
    """Counts the changes: a chunk that came and one that went from the same source make one replacement."""
    chunks_before = () if previous is None else previous.chunks()
    before = {str(chunk.id): (source_of(chunk), _fields(chunk)) for chunk in chunks_before}
    after = {str(chunk.id) for chunk in chunks}
    come = _count(chunk for chunk in chunks if chunk.id not in before)
    went = Counter(source for name, (source, _) in before.items() if name not in after)
    num_stayed = len(chunks) - come.total()
    num_changed = sum(_fields(chunk) != before[str(chunk.id)][1] for chunk in chunks if chunk.id in before)
    num_replaced = (come & went).total()
    return BuildReport(
        num_files=len({source_of(chunk) for chunk in chunks}),
        num_chunks=len(chunks),
        num_added=come.total() - num_replaced,
        num_replaced=num_replaced,
        num_deleted=went.total() - num_replaced,
        num_changed=num_changed,
        num_unchanged=num_stayed - num_changed,
        num_embedded=num_embedded,
        problems=problems,
        manifest=read_manifest(directory),
        is_unchanged=is_unchanged,
    )


def _count(chunks: Iterable[Document]) -> Counter[str]:
    """Number of chunks by source."""
    return Counter(source_of(chunk) for chunk in chunks)


def source_of(chunk: Document) -> str:
    """The source of a chunk; "" where it has none."""
    return str(chunk.metadata.get("source", ""))


def _fields(chunk: Document) -> str:
    """A chunk's metadata as they are stored, without its place, which moves with what stands before it."""
    return canonical({key: value for key, value in chunk.metadata.items() if key not in RESERVED})
