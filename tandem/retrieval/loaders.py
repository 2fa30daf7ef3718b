"""Loading documents from a file or a folder, read in a process of its own.

Walks a folder in a fixed order (so that equal folders give equal indexes), picks a reader by file ending, and turns
whatever cannot be read into one sentence each while the rest continues. Hidden files, lock files of office programs and
folders that hold an index of Tandem's are passed over. Links that lead out of the folder are not followed: whoever gave
the folder may not know what lies behind them.

Parsers of foreign files recurse in C, or run and grow without bound. So no file is read here, nor is a text of unknown
length cut here: a reader process may take so much processor time and memory for one; the kernel ends it in the middle
of whatever it does, and the next file gets a new one. It is started for the first file of a folder, serves all others
of it and ends with them, or with the process that started it.

A request is {"name", "source", "cutting", "limit_s", "max_chars", "max_passages"} with the open file. The answer is a
line for each passage {"text"}, with the "metadata" where a document begins and an "outline" where there is one, then
one with what else there is to say: {"problems"}, and perhaps "unreadable" (a sentence), "refused" (an errno) or
"failed" (the name of an exception).
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Generic, NamedTuple, TypeVar

from tandem.errors import RetrievalError
from tandem.retrieval.documents import (
    MAX_DEPTH,
    RESERVED,
    Cutting,
    Document,
    Outline,
    Passage,
    Table,
    cut,
    is_too_deep,
    readable_name,
    writable,
)
from tandem.retrieval.folders import ReplacedError, Root, RootFile
from tandem.retrieval.readers import Unreadable, listed, shorten
from tandem.system.file_kinds import ending_of, endings, kind_of, why_skipped
from tandem.system.processes import Answers, Companion, NotStartedError, describe_exit, limit_time, serve

T = TypeVar("T")

WAIT_FACTOR = 10
"""A file may take this many times its processor time by the clock, should the reader wait for something."""
MIN_CHARS = 100_000_000
CHARS_PER_BYTE = 10
"""How much text a file may give: what is packed grows, but what grows without bound is no document."""
MIN_PASSAGES = 200_000
BYTES_PER_PASSAGE = 20
"""How many passages a file may give, at least, and one more for so many bytes of its own: each costs a kilobyte and
more, whatever it says."""
MAX_METADATA_CHARS = 4_000
"""Of a document; each of its chunks has them."""
MAX_SENTENCE_CHARS = 500
WATCH_S = 0.05
"""Time between two looks at the memory of a reader."""
OUT_OF_MEMORY = 3
"""Exit code of a reader that reached its limit of memory."""

_ATTEMPTS = 2
"""Readings of a file that changes meanwhile."""
_MAX_SHOWN, _MAX_NAME_CHARS = 3, 40
"""Links or fields that are named in one sentence, and characters of the name of a field."""
_TIMED_OUT = (signal.SIGPROF, signal.SIGALRM)


class NothingReadError(RetrievalError):
    """A corpus holds nothing that can be read."""

    def __init__(self, message: str, problems: Sequence[str]) -> None:
        super().__init__(message)
        self.problems = problems  # one sentence for each thing left out


class Loaded(NamedTuple, Generic[T]):
    """The outcome of reading a corpus."""

    documents: list[T]  # folder by folder, sorted by name, then by place in the file
    problems: list[str]  # one sentence for each thing left out
    failed: set[str]  # sources of files that could not be read now: what was known of them still holds


def load_path(path: Path | str, name: str = "") -> Loaded[Document]:
    """All documents of a file or folder, and a sentence for each thing that had to be left out.

    Every document's metadata holds `source`: for a file its name, in a folder the path relative to that (posix form).
    name: what the file is called instead, or what stands before the path. Raises RetrievalError if the path does not
    exist, and NothingReadError if nothing under it could be read.
    """
    passages, problems, failed = load_passages(path, None, name)
    documents = [Document(page_content=text, metadata=metadata) for text, metadata, _ in passages]
    return Loaded(documents, problems, failed)


def load_passages(
    path: Path | str, cutting: Cutting | None, name: str = "", *, may_fail: bool = False
) -> Loaded[Passage]:
    """As `load_path`, but cut, unless cutting is None. may_fail: no error if a file in it ended its reader."""
    root, problems = Path(path), list[str]()
    try:
        loaded = read_files(walk_path(root, name, problems), problems, cutting)
    except FileNotFoundError:
        raise RetrievalError(
            f"A corpus must be a file or a folder, but {root} does not exist; check its path."
        ) from None
    if not loaded.documents and not (may_fail and loaded.failed):
        raise NothingReadError(_nothing(root, problems), problems)
    return loaded


def load_documents(given: Iterable[Document]) -> Loaded[Document]:
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
            metadata = {**writable(document.metadata), "source": name}
            documents.append(Document(page_content=writable(document.page_content), metadata=metadata))
    if not documents:
        more = f" ({problems[0].rstrip('.')})" if problems else ""
        raise RetrievalError(f"A corpus must hold at least one document, but it has none{more}; add one.")
    return Loaded(documents, problems, set())


def walk_path(path: Path, name: str, problems: list[str]) -> Iterator[tuple[RootFile, str]]:
    """Every file of a kind that can be read, with its source; name and what is left out as for `load_path`.

    Raises OSError if the path is not there.
    """
    skipped: Counter[str] = Counter()
    outside: list[str] = []

    def denied(folder: str, why: str) -> None:
        problems.append(f"{folder} was left out: {why}.")

    for entry in Root(path).files(denied, outside):
        kind = kind_of(entry.name)
        if kind is not None and kind.is_installed():
            is_root = not entry.listed
            yield entry, (name or entry.name) if is_root else f"{name}/{entry.name}".lstrip("/")
        else:
            skipped[readable_name(ending_of(entry.name))] += 1
    if outside:
        problems.append(_not_followed(outside))
    problems += [why_skipped(suffix, count) for suffix, count in sorted(skipped.items())]


def read_files(
    files: Iterable[tuple[RootFile, str]], problems: list[str], cutting: Cutting | None = None
) -> Loaded[Passage]:
    """The passages of files, each with its source. problems: to which a sentence is added for each thing left out.

    cutting: None gives whole documents.
    """
    loaded: Loaded[Passage] = Loaded([], problems, set())
    try:
        for entry, source in files:
            _read(entry, source, cutting, loaded)
    finally:
        SHARED.close()  # a site that runs on needs no second process, with texts in its memory
    return loaded


def _read(entry: RootFile, source: str, cutting: Cutting | None, loaded: Loaded[Passage]) -> None:
    try:
        reason = _try_to_read(entry, source, cutting, loaded)
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            loaded.failed.add(source)
        elif not entry.is_link:  # it was deleted meanwhile
            return
        reason = f"it cannot be read ({error.strerror or error}); check its rights"
    except Unreadable as error:
        reason = str(error)
        if isinstance(error, ReaderFailed | ReplacedError):
            loaded.failed.add(source)
    if reason:
        loaded.problems.append(f"{source} was left out: {reason}.")


def _try_to_read(entry: RootFile, source: str, cutting: Cutting | None, loaded: Loaded[Passage]) -> str:
    for _ in range(_ATTEMPTS):
        with entry.opened() as file:
            try:
                passages, problems = SHARED.read(file.descriptor, entry.name, source, cutting)
            except Unreadable:
                if file.is_unchanged():
                    raise
                continue
            if file.is_unchanged():
                loaded.documents.extend(passages)
                loaded.problems.extend(problems)
                return ""
    loaded.failed.add(source)
    return "it changed while it was read; index it again when it is finished"


def _not_followed(names: list[str]) -> str:
    were = "that leads out of the folder was" if len(names) == 1 else "that lead out of the folder were"
    return (
        f"{_count(len(names), 'link')} {were} not followed ({listed(names, _MAX_SHOWN)}); copy what should be "
        "indexed."
    )


def _nothing(root: Path, problems: list[str]) -> str:
    if not problems:
        return f"A corpus must hold at least one file of {endings()}, but {root} holds none; add one."
    first = problems[0].rstrip(".")
    more = f"; {_count(len(problems) - 1, 'more problem')}" if len(problems) > 1 else ""
    return (
        f"A corpus must hold at least one readable file of {endings()}, but {root} has none ({first}{more})."
    )


def _count(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


# ---- the reader process, seen from here ----------------------------------------------------------------------


class Limits(NamedTuple):
    """Limits on reading one file."""

    seconds: float = 60  # of processor time: 400 times what the usual page of a book takes
    seconds_per_mb: float = (
        10  # more for each 10^6 bytes of the file: a sound book of 2,000 pages takes minutes
    )
    memory_mb: int = 2_000  # resident; a page of html takes about 50 times its size
    max_passages: int | None = None  # of one file; None: by its size


LIMITS = Limits()


class ReaderFailed(Unreadable):
    """The reader of a file was ended by its limits or by a fault, so nothing is known of what the file holds."""


class ReaderProcess:
    """Reads files one after the other in one process. Safe for threads, which wait for each other."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self._limits = limits
        main, memory = f"{__name__}:serve_reader", str(limits.memory_mb)
        self._process = Companion(main, memory, OPENBLAS_NUM_THREADS="1")

    def read(
        self, file: int, name: str, source: str, cutting: Cutting | None = None
    ) -> tuple[list[Passage], list[str]]:
        """The passages of an open file, and a sentence for each part that had to be left out.

        file: its descriptor. name: by whose ending its reader is chosen. source: what it is called. cutting: None gives
        whole documents. Raises Unreadable for a file of no use, ReaderFailed for one that ended its reader, OSError,
        and RetrievalError if no reader can be started.
        """
        num_bytes = os.fstat(file).st_size
        limit_s = self._limits.seconds + self._limits.seconds_per_mb * num_bytes / 1e6
        request = {
            "name": name,
            "source": source,
            "cutting": cutting and [cutting.chunk_chars, cutting.overlap],
            "limit_s": limit_s,
            "max_chars": max(MIN_CHARS, CHARS_PER_BYTE * num_bytes),
            "max_passages": self._limits.max_passages or max(MIN_PASSAGES, num_bytes // BYTES_PER_PASSAGE),
        }
        passages: list[Passage] = []
        metadata: dict[str, Any] = {}
        end: dict[str, Any] = {}
        try:
            for end in self._process.ask(request, file):
                if "text" in end:
                    metadata = end.get("metadata", metadata)
                    starts, paths, tables = end.get("outline", Outline())
                    outline = Outline(starts, paths, [Table(*table) for table in tables])
                    passages.append(Passage(end["text"], metadata, outline))
        except NotStartedError as error:
            raise RetrievalError(f"Files are read in a process of its own, but {error}.") from None
        match end:
            case {"exit": int(code)}:
                raise ReaderFailed(_explain_exit(code, limit_s, self._limits.memory_mb))
            case {"failed": str(name)}:
                raise ReaderFailed(f"its reader failed with {name}; repair it or save it as text")
            case {"refused": int(number)}:
                raise OSError(number, os.strerror(number))
            case {"unreadable": str(reason)}:
                raise Unreadable(reason)
        return passages, end["problems"]

    def pid(self) -> int | None:
        """The number of the process; None while none runs."""
        return self._process.pid

    def close(self) -> None:
        """Ends the process; the next file starts another one."""
        self._process.close()


SHARED = ReaderProcess()
"""The one that everything in this process reads files with."""


def _explain_exit(code: int, limit_s: float, memory_mb: int) -> str:
    if -code in _TIMED_OUT:
        return f"reading it took longer than {limit_s:.0f} s; split it or save it as text"
    if code == OUT_OF_MEMORY:
        return f"reading it needed more than {memory_mb} MB of memory; split it or save it as text"
    return f"it ended its reader with {describe_exit(code)}; repair it or save it as text"


# ---- in the reader process -----------------------------------------------------------------------------------


def serve_reader() -> None:
    """The reader process. Its argument: megabytes of memory."""
    import tandem.retrieval.readers  # noqa: F401 - now, since it would count as the first file's time

    is_busy = threading.Event()
    _limit_memory(int(sys.argv[1]) * 1_000_000, is_busy)
    for number in _TIMED_OUT:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _TIMED_OUT)

    def handle(request: dict[str, Any], files: list[int], answers: Answers) -> None:
        limit_time(request["limit_s"], WAIT_FACTOR)
        is_busy.set()
        try:
            _answer(request, files[0], answers)
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        is_busy.clear()
        limit_time(0)

    serve(handle)


