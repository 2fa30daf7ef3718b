"""From files or documents to an index: load, split, embed what is new, write.

The whole job behind `tandem index`, as one function, and its twin for a few files of many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tandem.config.schema import RetrievalConfig
from tandem.errors import RetrievalError, nearest
from tandem.retrieval import kinds, roots
from tandem.retrieval.documents import Document, split
from tandem.retrieval.embedding import TextEmbedder
from tandem.retrieval.index import Index, read_manifest
from tandem.retrieval.loaders import Loaded
from tandem.retrieval.report import BuildReport, make_report, source_of
from tandem.retrieval.tables import hash_chunks
from tandem.retrieval.writer import Progress, tidy, write_index, write_roots

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
