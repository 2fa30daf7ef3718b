"""Building indexes, from files or documents: load, split, embed what is new, write.

The whole job behind `tandem index`, as one function, and its twin for a few files of many. An index remembers what it
was built from, its roots, so that no build empties it by mistake. The first root is the folder or file of the first
build; its sources are paths within it. Each further one (`tandem index PARTY --add PATH`) has a name of its own, which
stands before its paths. Documents that Python hands over have no path: their root is `GIVEN`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.config.schema import RetrievalConfig
from tandem.errors import RetrievalError, nearest
from tandem.retrieval import index as kinds
from tandem.retrieval.documents import (
    RESERVED,
    Cutting,
    Document,
    Passage,
    cut,
    number_chunks,
    readable_name,
)
from tandem.retrieval.embedding import TextEmbedder
from tandem.retrieval.index import Index, VectorIndex
from tandem.retrieval.loaders import Loaded, load_documents, load_passages
from tandem.retrieval.store import (
    PRIVATE_FILE,
    Checksum,
    IndexBusyError,
    Journal,
    Manifest,
    Writer,
    canonical,
    checksum,
    hash_chunks,
    read_manifest,
    remove_database,
    text_key,
    vector_files,
    writing,
)

DEFAULTS = RetrievalConfig()
"""The settings, whose lengths of chunks are the default."""
GIVEN = "documents given in Python"
"""The root of documents that are not files."""
JOURNAL = "embedded.sqlite"
EMBED_AT_ONCE = 256
"""Chunks handed to the embedder, and kept on disk, between two calls of `progress`."""
MAX_KEY_BYTES = 64
_WRITE_AT_ONCE = 4096

Progress = Callable[[int, int], None]
Source = Path | Sequence[Document]
"""A file, a folder, or documents from elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """The outcome of a build."""

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