def _limit_memory(num_bytes: int, is_busy: threading.Event) -> None:
    """Ends the process soon after it holds more; no allocation succeeds that would take it to four times as much.

    The second alone would not do, nor close behind the first: CPython 3.11 may spin where not even a small object can
    be allocated. A crash leaves no file behind with what was in memory.
    """
    threading.Thread(target=_watch_memory, args=(num_bytes, is_busy), daemon=True).start()
    for kind, most in ((resource.RLIMIT_AS, 4 * num_bytes), (resource.RLIMIT_CORE, 0)):
        with suppress(ValueError, OSError):  # a system without it, or one that allows less anyway
            resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))


def _watch_memory(num_bytes: int, is_busy: threading.Event) -> None:
    """Looks while a file is read; where the system does not say what is resident, not at all."""
    pause = threading.Event()
    with suppress(OSError):
        while is_busy.wait():
            num_pages = int(Path("/proc/self/statm").read_bytes().split()[1])
            if num_pages * resource.getpagesize() > num_bytes:
                os._exit(OUT_OF_MEMORY)
            pause.wait(WATCH_S)


def _answer(request: dict[str, Any], descriptor: int, answers: Answers) -> None:
    problems: list[str] = []
    end: dict[str, Any] = {}
    try:
        with os.fdopen(descriptor, "rb") as file:
            _read_open(file, request, problems, answers)
    except MemoryError:
        raise
    except Unreadable as error:
        end = {"unreadable": str(error)}
    except OSError as error:
        end = {"refused": error.errno or 0}
    except Exception as error:  # a fault of a parser
        end = {"failed": type(error).__name__}
    problems = [shorten(problem, MAX_SENTENCE_CHARS) for problem in problems]
    answers.send(problems=problems, **end, end=True)


