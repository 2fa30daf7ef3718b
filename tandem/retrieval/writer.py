"""Writes an index in place of what its folder held, embedding only what is not embedded yet.

    embed what is missing into the journal -> all vectors as a file -> FAISS index -> one transaction

Killed anywhere, the folder holds the index of before or the new one, and the next build finds in the journal what was
embedded. A vector is a function of text and embedder, so a text that the previous index or the journal knows is never
embedded again, whichever file it now comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from tandem.errors import RetrievalError
from tandem.retrieval import kinds, old_format
from tandem.retrieval.database import PRIVATE_FILE, Journal, remove_database, text_key
from tandem.retrieval.documents import Document
from tandem.retrieval.embedding import TextEmbedder
from tandem.retrieval.index import Index
from tandem.retrieval.manifest import Checksum, Manifest, checksum
from tandem.retrieval.store import Snapshot, Writer, vector_files, writing
from tandem.retrieval.vectors import VectorIndex

JOURNAL = "embedded.sqlite"
EMBED_AT_ONCE = 256
"""Chunks handed to the embedder, and kept on disk, between two calls of `progress`."""

_WRITE_AT_ONCE = 4096

Progress = Callable[[int, int], None]


def write_index(
    directory: Path,
    documents: Sequence[Document],
    embedder: TextEmbedder,
    factory: str = kinds.AUTO,
    *,
    id_key: bytes = b"",
    num_threads: int = 1,
    progress: Progress | None = None,
    previous: Index | None = None,
    replaces: Manifest | None = None,
    roots: Sequence[str] = (),
) -> int:
    """Makes `directory` the index of these chunks (from `split`), and returns how many texts were embedded.

    The same chunks, embedder and kind give the same index, whatever was there before, except for the last bits of
    vectors where these depend on which texts are embedded together. previous: the index that is there, if it is open
    already. replaces: the only index that may be replaced, if it matters. roots: what the chunks come from.
    progress(done, total) counts the texts to embed; what it has counted is on the disk. Raises RetrievalError; whatever
    fails, the previous index is kept, and what was embedded is not embedded again.
    """
    if not documents:
        raise RetrievalError(
            f"An index needs at least one chunk, but {directory} would get none; add documents."
        )
    old_format.check_folder(directory)
    kind = kinds.resolve(factory, len(documents), embedder.dimension)
    with writing(directory) as writer:
        if replaces is not None and writer.manifest != replaces:
            raise RetrievalError(
                f"An update must start from the index that is there, but {directory} was changed by another "
                "process meanwhile; run the update again."
            )
        writer.replace_chunks(documents)
        vectors = writer.make_file("npy")
        previous = _reusable(writer, embedder, previous)
        with Journal(directory / JOURNAL, embedder.fingerprint, embedder.dimension) as journal:
            journal.add(old_format.read_journal(directory, embedder.fingerprint, embedder.dimension))
            num_embedded = _write_vectors(vectors, documents, embedder, previous, journal, progress)
        files = _write_index_files(writer, vectors, kind, num_threads)
        writer.commit(
            Manifest(
                embedder=embedder.name,
                embedder_fingerprint=embedder.fingerprint,
                dimension=embedder.dimension,
                count=len(documents),
                factory=kind,
                id_key=id_key.hex(),
                files=files,
                roots=list(roots),
            )
        )
    tidy(directory)
    return num_embedded


def write_roots(directory: Path, roots: Sequence[str]) -> None:
    """Notes what the chunks of an index come from, unless it was changed meanwhile or cannot be written."""
    with suppress(RetrievalError), writing(directory) as writer:
        if writer.manifest is not None:
            writer.write_manifest(replace(writer.manifest, roots=list(roots)))


def tidy(directory: Path) -> None:
    """Removes what builds left over, unless another one is under way: those that ended, were killed or superseded."""
    _make_private(directory)
    if _leftovers(directory) or old_format.leftovers(directory):
        with suppress(RetrievalError), writing(directory):
            for path in _leftovers(directory):
                path.unlink(missing_ok=True)
            remove_database(directory / JOURNAL)
            old_format.remove(old_format.leftovers(directory))


def _leftovers(directory: Path) -> list[Path]:
    """Files of other indexes than the current one, and the journal."""
    with Snapshot(directory) as snapshot:
        current = snapshot.manifest.files
    others = [path for path in vector_files(directory) if path.name not in current]
    return others + list(directory.glob(f"{JOURNAL}*"))


def _make_private(directory: Path) -> None:
    """Lets only their owner read the files of an index whose rights were widened."""
    for path in (*vector_files(directory), *directory.glob("*.sqlite*")):
        with suppress(OSError):  # another user's, who alone may change them
            path.chmod(PRIVATE_FILE)


def _reusable(writer: Writer, embedder: TextEmbedder, opened: Index | None) -> Index | None:
    """The index that is there, if it is sound, of this embedder, and gives its vectors back exactly."""
    try:
        if opened is None or writer.manifest != opened.manifest:
            opened = Index.open(writer.directory)
    except RetrievalError:
        return None
    is_alike = opened.manifest.embedder_fingerprint == embedder.fingerprint
    return opened if is_alike and opened.is_exact else None


def _write_vectors(
    path: Path,
    documents: Sequence[Document],
    embedder: TextEmbedder,
    previous: Index | None,
    journal: Journal,
    progress: Progress | None,
) -> int:
    """Writes the unit vectors [len(documents), d] in NumPy's format; returns how many texts were embedded for it."""
    keys = [text_key(document.page_content) for document in documents]
    texts = {key: document.page_content for key, document in zip(keys, documents, strict=True)}
    rows = _rows(previous, texts)
    missing = [(key, text) for key, text in texts.items() if key not in rows and key not in journal]
    _embed(missing, embedder, journal, progress)
    with path.open("wb") as file:
        _write_header(file, len(keys), embedder.dimension)
        for start in range(0, len(keys), _WRITE_AT_ONCE):
            block = _block(keys[start : start + _WRITE_AT_ONCE], embedder.dimension, rows, previous, journal)
            file.write(block.tobytes())
    return len(missing)


