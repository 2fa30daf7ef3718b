"""From files or documents to an index: load, split, embed what is new, write.

The whole job behind `tandem index`, as one function, and its twin for a few files of many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tandem.config import RetrievalConfig
from tandem.errors import RetrievalError
from tandem.retrieval import kinds
from tandem.retrieval.documents import Document, split
from tandem.retrieval.embedding import TextEmbedder
from tandem.retrieval.index import Index, read_manifest
from tandem.retrieval.loaders import Loaded, load_documents, load_path
from tandem.retrieval.store import Manifest
from tandem.retrieval.tables import hash_chunks
from tandem.retrieval.writer import Progress, tidy, write_index

DEFAULTS = RetrievalConfig()
"""The settings, whose lengths of chunks are the default."""

MAX_KEY_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """What a build did."""

    num_files: int  # files, or other sources, that the index holds something of
    num_chunks: int
    num_added: int  # chunks that are new
    num_replaced: int  # chunks in place of others from the same source
    num_deleted: int  # chunks that are gone
    num_unchanged: int  # chunks that stayed
    num_embedded: int  # texts that had to be embedded
    problems: list[str]  # one sentence for each thing left out
    manifest: Manifest
    is_unchanged: bool  # the index there was already of these chunks and this embedder: nothing was written


def build_index(
    source: Path | Sequence[Document],
    directory: Path,
    embedder: TextEmbedder,
    *,
    factory: str = kinds.AUTO,
    chunk_chars: int = DEFAULTS.chunk_chars,
    overlap: int = DEFAULTS.chunk_overlap,
    id_key: bytes = b"",
    num_threads: int = 1,
    progress: Progress | None = None,
) -> BuildReport:
    """Makes `directory` the index of a file, a folder or documents, and of nothing else.

    An index that is there is brought up to date: what is new is added, what changed is replaced, what is gone
    is deleted, and only texts that it does not know are embedded. id_key: up to 64 secret bytes that make chunk
    ids say nothing to who does not hold them (`chunk_id`); an index that is there keeps its own.
    progress(done, total) counts the texts to embed. Raises RetrievalError; whatever fails, the previous index
    is kept.
    """
    if len(id_key) > MAX_KEY_BYTES:
        raise RetrievalError(
            f"An id key has at most {MAX_KEY_BYTES} bytes, but this one {len(id_key)}; shorten it."
        )
    loaded = _load(source)
    previous = _try_open(directory)
    key = _choose_key(directory, id_key)
    chunks = split(loaded.documents, chunk_chars, overlap, key)
    write = partial(write_index, id_key=key, num_threads=num_threads, progress=progress)
    return _bring_up_to_date(directory, previous, chunks, embedder, factory, loaded.problems, write)


def update_index(
    directory: Path,
    embedder: TextEmbedder,
    *,
    add: Path | Sequence[Document] = (),
    delete: Sequence[str] = (),
    factory: str = kinds.AUTO,
    chunk_chars: int = DEFAULTS.chunk_chars,
    overlap: int = DEFAULTS.chunk_overlap,
    num_threads: int = 1,
    progress: Progress | None = None,
) -> BuildReport:
    """Adds a file, a folder or documents to the index in `directory`, in place of what it holds of the same
    sources, and deletes other sources (or folders of them); the rest stays without being read again. Documents
    without source or id take the place of none. A source is called by its path within `add`, so a file in a folder
    that was indexed as a whole is replaced by giving that folder again.

    Raises RetrievalError, also if another process changed the index meanwhile; the previous index is then kept.
    """
    previous = Index.open(directory, embedder.fingerprint)
    held = list(previous.chunks())
    loaded = _load(add) if add else Loaded([], [])
    gone, problems = _match_sources(delete, {_source(chunk) for chunk in held})
    replaced = gone | ({_source(document) for document in loaded.documents} - {""})
    key = bytes.fromhex(previous.manifest.id_key)
    chunks = [chunk for chunk in held if _source(chunk) not in replaced]
    known = {chunk.id for chunk in chunks}
    added = split(loaded.documents, chunk_chars, overlap, key)
    chunks += [chunk for chunk in added if chunk.id not in known]
    write = partial(
        write_index, id_key=key, num_threads=num_threads, progress=progress, replaces=previous.manifest
    )
    return _bring_up_to_date(
        directory, previous, chunks, embedder, factory, loaded.problems + problems, write
    )


def _bring_up_to_date(
    directory: Path,
    previous: Index | None,
    chunks: Sequence[Document],
    embedder: TextEmbedder,
    factory: str,
    problems: list[str],
    write: Callable[..., int],
) -> BuildReport:
    """Has the index of `chunks` written, by `write_index` with its settings, unless it is there already."""
    if previous is not None and _is_current(previous, chunks, embedder, factory):
        tidy(directory)
        return _report(directory, previous, chunks, problems, 0, is_unchanged=True)
    num_embedded = write(directory, chunks, embedder, factory, previous=previous)
    return _report(directory, previous, chunks, problems, num_embedded, is_unchanged=False)


def _load(source: Path | Sequence[Document]) -> Loaded:
    return load_path(source) if isinstance(source, (Path, str)) else load_documents(source)


def _try_open(directory: Path) -> Index | None:
    """The index that is there, if it is sound, whatever its embedder."""
    try:
        return Index.open(directory)
    except RetrievalError:
        return None


def _choose_key(directory: Path, id_key: bytes) -> bytes:
    """The id key of the index that is there, so that ids stay the same; `id_key` where there is none."""
    try:
        return bytes.fromhex(read_manifest(directory).id_key)
    except RetrievalError:
        return id_key


def _match_sources(names: Sequence[str], sources: set[str]) -> tuple[set[str], list[str]]:
    """The sources that are named, or lie in a folder that is; and a sentence for each name that fits none."""
    matches: set[str] = set()
    problems: list[str] = []
    for name in names:
        fits = {source for source in sources if source == name or source.startswith(f"{name.rstrip('/')}/")}
        matches |= fits
        if not fits:
            problems.append(f"{name} was not deleted: the index holds nothing of it; check the name.")
    return matches, problems


def _is_current(index: Index, chunks: Sequence[Document], embedder: TextEmbedder, factory: str) -> bool:
    """Whether an index is of exactly these chunks, this embedder and this kind."""
    kind = kinds.resolve(factory, len(chunks), embedder.dimension)
    if (index.manifest.embedder_fingerprint, index.manifest.factory) != (embedder.fingerprint, kind):
        return False
    return index.manifest.chunks_hash == hash_chunks(chunks)


def _report(
    directory: Path,
    previous: Index | None,
    chunks: Sequence[Document],
    problems: list[str],
    num_embedded: int,
    *,
    is_unchanged: bool,
) -> BuildReport:
    """Counts the changes: a chunk that came and one that went from the same source make one replacement."""
    before = set() if previous is None else set(previous.ids())
    after = {str(chunk.id) for chunk in chunks}
    come = _count(chunk for chunk in chunks if chunk.id not in before)
    went = Counter[str]()
    if previous is not None:
        went = _count(chunk for chunk in previous.chunks() if chunk.id not in after)
    num_replaced = (come & went).total()
    return BuildReport(
        num_files=len({_source(chunk) for chunk in chunks}),
        num_chunks=len(chunks),
        num_added=come.total() - num_replaced,
        num_replaced=num_replaced,
        num_deleted=went.total() - num_replaced,
        num_unchanged=len(chunks) - come.total(),
        num_embedded=num_embedded,
        problems=problems,
        manifest=read_manifest(directory),
        is_unchanged=is_unchanged,
    )


def _count(chunks: Iterable[Document]) -> Counter[str]:
    """Number of chunks by source."""
    return Counter(_source(chunk) for chunk in chunks)


def _source(chunk: Document) -> str:
    return str(chunk.metadata.get("source", ""))
