"""Building indexes, from files or documents: load, split, embed what is new, write.

The whole job behind `tandem index`, as one function, and its twin for a few files of many. An index remembers what it
was built from, its roots, so that no build empties it by mistake. The first root is the folder or file of the first
build; its sources are paths within it. Each further one (`tandem index PARTY --add PATH`) has a name of its own, which
stands before its paths. Documents that Python hands over have no path: their root is `GIVEN`.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from tandem.config.schema import RetrievalConfig
from tandem.errors import RetrievalError, nearest
from tandem.retrieval import index as kinds
from tandem.retrieval.documents import RESERVED, Cutting, Document, Passage, cut, number_chunks, readable_name
from tandem.retrieval.embedding import TextEmbedder
from tandem.retrieval.index import Index, VectorIndex
from tandem.retrieval.loaders import Loaded, load_documents, load_passages
from tandem.retrieval.store import (
    PRIVATE_FILE,
    Manifest,
    Snapshot,
    Writer,
    canonical,
    read_manifest,
    stored_vectors,
    vector_key,
    writing,
)

DEFAULTS = RetrievalConfig()
"""The settings, whose lengths of chunks are the default."""
GIVEN = "documents given in Python"
"""The root of documents that are not files."""
EMBED_AT_ONCE = 256
"""Chunks handed to the embedder, and kept on disk, between two calls of `progress`."""
MAX_KEY_BYTES = 64
_LEFT = re.compile(r"vectors-[0-9a-z]+\.(faiss|npy)|embedded\.sqlite.*|watched\.json")
"""Files of builds that were killed, and of earlier versions."""

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
    manifest: Manifest | None = None
    previous: Index | None = None
    with suppress(RetrievalError):  # none, or a damaged one, which is replaced
        manifest = read_manifest(directory)
        previous = Index.open(directory)
    cutting = Cutting(chunk_chars, overlap)
    before = manifest.roots if manifest else []
    roots, may_be_any = _choose_roots(source, directory, before, replace)
    is_given = source is not None and roots == [GIVEN]
    loaded = _load(source, cutting) if source is not None and is_given else _load_roots(roots, cutting)
    key = bytes.fromhex(manifest.id_key) if manifest else id_key
    if previous is not None and not may_be_any:
        _check_nothing_is_lost(previous, roots[0], number_chunks(loaded.documents, cutting, key))
    chunks = number_chunks(loaded.documents, cutting, key, embedder.window)
    problems = list(loaded.problems)
    if previous is not None and before == roots:
        kept = [chunk for chunk in previous.chunks() if _is_of(source_of(chunk), loaded.failed)]
        chunks += kept
        problems += describe_kept(dict.fromkeys(map(source_of, kept)))
    kind, flaws = kinds.resolve(factory, len(chunks)), list[str]()
    if previous is not None:
        kind, flaws = _possible_kind(factory, len(chunks))
    is_unchanged = previous is not None and _is_up_to_date(previous, embedder, kind, chunks)
    if previous is not None and is_unchanged:
        num_embedded, manifest = 0, _note_roots(previous, roots)
    else:
        num_embedded, manifest = write_index(
            directory,
            chunks,
            embedder,
            kind,
            id_key=key,
            num_threads=num_threads,
            progress=progress,
            previous=previous,
            roots=roots,
        )
    chunks_before = () if previous is None else previous.chunks()
    return _make_report(
        manifest, chunks_before, chunks, problems + flaws, num_embedded, is_unchanged=is_unchanged
    )


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
    roots, deleted = _without(roots, delete, sources)
    gone, problems = _match_sources(deleted, sources)
    inside, _ = _match_sources([name] if name else [], sources)
    loaded_sources = {source_of(passage) for passage in loaded.documents} - {""}
    failed = {source for source in sources if _is_of(source, loaded.failed)}
    replaced = gone | ((inside | loaded_sources) - failed)
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

    Only rows that change are written: those of chunks that went are given to new ones, or to the last. Raises as
    `update_index`.
    """
    key = bytes.fromhex(previous.manifest.id_key)
    sources = previous.sources()
    rows = np.array(sorted(chain.from_iterable(sources.get(name, ()) for name in replaced)), np.int64)
    old = dict(zip(rows.tolist(), previous.documents(rows), strict=True))
    before = {str(chunk.id) for chunk in old.values()}
    new = {str(chunk.id): chunk for chunk in number_chunks(passages, cutting, key, embedder.window)}
    for name in previous.find_ids(new) - before:  # of documents without source or id, which replace none
        del new[name]
    gone = {row for row, chunk in old.items() if chunk.id not in new}
    placed = {
        row: new[str(chunk.id)]
        for row, chunk in old.items()
        if row not in gone and new[str(chunk.id)] != chunk
    }
    come = [chunk for name, chunk in new.items() if name not in before]
    count = len(previous) - len(gone) + len(come)
    kind, flaws = _possible_kind(factory, count)
    is_unchanged = not (gone or placed or come)
    if is_unchanged:
        num_embedded, manifest = 0, _note_roots(previous, roots)
    else:
        num_embedded, manifest = _write_rows(
            previous.directory,
            previous,
            replace(previous.manifest, count=count, factory=kind, roots=roots),
            _fill(previous, gone, placed, come),
            embedder,
            num_threads,
            progress,
            trained=previous.vector_index if previous.manifest.factory == kind else None,
        )
    num_other_sources = len(sources.keys() - set(replaced) - {source_of(chunk) for chunk in new.values()})
    return _make_report(
        manifest,
        old.values(),
        new.values(),
        problems + flaws,
        num_embedded,
        is_unchanged=is_unchanged,
        others=(num_other_sources, count - len(new)),
    )


