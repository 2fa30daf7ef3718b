"""From files or documents to an index: load, split, embed what is new, write.

The whole job behind `tandem index`, as one function, and its twin for a few files of many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from tandem.config.schema import RetrievalConfig
from tandem.errors import RetrievalError, nearest
from tandem.retrieval import index as kinds
from tandem.retrieval import old_format, roots
from tandem.retrieval.documents import RESERVED, Document, split
from tandem.retrieval.embedding import TextEmbedder
from tandem.retrieval.index import Index, VectorIndex, read_manifest
from tandem.retrieval.loaders import Loaded
from tandem.retrieval.store import (
    PRIVATE_FILE,
    Checksum,
    Journal,
    Manifest,
    Snapshot,
    Writer,
    canonical,
    checksum,
    hash_chunks,
    remove_database,
    text_key,
    vector_files,
    writing,
)

# ---- Writes an index in place of what its folder held ------------------------------------------------------


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


# ---- What a build did, counted from the chunks before and after --------------------------------------------


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


DEFAULTS = RetrievalConfig()
"""The settings, whose lengths of chunks are the default."""

MAX_KEY_BYTES = 64


def build_index(
    source: Path | Sequence[Document] | None,
    directory: Path,
    embedder: TextEmbedder,
    *,
    replace: bool = False,
    factory: str = kinds.AUTO,
    chunk_chars: int = DEFAULTS.chunk_chars,
    overlap: int = DEFAULTS.chunk_overlap,
    id_key: bytes = b"",
    num_threads: int = 1,
    progress: Progress | None = None,
) -> BuildReport:
    """Makes `directory` the index of a file, a folder or documents, and of nothing else.

    An index that is there is brought up to date: what is new is added, what changed is replaced, what is gone
    is deleted, and only texts that it does not know are embedded. It remembers what it was built from: None brings all
    of that up to date, as any path of it does; another source is refused where a document would be lost, unless
    `replace`. id_key: up to 64 secret bytes that make chunk ids say nothing to who does not hold them (`chunk_id`); an
    index that is there keeps its own. progress(done, total) counts the texts to embed. Raises RetrievalError; whatever
    fails, the previous index is kept.
    """
    if len(id_key) > MAX_KEY_BYTES:
        raise RetrievalError(
            f"An id key has at most {MAX_KEY_BYTES} bytes, but this one {len(id_key)}; shorten it."
        )
    names, is_known = _choose_roots(source, directory, replace)
    loaded = roots.load(source) if source is not None and names == [roots.GIVEN] else roots.load_roots(names)
    previous = _try_open(directory)
    key = _choose_key(directory, id_key)
    chunks = split(loaded.documents, chunk_chars, overlap, key)
    problems = list(loaded.problems)
    if previous is not None and previous.manifest.roots == names:
        kept = [chunk for chunk in previous.chunks() if source_of(chunk) in loaded.failed]
        chunks += kept
        problems += _describe_kept(kept)
    if previous is not None and not is_known:
        before = previous.manifest.roots
        roots.check_nothing_is_lost(directory, before, names[0], previous.chunks(), chunks)
    write = partial(write_index, id_key=key, num_threads=num_threads, progress=progress, roots=names)
    return _bring_up_to_date(directory, previous, chunks, embedder, factory, problems, names, write)


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
    sources, and deletes other sources (or folders of them); the rest stays without being read again.

    A path within what the index was built from keeps its place there; another one is remembered as a further root,
    which later builds cover too, until its name is deleted. Documents without source or id take the place of none.
    Raises RetrievalError, also if another process changed the index meanwhile; the previous index is then kept.
    """
    previous = Index.open(directory, embedder.fingerprint)
    held = list(previous.chunks())
    sources = {source_of(chunk) for chunk in held}
    names, name = _place(directory, previous.manifest.roots, add)
    loaded = roots.load(add, name) if add else Loaded([], [], set())
    names, wanted = roots.without(names, delete, sources)
    gone, problems = _match_sources(wanted, sources)
    inside, _ = _match_sources([name] if name else [], sources)
    found = {source_of(document) for document in loaded.documents} - {""}
    replaced = gone | ((inside | found) - loaded.failed)
    key = bytes.fromhex(previous.manifest.id_key)
    chunks = [chunk for chunk in held if source_of(chunk) not in replaced]
    kept = [chunk for chunk in chunks if source_of(chunk) in loaded.failed]
    known = {chunk.id for chunk in chunks}
    added = split(loaded.documents, chunk_chars, overlap, key)
    chunks += [chunk for chunk in added if chunk.id not in known]
    write = partial(
        write_index,
        id_key=key,
        num_threads=num_threads,
        progress=progress,
        replaces=previous.manifest,
        roots=names,
    )
    problems = loaded.problems + _describe_kept(kept) + problems
    return _bring_up_to_date(directory, previous, chunks, embedder, factory, problems, names, write)


