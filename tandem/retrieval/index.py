"""An index on disk: vectors, chunks and the manifest that binds them.

Knows rows, ids, vectors and chunks; asks an embedder only while building. Knows nothing of queries as text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tandem.errors import RetrievalError
from tandem.retrieval import chunks as chunk_files
from tandem.retrieval import manifest as manifests
from tandem.retrieval.chunks import ChunkStore
from tandem.retrieval.documents import Document
from tandem.retrieval.embedding import TextEmbedder
from tandem.retrieval.manifest import Manifest, checksum, damaged
from tandem.retrieval.storage import publish, staging
from tandem.retrieval.vectors import VectorIndex

VECTORS = "vectors.faiss"
EMBED_AT_ONCE = 256
"""Chunks handed to the embedder between two calls of `progress`."""

_ATTEMPTS = 3

Progress = Callable[[int, int], None]


class Index:
    """An index, open for reading; stays whole when it is rebuilt on disk meanwhile."""

    def __init__(self, manifest: Manifest, vectors: VectorIndex, chunks: ChunkStore) -> None:
        """Joins opened files that fit; `open` and `build` are the usual ways."""
        self.manifest = manifest
        self._vectors = vectors
        self._chunks = chunks

    @classmethod
    def build(
        cls,
        directory: Path,
        documents: Sequence[Document],
        embedder: TextEmbedder,
        factory: str = "Flat",
        *,
        id_key: bytes = b"",
        num_threads: int = 1,
        progress: Progress | None = None,
    ) -> Index:
        """Embeds chunks (from `split`), writes the index in place of what `directory` held, and opens it.

        progress(done, total) counts chunks. Raises RetrievalError; whatever fails, the previous index is
        kept.
        """
        if not documents:
            raise RetrievalError(
                f"An index needs at least one chunk, but {directory} would get none; add documents."
            )
        _check_target(directory)
        with staging(directory) as folder:
            chunk_files.write(folder, documents)
            embedded = _embedded(documents, embedder, progress)
            VectorIndex.build(embedded, factory, num_threads).write(folder / VECTORS)
            publish(directory, folder, _manifest(folder, embedder, len(documents), factory, id_key))
        return cls.open(directory, embedder.fingerprint, num_threads=num_threads)

    @classmethod
    def open(cls, directory: Path, embedder_fingerprint: str | None = None, *, num_threads: int = 1) -> Index:
        """Opens an index after checking its manifest, the checksum of every file, and the embedder if one is
        given.

        Raises RetrievalError, one sentence with the remedy, if anything does not fit.
        """
        for _ in range(_ATTEMPTS):
            manifest = manifests.read(directory)
            _check_embedder(directory, manifest, embedder_fingerprint)
            try:
                return cls._opened(directory, manifest, num_threads)
            except FileNotFoundError as error:
                missing = Path(str(error.filename)).name
                if manifests.read(directory) == manifest:  # else it was just rebuilt: read the new one
                    raise damaged(directory, f"{missing} is missing") from None
        raise RetrievalError(f"The index {directory} is being rebuilt again and again; wait, then open it.")

    @classmethod
    def _opened(cls, directory: Path, manifest: Manifest, num_threads: int) -> Index:
        manifests.verify(directory, manifest)
        folder = directory / manifest.folder
        try:
            vectors, chunks = VectorIndex.read(folder / VECTORS, num_threads), ChunkStore(folder)
        except FileNotFoundError:
            raise
        except (RuntimeError, OSError, ValueError) as error:
            raise damaged(directory, f"a file cannot be read ({str(error).splitlines()[0][:100]})") from None
        if vectors.dimension != manifest.dimension:
            raise damaged(
                directory,
                f"its vectors have dimension {vectors.dimension}, its manifest says {manifest.dimension}",
            )
        if not len(vectors) == len(chunks) == manifest.count:
            counts = f"{len(vectors)} vectors, {len(chunks)} chunks, {manifest.count} in the manifest"
            raise damaged(directory, f"its counts differ ({counts})")
        return cls(manifest, vectors, chunks)

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return self.manifest.dimension

    def __len__(self) -> int:
        """Number of chunks."""
        return self.manifest.count

    def search(self, vector: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Rows and FAISS scores [<= k] nearest to a unit vector [d], best first. RetrievalError if k < 1."""
        if k < 1:
            raise RetrievalError(f"A search must ask for at least 1 document, but k is {k}; raise it.")
        if vector.shape != (self.dimension,):
            raise RetrievalError(
                f"The index holds vectors of dimension {self.dimension}, but the query's has shape "
                f"{vector.shape}; "
                "use the embedder that built it."
            )
        return self._vectors.search(vector, k)

    def vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The stored vectors [len(rows), d]."""
        return self._vectors.vectors(rows)

    def document(self, row: int) -> Document:
        """The chunk of a row, with its id and metadata."""
        return self._chunks.document(row)

    def rows(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """The row of each id; RetrievalError if one is unknown."""
        return self._chunks.rows(ids)


def _embedded(
    documents: Sequence[Document], embedder: TextEmbedder, progress: Progress | None
) -> NDArray[np.float32]:
    """Unit vectors [len(documents), d], a few hundred at a time."""
    vectors = np.empty((len(documents), embedder.dimension), np.float32)
    for start in range(0, len(documents), EMBED_AT_ONCE):
        if progress:
            progress(start, len(documents))
        texts = [document.page_content for document in documents[start : start + EMBED_AT_ONCE]]
        vectors[start : start + len(texts)] = embedder.embed(texts)
    if progress:
        progress(len(documents), len(documents))
    return vectors


def _manifest(folder: Path, embedder: TextEmbedder, count: int, factory: str, id_key: bytes) -> Manifest:
    return Manifest(
        embedder=embedder.name,
        embedder_fingerprint=embedder.fingerprint,
        dimension=embedder.dimension,
        count=count,
        factory=factory,
        id_key=id_key.hex(),
        folder=folder.name,
        files={name: checksum(folder / name) for name in (VECTORS, chunk_files.TEXTS, chunk_files.ROWS)},
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


def _check_embedder(directory: Path, manifest: Manifest, fingerprint: str | None) -> None:
    if fingerprint is not None and fingerprint != manifest.embedder_fingerprint:
        raise RetrievalError(
            f"An index must be searched with the embedder that built it, but {directory} was built with "
            f"{manifest.embedder} ({manifest.embedder_fingerprint[:8]}) and the embedder here is "
            f"{fingerprint[:8]}; "
            "use that embedder, or build the index again with `tandem index`."
        )