def source_of(chunk: Document | Passage) -> str:
    """Its source; "" where it has none."""
    return str(chunk.metadata.get("source", ""))


def _is_up_to_date(previous: Index, embedder: TextEmbedder, kind: str, chunks: Sequence[Document]) -> bool:
    manifest = previous.manifest
    is_alike = (manifest.embedder_fingerprint, manifest.factory) == (embedder.fingerprint, kind)
    is_complete = not manifest.trained or (previous.directory / manifest.trained).exists()
    return is_alike and is_complete and previous.is_of(chunks)


def _possible_kind(factory: str, count: int) -> tuple[str, list[str]]:
    """The kind that an index goes on as: "Flat", with a sentence, where its own cannot be trained any more, so that a
    deletion always goes through.
    """
    kind = kinds.resolve(factory, count)
    if not count or count >= kinds.vectors_to_train(kind):
        return kind, []
    few = "1 chunk" if count == 1 else f"{count} chunks"
    flaw = (
        f'The index kind "{kind}" cannot be trained with {few}, so the index is "Flat" until there are more.'
    )
    return kinds.FLAT, [flaw]


def _make_report(
    manifest: Manifest,
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
        manifest=manifest,
        is_unchanged=is_unchanged,
    )


def _fields(chunk: Document) -> str:
    """A chunk's metadata as they are stored, without its place, which moves with what stands before it."""
    return canonical({key: value for key, value in chunk.metadata.items() if key not in RESERVED})


def _is_of(source: str, files: Collection[str]) -> bool:
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
        if before and not replace and any(_is_same(root, other) for other in before):
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
            inside = (_name_inside(root, other, path) for root, other in named)
            name = next((each for each in inside if each is not None), "") or name
        names.append(name)
    return [root for root, name in named if not name or name not in names], names


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
    return source_of(chunk), chunk.metadata.get("line"), chunk.metadata.get("page")


def _is_same(path: str, other: str) -> bool:
    with suppress(OSError):
        return path == other or os.path.samefile(path, other)
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
    roots: Sequence[str] = (),
) -> tuple[int, Manifest]:
    """Makes `directory` the index of these chunks (from `split`), and returns how many texts were embedded, and its
    manifest.

    The same chunks, embedder and kind give the same index, whatever was there before, except for the last bits of
    vectors where these depend on which texts are embedded together. previous: the index that is there, if it is open
    already. roots: what the chunks come from. progress(done, total) counts the texts to embed; what it has counted is
    on the disk. Raises RetrievalError; whatever fails, the previous index is kept, and what was embedded is not
    embedded again.
    """
    if previous is None:
        with suppress(RetrievalError):
            previous = Index.open(directory)
    manifest = Manifest(
        embedder=embedder.name,
        embedder_fingerprint=embedder.fingerprint,
        dimension=embedder.dimension,
        count=len(documents),
        factory=kinds.resolve(factory, len(documents)),
        id_key=id_key.hex(),
        roots=list(roots),
    )
    placed = dict(enumerate(documents))
    return _write_rows(directory, previous, manifest, placed, embedder, num_threads, progress)


