"""Writes an index in place of what its folder held, embedding only what is not embedded yet.

    embed what is missing into the journal -> all vectors as a file -> FAISS index -> manifest, in one rename

Killed anywhere, the folder holds the index of before or the new one, and the next build finds in the journal
what was embedded. Knows nothing of files that are indexed or of searches.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from tandem.errors import RetrievalError
from tandem.retrieval import chunks as chunk_files
from tandem.retrieval import embedded, journal, kinds
from tandem.retrieval import manifest as manifests
from tandem.retrieval.documents import Document
from tandem.retrieval.embedded import Progress
from tandem.retrieval.embedding import TextEmbedder
from tandem.retrieval.index import VECTORS, Index
from tandem.retrieval.journal import Journal
from tandem.retrieval.manifest import Manifest, checksum
from tandem.retrieval.storage import has_leftovers, make_private, publish, remove_leftovers, staging
from tandem.retrieval.vectors import VectorIndex


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
) -> int:
    """Makes `directory` the index of these chunks (from `split`), and says how many texts were embedded.

    The same chunks, embedder and kind give the same files, whatever was there before, but for the last bits of
    vectors where these depend on which texts are embedded together. previous: the index that
    is there, if it is open already. replaces: the only index that may be replaced, if it matters.
    progress(done, total) counts the texts to embed. Raises RetrievalError; whatever fails, the previous index
    is kept, and what was embedded is not embedded again.
    """
    if not documents:
        raise RetrievalError(
            f"An index needs at least one chunk, but {directory} would get none; add documents."
        )
    _check_target(directory)
    kind = kinds.resolve(factory, len(documents), embedder.dimension)
    with staging(directory) as folder:
        if replaces is not None and manifests.read(directory) != replaces:
            raise RetrievalError(
                f"An update must start from the index that is there, but {directory} was changed by another "
                "process meanwhile; run the update again."
            )
        chunk_files.write(folder, documents)
        previous = _reusable(directory, embedder, previous)
        with Journal(directory / journal.NAME, embedder.fingerprint, embedder.dimension) as kept:
            path = folder / embedded.NAME
            num_embedded = embedded.write(path, documents, embedder, previous, kept, progress)
            _write_vectors(folder, kind, num_threads)
            publish(directory, folder, _manifest(folder, embedder, len(documents), kind, id_key))
            kept.remove()
    return num_embedded


def tidy(directory: Path) -> None:
    """Removes what a build left that was killed after its last step, unless another build is under way."""
    path = directory / journal.NAME
    make_private(directory)
    if path.exists() or has_leftovers(directory):
        with suppress(RetrievalError), staging(directory):
            remove_leftovers(directory)
            path.unlink(missing_ok=True)


def _write_vectors(folder: Path, factory: str, num_threads: int) -> None:
    """The FAISS index of the vectors in `folder`; they stay as a file where the kind does not keep them."""
    path = folder / embedded.NAME
    index = VectorIndex.build(np.load(path, mmap_mode="r"), factory, num_threads)
    index.write(folder / VECTORS)
    if index.is_exact:
        path.unlink()


def _reusable(directory: Path, embedder: TextEmbedder, opened: Index | None) -> Index | None:
    """The index that is there, if it is sound, of this embedder, and gives its vectors back exactly."""
    try:
        if opened is None or manifests.read(directory) != opened.manifest:
            opened = Index.open(directory)
    except RetrievalError:
        return None
    is_alike = opened.manifest.embedder_fingerprint == embedder.fingerprint
    return opened if is_alike and opened.is_exact else None


def _manifest(folder: Path, embedder: TextEmbedder, count: int, factory: str, id_key: bytes) -> Manifest:
    return Manifest(
        embedder=embedder.name,
        embedder_fingerprint=embedder.fingerprint,
        dimension=embedder.dimension,
        count=count,
        factory=factory,
        id_key=id_key.hex(),
        folder=folder.name,
        files={path.name: checksum(path) for path in sorted(folder.iterdir())},
    )


def _check_target(directory: Path) -> None:
    """Refuses to overwrite what is not an index of Tandem's."""
    is_file = directory.exists() and not directory.is_dir()
    is_foreign = (directory / manifests.NAME).exists() and not manifests.is_index(directory)
    if is_file or (is_foreign and not any(directory.glob(f"*/{VECTORS}"))):
        what = "is a file" if is_file else f"holds a {manifests.NAME} that is not Tandem's"
        raise RetrievalError(
            f"An index needs a folder of its own, but {directory} {what}; choose another folder."
        )