def _choose_roots(
    source: Path | Sequence[Document] | None, directory: Path, replace: bool
) -> tuple[list[str], bool]:
    """The roots of a build, and whether they are those that the index remembers, or may be any."""
    before = _roots_of(directory)
    if source is not None:
        root = roots.root_of(source)
        if before and not replace and roots.includes(before, root):
            return before, True
        return [root], replace
    if not before or roots.GIVEN in before:
        what = f"{directory} was built from {roots.GIVEN}" if before else f"{directory} remembers none"
        raise RetrievalError(
            f"An index is brought up to date from what it was built from, but {what}; name a file or folder."
        )
    return before, True


def _place(directory: Path, before: Sequence[str], add: Path | Sequence[Document]) -> tuple[list[str], str]:
    """The roots after an update, and what the sources of the path that is added are called."""
    if not add or not isinstance(add, Path | str) or roots.GIVEN in before:
        return list(before), ""
    if not before:
        raise RetrievalError(
            f"The index {directory} was built by an earlier version of Tandem, which did not note its folder; "
            f"build it from that folder once, then add {add}."
        )
    return roots.place(before, roots.root_of(add))


def _bring_up_to_date(
    directory: Path,
    previous: Index | None,
    chunks: Sequence[Document],
    embedder: TextEmbedder,
    factory: str,
    problems: list[str],
    names: Sequence[str],
    write: Callable[..., int],
) -> BuildReport:
    """Has the index of `chunks` written, by `write_index` with its settings, unless it is there already."""
    if previous is not None and _is_current(previous, chunks, embedder, factory):
        if previous.manifest.roots != list(names):
            write_roots(directory, names)
        tidy(directory)
        return make_report(directory, previous, chunks, problems, 0, is_unchanged=True)
    num_embedded = write(directory, chunks, embedder, factory, previous=previous)
    return make_report(directory, previous, chunks, problems, num_embedded, is_unchanged=False)


def _roots_of(directory: Path) -> list[str]:
    """What the index that is there remembers; nothing where there is none."""
    try:
        return read_manifest(directory).roots
    except RetrievalError:
        return []


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
            hint = f"did you mean {nearest(name, sorted(sources))}?" if sources else "check the name."
            problems.append(f"{name} was not deleted: the index holds nothing of it; {hint}")
    return matches, problems


def _describe_kept(chunks: Sequence[Document]) -> list[str]:
    """A sentence for each file that could not be read now, but earlier."""
    sources = dict.fromkeys(source_of(chunk) for chunk in chunks)
    return [f"{source}: what the index held of it stays, since it was read before." for source in sources]


def _is_current(index: Index, chunks: Sequence[Document], embedder: TextEmbedder, factory: str) -> bool:
    """Whether an index is of exactly these chunks, this embedder and this kind."""
    kind = kinds.resolve(factory, len(chunks), embedder.dimension)
    if (index.manifest.embedder_fingerprint, index.manifest.factory) != (embedder.fingerprint, kind):
        return False
    return index.manifest.chunks_hash == hash_chunks(chunks)
