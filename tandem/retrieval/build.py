"""From a folder of files to an index: load, split, embed, write.

The whole job behind `tandem index`, as one function. Knows nothing of terminals: progress goes to a callable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tandem.errors import RetrievalError
from tandem.retrieval import chunks as chunk_files
from tandem.retrieval import manifest as manifests
from tandem.retrieval.chunking import CHUNK_CHARS, OVERLAP_CHARS, split
from tandem.retrieval.documents import Document
from tandem.retrieval.embedding import TextEmbedder
from tandem.retrieval.index import Index, Progress
from tandem.retrieval.loaders import load_path
from tandem.retrieval.manifest import Manifest

MAX_KEY_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """What a build did."""

    num_files: int  # files that gave at least one document
    num_chunks: int
    problems: list[str]  # one sentence for each thing left out
    manifest: Manifest
    is_unchanged: bool  # the index there was already of these chunks and this embedder: nothing was embedded


def build_index(
    source: Path,
    directory: Path,
    embedder: TextEmbedder,
    *,
    factory: str = "Flat",
    chunk_chars: int = CHUNK_CHARS,
    overlap: int = OVERLAP_CHARS,
    id_key: bytes = b"",
    num_threads: int = 1,
    progress: Progress | None = None,
) -> BuildReport:
    """Builds the index of a file or folder in `directory`, in place of the one there, if anything changed.

    id_key: up to 64 secret bytes that make chunk ids say nothing to who does not hold them (`chunk_id`); an
    index that is there keeps its own. progress(done, total) counts chunks. Raises RetrievalError; whatever
    fails, the previous index is kept.
    """
    if len(id_key) > MAX_KEY_BYTES:
        raise RetrievalError(
            f"An id key has at most {MAX_KEY_BYTES} bytes, but this one {len(id_key)}; shorten it."
        )
    loaded = load_path(source)
    key = _kept_key(directory, id_key)
    chunks = split(loaded.documents, chunk_chars, overlap, key)
    current = _current(directory, chunks, embedder, factory)
    index = current or Index.build(
        directory, chunks, embedder, factory, id_key=key, num_threads=num_threads, progress=progress
    )
    return BuildReport(
        num_files=len({document.metadata["source"] for document in loaded.documents}),
        num_chunks=len(chunks),
        problems=loaded.problems,
        manifest=index.manifest,
        is_unchanged=current is not None,
    )


def _kept_key(directory: Path, id_key: bytes) -> bytes:
    """The id key of the index that is there, so that ids stay the same; `id_key` where there is none."""
    try:
        return bytes.fromhex(manifests.read(directory).id_key)
    except RetrievalError:
        return id_key


def _current(
    directory: Path, chunks: Sequence[Document], embedder: TextEmbedder, factory: str
) -> Index | None:
    """The index that is there, if it is sound and of exactly these chunks, this embedder and this kind."""
    try:
        index = Index.open(directory, embedder.fingerprint)
    except RetrievalError:
        return None
    digest = sha256()
    for chunk in chunks:
        digest.update(chunk_files.line(chunk))
    is_same = index.manifest.files[chunk_files.TEXTS].sha256 == digest.hexdigest()
    return index if is_same and index.manifest.factory == factory else None
