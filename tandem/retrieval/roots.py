"""What an index was built from: the files and folders that it remembers, so that no build empties it by mistake.

The first root is the folder or file of the first build; its sources are paths within it. Each further one
(`tandem index PARTY --add PATH`) has a name of its own, which stands before its paths. Documents that Python hands over
have no path: their root is `GIVEN`. An index of an earlier version has none.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from tandem.errors import RetrievalError
from tandem.retrieval.documents import Document, readable_name
from tandem.retrieval.loaders import Loaded, load_documents, load_path

GIVEN = "documents given in Python"
"""The root of documents that are not files."""

Source = Path | Sequence[Document]
"""A file, a folder, or documents from elsewhere."""


def root_of(source: Source) -> str:
    """What an index remembers of a source: its absolute path."""
    return os.path.abspath(source) if isinstance(source, Path | str) else GIVEN


def includes(roots: Sequence[str], root: str) -> bool:
    """Whether a root is one of those that an index remembers, by whatever path."""
    return root in roots or any(_is_same(root, known) for known in roots if GIVEN not in (root, known))


def load_roots(roots: Sequence[str]) -> Loaded:
    """All documents of some roots. RetrievalError if one is missing or holds nothing."""
    documents: list[Document] = []
    problems: list[str] = []
    failed: set[str] = set()
    for root, name in zip(roots, names_of(roots), strict=True):
        if not os.path.exists(root) and len(roots) > 1:
            raise RetrievalError(
                f"The index was built from {' and '.join(roots)}, but {root} does not exist any more; bring it back, "
                "remove its documents with --delete, or build it from another folder with --replace."
            )
        loaded = load_path(root, name, may_fail=bool(documents) or root != roots[-1])
        documents += loaded.documents
        problems += loaded.problems
        failed |= loaded.failed
    return Loaded(documents, problems, failed)


def load(source: Source, name: str = "") -> Loaded:
    """The documents of one source."""
    return load_path(source, name) if isinstance(source, Path | str) else load_documents(source)


def names_of(roots: Sequence[str]) -> list[str]:
    """What stands before the paths of each root: nothing for the first, for the others a name of their own."""
    names: list[str] = []
    for root in roots:
        names.append(_new_name(root, roots[0], names) if names else "")
    return names


def place(roots: Sequence[str], path: str) -> tuple[list[str], str]:
    """The roots of an index that `path` is added to, and what its sources are called.

    Within a root the path keeps its place there; elsewhere it is a further root. RetrievalError where it holds one.
    """
    for root, name in zip(roots, names_of(roots), strict=True):
        relative = os.path.relpath(path, root)
        if not _leads_up(relative):
            return list(roots), _join(name, relative)
        if not _leads_up(os.path.relpath(root, path)):
            raise RetrievalError(
                f"A path must not hold what the index was built from already, but {path} holds {root}; "
                "give one that does not, or build the index from it with --replace."
            )
    further = [*roots, path]
    return further, names_of(further)[-1]


def without(
    roots: Sequence[str], deleted: Sequence[str], sources: Collection[str]
) -> tuple[list[str], list[str]]:
    """The roots that are left after a deletion, and the names of what is deleted.

    deleted: sources, folders of them, further roots by name, or any of these by path. sources: what the index holds.
    """
    left, names = list(roots), list[str]()
    for text in deleted:
        name = text.rstrip("/")
        if text not in sources:
            name = _inside(roots, os.path.abspath(os.path.expanduser(text))) or name
        names.append(name)
        left = [
            root for root, known in zip(roots, names_of(roots), strict=True) if root in left and known != name
        ]
    return left, names


def check_nothing_is_lost(
    directory: Path, roots: Sequence[str], root: str, held: Iterable[Document], chunks: Sequence[Document]
) -> None:
    """Refuses to make an index that of another root if it would lose a document.

    roots: what it remembers; without any, the other root may be the one it was built from, whose files were changed
    since. held: its chunks. chunks: those of the other root. Raises RetrievalError.
    """
    known = {_name(chunk) for chunk in chunks} | {str(chunk.id) for chunk in chunks}
    lost = {_document(chunk) for chunk in held if (str(chunk.id) if roots else _name(chunk)) not in known}
    if not lost:
        return
    what = f"{len(lost)} document{'' if len(lost) == 1 else 's'}"
    before = (
        f"from {' and '.join(roots)}" if roots else "by an earlier version, which did not note its folder"
    )
    add = f"--add {root} (adds it to what is there)" if root != GIVEN else "update_index (adds them)"
    raise RetrievalError(
        f"The index {directory} was built {before}, and building it from {root} would delete {what}; use --replace "
        f"(in Python replace=True: the index becomes this alone), {add}, or --delete NAME (removes a document)."
    )


def _new_name(root: str, first: str, taken: Collection[str]) -> str:
    """The last part of a root's path, with a number where that is taken already."""
    stem, ending = os.path.splitext(os.path.basename(root))
    number, name = 1, f"{stem}{ending}"
    while name in taken or name == os.path.basename(first) or os.path.exists(os.path.join(first, name)):
        number += 1
        name = f"{stem}-{number}{ending}"
    return readable_name(name)


def _inside(roots: Sequence[str], path: str) -> str:
    """What a path within one of the roots is called; "" for others and for the first root."""
    for root, name in zip(roots, names_of(roots), strict=True):
        relative = os.path.relpath(path, root)
        if not _leads_up(relative):
            return _join(name, relative)
    return ""


def _leads_up(relative: str) -> bool:
    return relative.split(os.sep, 1)[0] == os.pardir


def _join(name: str, relative: str) -> str:
    return readable_name(name if relative == os.curdir else f"{name}/{relative}".lstrip("/"))


def _is_same(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False


def _name(chunk: Document) -> str:
    return str(chunk.metadata.get("source") or chunk.id)


def _document(chunk: Document) -> tuple[str, object]:
    """Names the document of a chunk: a file, or one line of it."""
    return _name(chunk), chunk.metadata.get("line")