def _read_open(file: BinaryIO, request: dict[str, Any], problems: list[str], answers: Answers) -> None:
    """Answers with the passages of an open file. Raises Unreadable, and whatever a parser does."""
    from tandem.retrieval.readers import read_file

    source, max_chars, max_passages = (request[name] for name in ("source", "max_chars", "max_passages"))
    cutting = Cutting(*request["cutting"]) if request["cutting"] else None
    too_many = Unreadable(f"it holds more than {max_passages:,} passages of text; split it")
    too_long = Unreadable(f"it unpacks to more than {max_chars} characters; split it")
    if cutting and max_passages * cutting.chunk_chars < max_chars:  # as well known before it is cut
        max_chars, too_long = max_passages * cutting.chunk_chars, too_many
    num_chars = num_passages = 0
    dropped: Counter[str] = Counter()
    for document in read_file(file, request["name"], source, problems):
        num_chars += len(document.page_content)
        if num_chars > max_chars:
            raise too_long
        metadata = {"metadata": _shorten(document.metadata, dropped)}
        for text, _, outline in cut([document], cutting) if cutting else [Passage(document.page_content, {})]:
            num_passages += 1
            if num_passages > max_passages:
                raise too_many
            answers.put(text=text, **metadata, **({"outline": outline} if outline != Outline() else {}))
            metadata = {}
    if dropped:
        problems.append(_describe_dropped(source, dropped))


def _shorten(metadata: dict[str, Any], dropped: Counter[str]) -> dict[str, Any]:
    """Metadata, which every chunk of a document repeats, without the fields that are too long, which are counted."""
    sizes = {
        name: len(name) + len(json.dumps(value)) for name, value in metadata.items() if name not in RESERVED
    }
    excess = sum(sizes.values()) - MAX_METADATA_CHARS
    long = set[str]()
    for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
        if excess <= 0:
            break
        excess -= sizes[name]
        long.add(name)
    dropped.update(long)
    return {name: value for name, value in metadata.items() if name not in long}


def _describe_dropped(source: str, dropped: Counter[str]) -> str:
    names = listed([shorten(name, _MAX_NAME_CHARS) for name in sorted(dropped)], _MAX_SHOWN)
    return (
        f"{source}: the metadata of a document have at most {MAX_METADATA_CHARS:,} characters, so the longest fields "
        f"were left out ({names}); shorten what should be metadata."
    )