def _rows(previous: Index | None, wanted: dict[bytes, str]) -> dict[bytes, int]:
    """Row of the previous index for each wanted text that it holds."""
    if previous is None:
        return {}
    keys = ((text_key(chunk.page_content), row) for row, chunk in enumerate(previous.chunks()))
    return {key: row for key, row in keys if key in wanted}


def _embed(
    missing: Sequence[tuple[bytes, str]],
    embedder: TextEmbedder,
    journal: Journal,
    progress: Progress | None,
) -> None:
    """Embeds texts into the journal, a few hundred at a time."""
    for start in range(0, len(missing), EMBED_AT_ONCE):
        if progress:
            progress(start, len(missing))
        some = missing[start : start + EMBED_AT_ONCE]
        journal.append([key for key, _ in some], embedder.embed([text for _, text in some]))
    if progress and missing:
        progress(len(missing), len(missing))


def _block(
    keys: Sequence[bytes],
    dimension: int,
    rows: dict[bytes, int],
    previous: Index | None,
    journal: Journal,
) -> NDArray[np.float32]:
    """The vectors [len(keys), d] of a few texts."""
    block = np.empty((len(keys), dimension), "<f4")
    old = [place for place, key in enumerate(keys) if key in rows]
    new = [place for place, key in enumerate(keys) if key not in rows]
    if old and previous is not None:
        block[old] = previous.vectors(np.array([rows[keys[place]] for place in old], np.int64))
    if new:
        block[new] = journal.vectors([keys[place] for place in new])
    return block


def _write_header(file: IO[bytes], count: int, dimension: int) -> None:
    header = {"descr": "<f4", "fortran_order": False, "shape": (count, dimension)}
    np.lib.format.write_array_header_1_0(file, header)


def _write_index_files(writer: Writer, vectors: Path, factory: str, num_threads: int) -> dict[str, Checksum]:
    """Writes the FAISS index of the vectors, which stay as a file where the kind does not keep them."""
    index = VectorIndex.build(np.load(vectors, mmap_mode="r"), factory, num_threads)
    path = writer.make_file("faiss")
    index.write(path)
    if index.is_exact:
        vectors.unlink()
        return {path.name: checksum(path)}
    return {path.name: checksum(path), vectors.name: checksum(vectors)}