def build_index(
    source: Source | None,
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
    known: Manifest | None = None
    previous: Index | None = None
    with suppress(RetrievalError):  # none, or a damaged one, which is replaced
        known = read_manifest(directory)
        previous = Index.open(directory)
    cutting = Cutting(chunk_chars, overlap)
    before = known.roots if known else []
    roots, is_known = _choose_roots(source, directory, before, replace)
    is_given = source is not None and roots == [GIVEN]
    loaded = _load(source, cutting) if source is not None and is_given else _load_roots(roots, cutting)
    key = bytes.fromhex(known.id_key) if known else id_key
    if previous is not None and not is_known:
        _check_nothing_is_lost(previous, roots[0], number_chunks(loaded.documents, cutting, key))
    chunks = number_chunks(loaded.documents, cutting, key, embedder.window)
    problems = list(loaded.problems)
    if previous is not None and before == roots:
        kept = [chunk for chunk in previous.chunks() if _is_of(source_of(chunk), loaded.failed)]
        chunks += kept
        problems += describe_kept(dict.fromkeys(map(source_of, kept)))
    write = partial(write_index, id_key=key, num_threads=num_threads, progress=progress, roots=roots)
    return _bring_up_to_date(directory, previous, chunks, embedder, factory, problems, roots, write)


def update_index(
    directory: Path,
    embedder: TextEmbedder,
    *,
    add: Source = (),
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
    sources = set(previous.sources())
    roots, name = list(previous.manifest.roots), ""
    if add and isinstance(add, Path | str) and GIVEN not in roots:
        roots, name = place_root(roots, root_of(add))
    cutting = Cutting(chunk_chars, overlap)
    loaded = _load(add, cutting, name) if add else Loaded[Passage]([], [], set())
    roots, wanted = _without(roots, delete, sources)
    gone, problems = _match_sources(wanted, sources)
    inside, _ = _match_sources([name] if name else [], sources)
    found = {source_of(passage) for passage in loaded.documents} - {""}
    failed = {source for source in sources if _is_of(source, loaded.failed)}
    replaced = gone | ((inside | found) - failed)
    problems = loaded.problems + describe_kept(sorted(failed - replaced)) + problems
    return replace_sources(
        previous,
        embedder,
        replaced,
        loaded.documents,
        cutting,
        problems=problems,
        roots=roots,
        factory=factory,
        num_threads=num_threads,
        progress=progress,
    )


def replace_sources(
    previous: Index,
    embedder: TextEmbedder,
    replaced: Collection[str],
    passages: Iterable[Passage],
    cutting: Cutting,
    *,
    problems: list[str],
    roots: list[str],
    factory: str = kinds.AUTO,
    num_threads: int = 1,
    progress: Progress | None = None,
) -> BuildReport:
    """Changes an open index, of this embedder: passages come in place of all that it holds of some sources.

    Where its kind allows it, only rows that change are written: those of chunks that went are given to new ones, or to
    the last. Raises as `update_index`.
    """
    directory, key = previous.directory, bytes.fromhex(previous.manifest.id_key)
    held = previous.sources()
    rows = np.sort(
        np.concatenate([np.zeros(0, np.int64), *(held[name] for name in replaced if name in held)])
    )
    old = dict(zip(rows.tolist(), previous.documents(rows), strict=True))
    before = {str(chunk.id) for chunk in old.values()}
    new = {str(chunk.id): chunk for chunk in number_chunks(passages, cutting, key, embedder.window)}
    for name in (
        previous.known(new) - before
    ):  # of documents without source or id, which take the place of none
        del new[name]
    gone = {row for row, chunk in old.items() if chunk.id not in new}
    placed = {
        row: new[str(chunk.id)]
        for row, chunk in old.items()
        if row not in gone and new[str(chunk.id)] != chunk
    }
    come = [chunk for name, chunk in new.items() if name not in before]
    count = len(previous) - len(gone) + len(come)
    kind, flaws = _possible_kind(factory, count, embedder.dimension)
    is_unchanged = not (gone or placed or come)
    is_editable = previous.vector_index.is_editable and previous.manifest.factory == kind
    if not (count and (is_editable or is_unchanged)):
        kept = enumerate(previous.chunks())
        chunks = [placed.get(row, chunk) for row, chunk in kept if row not in gone] + come
        write = partial(
            write_index,
            id_key=key,
            num_threads=num_threads,
            progress=progress,
            replaces=previous.manifest,
            roots=roots,
        )
        return _bring_up_to_date(directory, previous, chunks, embedder, factory, problems, roots, write)
    num_embedded = 0
    if not is_unchanged:
        placed = _fill(previous, gone, placed, come)
        num_embedded = _edit_index(previous, count, gone, placed, embedder, roots, num_threads, progress)
    else:
        if previous.manifest.roots != roots:
            _write_roots(directory, roots)
        tidy(directory)
    others = (
        len(held.keys() - set(replaced) - {source_of(chunk) for chunk in new.values()}),
        count - len(new),
    )
    return _make_report(
        directory,
        old.values(),
        new.values(),
        problems + flaws,
        num_embedded,
        is_unchanged=is_unchanged,
        others=others,
    )


def source_of(chunk: Document | Passage) -> str:
    """Its source; "" where it has none."""
    return str(chunk.metadata.get("source", ""))


def _bring_up_to_date(
    directory: Path,
    previous: Index | None,
    chunks: Sequence[Document],
    embedder: TextEmbedder,
    factory: str,
    problems: list[str],
    roots: list[str],
    write: Callable[..., int],
) -> BuildReport:
    """Has the index of `chunks` written, by `write_index` with its settings, unless it is there already.

    One that is there continues as "Flat" where its kind could not be trained any more: a deletion always goes through.
    """
    kind, flaws = kinds.resolve(factory, len(chunks), embedder.dimension), list[str]()
    if previous is not None and chunks:
        kind, flaws = _possible_kind(factory, len(chunks), embedder.dimension)
    problems = problems + flaws
    wanted = (embedder.fingerprint, kind)
    if (
        previous is not None
        and (previous.manifest.embedder_fingerprint, previous.manifest.factory) == wanted
        and previous.manifest.chunks_hash == hash_chunks(chunks)
    ):
        if previous.manifest.roots != roots:
            _write_roots(directory, roots)
        tidy(directory)
        return _make_report(directory, chunks, chunks, problems, 0, is_unchanged=True)
    num_embedded = write(directory, chunks, embedder, kind, previous=previous)
    before = () if previous is None else previous.chunks()
    return _make_report(directory, before, chunks, problems, num_embedded, is_unchanged=False)


def _possible_kind(factory: str, count: int, dimension: int) -> tuple[str, list[str]]:
    """The kind that an index goes on as: "Flat", with a sentence, where its own cannot be trained any more."""
    kind = kinds.resolve(factory, count, dimension)
    if not count or kinds.can_train(kind, count, dimension):
        return kind, []
    few = "1 chunk" if count == 1 else f"{count} chunks"
    flaw = (
        f'The index kind "{kind}" cannot be trained with {few}, so the index is "Flat" until there are more.'
    )
    return "Flat", [flaw]


def _make_report(
    directory: Path,
    chunks_before: Iterable[Document],
    chunks: Collection[Document],
    problems: list[str],
    num_embedded: int,
    *,
    is_unchanged: bool,
    others: tuple[int, int] = (0, 0),
) -> BuildReport:
    """Counts the changes: a chunk that came and one that went from the same source make one replacement.

    others: sources and chunks of which is known that they stayed.
    """
    before = {str(chunk.id): (source_of(chunk), _fields(chunk)) for chunk in chunks_before}
    after = {str(chunk.id) for chunk in chunks}
    come = Counter(source_of(chunk) for chunk in chunks if chunk.id not in before)
    went = Counter(source for name, (source, _) in before.items() if name not in after)
    num_stayed = len(chunks) - come.total()
    num_changed = sum(_fields(chunk) != before[str(chunk.id)][1] for chunk in chunks if chunk.id in before)
    num_replaced = (come & went).total()
    return BuildReport(
        num_files=others[0] + len({source_of(chunk) for chunk in chunks}),
        num_chunks=others[1] + len(chunks),
        num_added=come.total() - num_replaced,
        num_replaced=num_replaced,
        num_deleted=went.total() - num_replaced,
        num_changed=num_changed,
        num_unchanged=others[1] + num_stayed - num_changed,
        num_embedded=num_embedded,
        problems=problems,
        manifest=read_manifest(directory),
        is_unchanged=is_unchanged,
    )


def _fields(chunk: Document) -> str:
    """A chunk's metadata as they are stored, without its place, which moves with what stands before it."""
    return canonical({key: value for key, value in chunk.metadata.items() if key not in RESERVED})


def _is_of(source: str, files: Collection[str]) -> bool:
    """Whether a source is one of these files, or lies within one."""
    return any(source[:end] in files for end, sign in enumerate(f"{source}/") if sign == "/")


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


def describe_kept(sources: Iterable[str]) -> list[str]:
    """A sentence for each file that could not be read now, but earlier."""
    return [f"{source}: what the index held of it stays, since it was read before." for source in sources]


# ---- roots: what an index was built from ---------------------------------------------------------------------


def root_of(source: Source) -> str:
    """The root that an index remembers of a source: its absolute path."""
    return os.path.abspath(source) if isinstance(source, Path | str) else GIVEN


def place_root(roots: Sequence[str], path: str) -> tuple[list[str], str]:
    """The roots of an index that `path` is added to, and what its sources are called.

    Within a root the path keeps its place there; elsewhere it is a further root. RetrievalError where it holds one.
    """
    for root, name in zip(roots, names_of(roots), strict=True):
        if (inside := _name_inside(root, name, path)) is not None:
            return list(roots), inside
        if _name_inside(path, "", root) is not None:
            raise RetrievalError(
                f"A path must not hold what the index was built from already, but {path} holds {root}; "
                "give one that does not, or build the index from it with --replace."
            )
    further = [*roots, path]
    return further, names_of(further)[-1]


def _choose_roots(
    source: Source | None, directory: Path, before: list[str], replace: bool
) -> tuple[list[str], bool]:
    """The roots of a build, and whether they are those that the index remembers, or may be any."""
    if source is not None:
        root = root_of(source)
        if before and not replace and any(_is_same(root, known) for known in before):
            return before, True
        return [root], replace
    if not before or GIVEN in before:
        what = f"{directory} was built from {GIVEN}" if before else f"{directory} remembers none"
        raise RetrievalError(
            f"An index is brought up to date from what it was built from, but {what}; name a file or folder."
        )
    return before, True


def _load(source: Source, cutting: Cutting, name: str = "") -> Loaded[Passage]:
    if isinstance(source, Path | str):
        return load_passages(source, cutting, name)
    documents, problems, failed = load_documents(source)
    return Loaded(list(cut(documents, cutting)), problems, failed)


def _load_roots(roots: Sequence[str], cutting: Cutting) -> Loaded[Passage]:
    """All passages of some roots. RetrievalError if one is missing or holds nothing."""
    everything: Loaded[Passage] = Loaded([], [], set())
    for root, name in zip(roots, names_of(roots), strict=True):
        if not os.path.exists(root) and len(roots) > 1:
            raise RetrievalError(
                f"The index was built from {' and '.join(roots)}, but {root} does not exist any more; bring it back, "
                "remove its documents with --delete, or build it from another folder with --replace."
            )
        may_fail = bool(everything.documents) or root != roots[-1]
        loaded = load_passages(root, cutting, name, may_fail=may_fail)
        everything.documents.extend(loaded.documents)
        everything.problems.extend(loaded.problems)
        everything.failed.update(loaded.failed)
    return everything


def names_of(roots: Sequence[str]) -> list[str]:
    """What stands before the paths of each root: nothing for the first, for the others a name of their own, the last
    part of their path, with a number where that is taken.
    """
    names: list[str] = []
    for root in roots:
        stem, ending = os.path.splitext(os.path.basename(root))
        number, name, first = 1, f"{stem}{ending}", roots[0]
        while name in names or name == os.path.basename(first) or os.path.exists(os.path.join(first, name)):
            number += 1
            name = f"{stem}-{number}{ending}"
        names.append(readable_name(name) if names else "")
    return names


def _name_inside(root: str, name: str, path: str) -> str | None:
    """What a path within a root of that name is called; None for one elsewhere."""
    relative = os.path.relpath(path, root)
    if relative.split(os.sep, 1)[0] == os.pardir:
        return None
    return readable_name(name if relative == os.curdir else f"{name}/{relative}".lstrip("/"))


def _without(
    roots: list[str], deleted: Sequence[str], sources: Collection[str]
) -> tuple[list[str], list[str]]:
    """The roots that are left after a deletion, and the names of what is deleted.

    deleted: sources, folders of them, further roots by name, or any of these by path. sources: what the index holds.
    """
    named = list(zip(roots, names_of(roots), strict=True))
    names: list[str] = []
    for text in deleted:
        name = readable_name(text.rstrip("/"))
        if name not in sources:
            path = os.path.abspath(os.path.expanduser(text))
            inside = (_name_inside(root, known, path) for root, known in named)
            name = next((known for known in inside if known is not None), "") or name
        names.append(name)
    return [root for root, known in named if not known or known not in names], names


def _check_nothing_is_lost(previous: Index, root: str, chunks: Sequence[Document]) -> None:
    """Refuses to make an index that of another root if it would lose a document. Raises RetrievalError.

    chunks: those of the other root, not yet cut to the window of the embedder, which is loaded after this.
    """
    texts = {(_place(chunk), chunk.page_content) for chunk in chunks}
    longer: dict[Any, list[str]] = {}
    for place, text in texts:
        longer.setdefault(place, []).append(text)
    lost = {
        (source_of(chunk) or chunk.id, chunk.metadata.get("line"))  # a file, or a line of one
        for chunk in previous.chunks()
        if (_place(chunk), chunk.page_content) not in texts
        and not all(
            any(line in text for text in longer.get(_place(chunk), ()))
            for line in chunk.page_content.splitlines()  # a part of a chunk repeats what stands above it
        )
    }
    if not lost:
        return
    what = f"{len(lost)} document{'' if len(lost) == 1 else 's'}"
    add = f"--add {root} (adds it to what is there)" if root != GIVEN else "update_index (adds them)"
    raise RetrievalError(
        f"The index {previous.directory} was built from {' and '.join(previous.manifest.roots)}, and building it from "
        f"{root} would delete {what}; use --replace (in Python replace=True: the index becomes this alone), {add}, or "
        "--delete NAME (removes a document)."
    )


def _place(chunk: Document) -> tuple[Any, ...]:
    """The document of a chunk: a file, or a line or page of one."""
    return source_of(chunk), chunk.metadata.get("line"), chunk.metadata.get("page")


def _is_same(path: str, other: str) -> bool:
    if GIVEN in (path, other):
        return path == other
    try:
        return path == other or os.path.samefile(path, other)
    except OSError:
        return False


# ---- writes an index in place of what its folder held --------------------------------------------------------


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
    kind = kinds.resolve(factory, len(documents), embedder.dimension)
    with writing(directory) as writer:
        if replaces is not None:
            _check_is_the_same(writer, replaces)
        writer.replace_chunks(documents)
        vectors = writer.make_file("npy")
        previous = _reusable(writer, embedder, previous)
        with Journal(directory / JOURNAL, embedder.fingerprint, embedder.dimension) as journal:
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


def _check_is_the_same(writer: Writer, replaces: Manifest) -> None:
    """Raises IndexBusyError unless the index that is there is the one that was read."""
    if writer.manifest != replaces:
        raise IndexBusyError(
            f"An update must start from the index that is there, but {writer.directory} was changed by another process "
            "meanwhile; run the update again."
        )


def _fill(
    previous: Index, gone: set[int], changed: Mapping[int, Document], come: Sequence[Document]
) -> dict[int, Document]:
    """The chunks of all rows that change. Rows that become free are given to new chunks, then to the last ones, which
    leave theirs (these are added to `gone`); new chunks that are left follow at the end.
    """
    count = len(previous) - len(gone) + len(come)
    free = chain(sorted(gone), range(len(previous), count))
    placed = {**changed, **dict(zip(free, come, strict=False))}
    left = [row for row in sorted(gone) if row not in placed and row < count]
    last = [row for row in range(count, len(previous)) if row not in gone]
    moved = [placed.pop(row) if row in placed else previous.document(row) for row in last]
    placed |= dict(zip(left, moved, strict=True))
    gone.update(last)
    return placed


def _edit_index(
    previous: Index,
    count: int,
    gone: set[int],
    placed: Mapping[int, Document],
    embedder: TextEmbedder,
    roots: Sequence[str],
    num_threads: int,
    progress: Progress | None,
) -> int:
    """Writes the rows of an index that change; returns how many texts were embedded. The rest as `write_index`."""
    directory, manifest = previous.directory, previous.manifest
    rows = sorted(placed)
    keys = [text_key(placed[row].page_content) for row in rows]
    held = sorted({row for row in {*gone, *rows} if row < len(previous)})
    known = {
        text_key(chunk.page_content): row for row, chunk in zip(held, previous.documents(held), strict=True)
    }
    with writing(directory) as writer:
        _check_is_the_same(writer, manifest)
        writer.edit_chunks(gone, placed)
        with Journal(directory / JOURNAL, embedder.fingerprint, embedder.dimension) as journal:
            texts = {key: placed[row].page_content for key, row in zip(keys, rows, strict=True)}
            missing = [(key, text) for key, text in texts.items() if key not in known and key not in journal]
            _embed(missing, embedder, journal, progress)
            vectors = _block(keys, embedder.dimension, known, previous, journal)
        index = VectorIndex.read(directory / next(iter(manifest.files)), num_threads)
        index.edit(count, np.array(rows, np.int64), vectors)
        path = writer.make_file("faiss")
        index.write(path)
        writer.commit(replace(manifest, count=count, files={path.name: checksum(path)}, roots=list(roots)))
    tidy(directory)
    return len(missing)


def _write_roots(directory: Path, roots: list[str]) -> None:
    """Notes what the chunks of an index come from, unless it was changed meanwhile or cannot be written."""
    with suppress(RetrievalError), writing(directory) as writer:
        if writer.manifest is not None:
            writer.write_manifest(replace(writer.manifest, roots=roots))


def tidy(directory: Path) -> None:
    """Removes what builds left over, unless another one is under way: those that ended, were killed or superseded.

    Lets only their owner read the files of an index whose rights were widened.
    """
    for path in (*vector_files(directory), *directory.glob("*.sqlite*")):
        with suppress(OSError):  # another user's, who alone may change them
            path.chmod(PRIVATE_FILE)
    if _leftovers(directory):
        with suppress(RetrievalError), writing(directory):
            for path in _leftovers(directory):
                path.unlink(missing_ok=True)
            remove_database(directory / JOURNAL)


def _leftovers(directory: Path) -> list[Path]:
    """Files of other indexes than the current one, and the journal."""
    current = read_manifest(directory).files
    others = [path for path in vector_files(directory) if path.name not in current]
    return others + list(directory.glob(f"{JOURNAL}*"))


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
    held = enumerate(previous.chunks()) if previous is not None else ()
    rows = {key: row for row, chunk in held if (key := text_key(chunk.page_content)) in texts}
    missing = [(key, text) for key, text in texts.items() if key not in rows and key not in journal]
    _embed(missing, embedder, journal, progress)
    with path.open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (len(keys), embedder.dimension)}
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, len(keys), _WRITE_AT_ONCE):
            block = _block(keys[start : start + _WRITE_AT_ONCE], embedder.dimension, rows, previous, journal)
            file.write(block.tobytes())
    return len(missing)


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


def _write_index_files(writer: Writer, vectors: Path, factory: str, num_threads: int) -> dict[str, Checksum]:
    """Writes the FAISS index of the vectors, which stay as a file where the kind does not keep them."""
    index = VectorIndex.build(np.load(vectors, mmap_mode="r"), factory, num_threads)
    path = writer.make_file("faiss")
    index.write(path)
    if index.is_exact:
        vectors.unlink()
        return {path.name: checksum(path)}
    return {path.name: checksum(path), vectors.name: checksum(vectors)}