def _write_rows(
    directory: Path,
    previous: Index | None,
    manifest: Manifest,
    placed: Mapping[int, Document],
    embedder: TextEmbedder,
    num_threads: int,
    progress: Progress | None,
    *,
    trained: VectorIndex | None = None,
) -> tuple[int, Manifest]:
    """Makes an index that of a manifest, by giving rows a chunk; all others stay. The rest as `write_index`.

    trained: the vectors of the rows that stay, where the kind is trained; None trains it anew.
    """
    if not manifest.count:
        raise RetrievalError(
            f"An index needs at least one chunk, but {directory} would get none; add documents."
        )
    kinds.check_can_train(manifest.factory, manifest.count)
    with writing(directory, None if previous is None else previous.manifest) as writer:
        texts = {vector_key(manifest, chunk.page_content): chunk.page_content for chunk in placed.values()}
        missing = [(key, text) for key, text in texts.items() if writer.lacks_vector(key)]
        _embed(missing, embedder, writer, progress)
        writer.write_chunks(placed, manifest)
        name = ""
        if kinds.vectors_to_train(manifest.factory):
            vectors, rows = stored_vectors(writer.database, manifest, directory), np.array(sorted(placed))
            if trained is None:
                trained = VectorIndex.build(vectors, manifest.factory, num_threads)
            else:
                trained.edit(manifest.count, rows, vectors[rows])
            name = trained.write(directory)
        manifest = writer.commit(replace(manifest, trained=name))
    tidy(directory)
    return len(missing), manifest


def _embed(
    missing: Sequence[tuple[bytes, str]],
    embedder: TextEmbedder,
    writer: Writer,
    progress: Progress | None,
) -> None:
    for start in range(0, len(missing), EMBED_AT_ONCE):
        if progress:
            progress(start, len(missing))
        some = missing[start : start + EMBED_AT_ONCE]
        vectors = embedder.embed([text for _, text in some])
        if vectors.shape != (len(some), embedder.dimension):
            raise ValueError(f"{len(some)} texts were embedded to vectors of the shape {vectors.shape}")
        writer.keep_vectors([key for key, _ in some], vectors)
    if progress and missing:
        progress(len(missing), len(missing))


def _fill(
    previous: Index, gone: set[int], changed: Mapping[int, Document], come: Sequence[Document]
) -> dict[int, Document]:
    """The chunks of all rows that change. Rows that become free are given to new chunks, then to the last ones, which
    leave theirs; new chunks that are left follow at the end.
    """
    count = len(previous) - len(gone) + len(come)
    free = chain(sorted(gone), range(len(previous), count))
    placed = {**changed, **dict(zip(free, come, strict=False))}
    left = [row for row in sorted(gone) if row not in placed and row < count]
    last = [row for row in range(count, len(previous)) if row not in gone]
    moved = [placed.pop(row) if row in placed else previous.document(row) for row in last]
    return placed | dict(zip(left, moved, strict=True))


def _note_roots(previous: Index, roots: list[str]) -> Manifest:
    """Notes what the chunks of an index come from, unless it was changed meanwhile or cannot be written."""
    manifest = previous.manifest
    if manifest.roots != roots:
        with suppress(RetrievalError), writing(previous.directory, manifest) as writer:
            manifest = writer.write_roots(replace(manifest, roots=roots))
    tidy(previous.directory)
    return manifest


def tidy(directory: Path) -> None:
    """Removes what builds left over that were killed, or earlier versions, unless a build is under way.

    Lets only their owner read the files of an index whose rights were widened.
    """
    for path in (*directory.glob("*.sqlite*"), *directory.glob("vectors-*.faiss")):
        with suppress(OSError):  # another user's, who alone may change them
            path.chmod(PRIVATE_FILE)
    with Snapshot(directory) as snapshot:
        manifest, has_unused = snapshot.manifest, snapshot.has_unused_vectors()
    unused = {path for path in directory.iterdir() if _LEFT.fullmatch(path.name)} - {
        directory / manifest.trained
    }
    if unused or has_unused:
        with suppress(RetrievalError), writing(directory, manifest) as writer:
            writer.drop_unused_vectors()
            for path in unused:
                path.unlink(missing_ok=True)
