"""Reads a file or a folder of files into documents.

Walks the folder in a fixed order (so that equal folders give equal indexes), picks a reader by file ending,
and turns whatever cannot be read into one sentence each while the rest goes on. Hidden files, and folders
that hold an index of Tandem's, are passed over. Links that lead out of the folder are not followed: whoever gave the
folder may not know what lies behind them.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tandem.errors import RetrievalError
from tandem.retrieval import reader_process
from tandem.retrieval.documents import MAX_DEPTH, Document, is_too_deep, make_writable, readable_name
from tandem.retrieval.old_format import is_old
from tandem.retrieval.reader_process import ReaderFailed
from tandem.retrieval.readers import READERS, Unreadable
from tandem.retrieval.store import has_index
from tandem.system.file_kinds import endings

_ATTEMPTS = 2
"""Readings of a file that changes meanwhile."""

_MAX_SHOWN = 3
"""Links that are named in one sentence."""

KINDS = endings()


class _NotAFileError(Exception):
    """A path is a pipe, socket or device."""


class Loaded(NamedTuple):
    """What a corpus gave."""

    documents: list[Document]  # folder by folder, sorted by name, then by place in the file
    problems: list[str]  # one sentence for each thing left out
    failed: set[str]  # sources of files that ended their reader: what was known of them still holds


def load_path(path: Path | str, name: str = "", *, may_fail: bool = False) -> Loaded:
    """All documents of a file or folder, and a sentence for each thing that had to be left out.

    Every document's metadata holds `source`: for a file its name, in a folder the path relative to that (posix form).
    name: what the file is called instead, or what stands before the path. Raises RetrievalError if the path does not
    exist or nothing under it could be read, unless `may_fail` and it holds a file that ended its reader.
    """
    root = Path(path)
    if not root.exists():
        raise RetrievalError(
            f"A corpus must be a file or a folder, but {root} does not exist; check its path."
        )
    loaded = read_path(root, name)
    if not loaded.documents and not (may_fail and loaded.failed):
        raise RetrievalError(_nothing(root, loaded.problems))
    return loaded


def load_documents(given: Iterable[Document]) -> Loaded:
    """Documents of another library (LangChain's class) as if they came from files, and what was left out.

    What metadata calls `source`, else a document's id, is its source. Half a surrogate pair becomes "?", and keys of
    metadata become strings. RetrievalError if nothing is left.
    """
    problems: list[str] = []
    documents: list[Document] = []
    seen: set[str] = set()
    for document in given:
        name = readable_name(str(document.metadata.get("source") or document.id or ""))
        if document.id and document.id in seen:
            problems.append(
                f"A second document with the id {readable_name(document.id)} was left out; "
                "give each an id of its own."
            )
        elif not document.page_content.strip():
            problems.append(f"{name or 'A document'} was left out: it holds no text; fill it or remove it.")
        elif is_too_deep(document.metadata):
            problems.append(
                f"{name or 'A document'} was left out: its metadata is nested more than {MAX_DEPTH} levels deep; "
                "flatten it."
            )
        else:
            seen.update([document.id] if document.id else [])
            documents.append(make_writable(document, source=name))
    if not documents:
        more = f" ({problems[0].rstrip('.')})" if problems else ""
        raise RetrievalError(f"A corpus must hold at least one document, but it has none{more}; add one.")
    return Loaded(documents, problems, set())


def read_path(root: Path, name: str = "") -> Loaded:
    """As `load_path` of what exists, but without an error if nothing could be read."""
    loaded = Loaded([], [], set())
    problems = loaded.problems
    skipped: Counter[str] = Counter()
    is_file = root.is_file()
    try:
        for path, relative in _files(root, problems):
            source = (name or relative) if is_file else f"{name}/{relative}".lstrip("/")
            if path.suffix.lower() in READERS:
                _read(path, source, loaded)
            else:
                skipped[readable_name(path.suffix.lower())] += 1
    finally:
        reader_process.SHARED.close()  # a site that runs on needs no second process, with texts in its memory
    for suffix, count in sorted(skipped.items()):
        problems.append(_describe_skipped(suffix, count))
    return loaded


def _files(root: Path, problems: list[str]) -> Iterator[tuple[Path, str]]:
    """Every visible file under `root` with its relative posix path, sorted by it within each folder."""
    if root.is_file():
        yield root, readable_name(root.name)
        return

    def denied(error: OSError) -> None:
        where = _source(Path(str(error.filename)), root)
        problems.append(
            f"{where} was left out: the folder cannot be read ({error.strerror}); check its rights."
        )

    outside: list[str] = []
    inside = os.path.realpath(root)
    for folder, subfolders, names in os.walk(root, onerror=denied):
        here = Path(folder)
        subfolders[:] = sorted(s for s in subfolders if not s.startswith(".") and not _is_index(here / s))
        names = [name for name in names if not name.startswith(".")]
        outside += [
            _source(here / s, root) for s in [*subfolders, *sorted(names)] if _leads_out(here / s, inside)
        ]
        for name in sorted(names):
            if not _leads_out(here / name, inside):
                yield here / name, _source(here / name, root)
    if outside:
        problems.append(_not_followed(outside))


def _leads_out(path: Path, root: str) -> bool:
    """Whether a path is a link to something that is not in the folder `root`, which is free of links."""
    return path.is_symlink() and os.path.commonpath([root, os.path.realpath(path)]) != root


def _source(path: Path, root: Path) -> str:
    """What a file or folder under `root` is called in metadata and sentences."""
    return readable_name(path.relative_to(root).as_posix())


def _is_index(folder: Path) -> bool:
    """Whether a folder holds an index, of whatever version."""
    return has_index(folder) or is_old(folder)


def _read(path: Path, source: str, loaded: Loaded) -> None:
    """Adds the documents of one file; what goes wrong becomes a sentence."""
    try:
        reason = _try_to_read(path, source, loaded)
    except _NotAFileError:
        reason = "it is a pipe, socket or device, not a file; remove it"
    except OSError as error:
        reason = f"it cannot be read ({error.strerror or error}); check its rights"
    except Unreadable as error:
        reason = str(error)
        if isinstance(error, ReaderFailed):
            loaded.failed.add(source)
    if reason:
        loaded.problems.append(f"{source} was left out: {reason}.")


def _try_to_read(path: Path, source: str, loaded: Loaded) -> str:
    """Adds the documents of one file, or says why not. Raises Unreadable, _NotAFileError or OSError."""
    for _ in range(_ATTEMPTS):
        before = _state(path)
        try:
            documents, problems = reader_process.SHARED.read(path, source)
        except Unreadable:
            if _state(path) == before:
                raise
            continue
        if _state(path) == before:
            loaded.documents.extend(documents)
            loaded.problems.extend(problems)
            return ""
    return "it changed while it was read; index it again when it is finished"


def _state(path: Path) -> tuple[int, int, int]:
    """What differs when a file was written to or replaced. _NotAFileError for what could block a reader."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise _NotAFileError(path)
    return status.st_size, status.st_mtime_ns, status.st_ino


def _describe_skipped(suffix: str, count: int) -> str:
    ending = f"ending in {suffix}" if suffix else "without an ending"
    was = "was" if count == 1 else "were"
    return (
        f"{_count(count, 'file')} {ending} {was} left out: only {KINDS} are read; "
        "convert what matters to one of these."
    )


def _not_followed(names: list[str]) -> str:
    shown = ", ".join(names[:_MAX_SHOWN]) + (", ..." if len(names) > _MAX_SHOWN else "")
    were = "that leads out of the folder was" if len(names) == 1 else "that lead out of the folder were"
    return f"{_count(len(names), 'link')} {were} not followed ({shown}); copy what should be indexed."


def _nothing(root: Path, problems: list[str]) -> str:
    if not problems:
        return f"A corpus must hold at least one file of {KINDS}, but {root} holds none; add one."
    first = problems[0].rstrip(".")
    more = f"; {_count(len(problems) - 1, 'more problem')}" if len(problems) > 1 else ""
    return f"A corpus must hold at least one readable file of {KINDS}, but {root} has none ({first}{more})."


def _count(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
