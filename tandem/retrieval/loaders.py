"""Loading documents from a file or a folder, read in a process of its own.

Walks a folder in a fixed order (so that equal folders give equal indexes), picks a reader by file ending, and turns
whatever cannot be read into one sentence each while the rest continues. Hidden files, lock files of office programs and
folders that hold an index of Tandem's are passed over. Links that lead out of the folder are not followed: whoever gave
the folder may not know what lies behind them.

Parsers of foreign files recurse in C, or run and grow without bound. So no file is read here: a reader process may
take so much processor time and memory for one; the kernel ends it in the middle of whatever it does, and the next file
gets a new one. It is started for the first file of a folder, serves all others of it and ends with them, or with the
process that started it.

A request is a JSON line {"path", "source", "limit_s", "max_chars"}. The answer is a line for each document {"text",
"metadata"}, then one with what else there is to say: {"problems"}, and perhaps "unreadable" (a sentence), "refused" (an
errno) or "failed" (the name of an exception).
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from tandem.errors import RetrievalError
from tandem.retrieval.documents import MAX_DEPTH, Document, is_too_deep, readable_name, writable
from tandem.retrieval.formats import Unreadable
from tandem.retrieval.readers import read_file
from tandem.retrieval.store import has_index
from tandem.system.file_kinds import ending_of, endings, kind_of, why_skipped

KINDS = endings()
WAIT_FACTOR = 10
"""A file may take this many times its processor time by the clock, should the reader wait for something."""
MIN_CHARS = 100_000_000
CHARS_PER_BYTE = 10
"""How much text a file may give: what is packed grows, but what grows without bound is no document."""
WATCH_S = 0.05
"""Time between two looks at the memory of a reader."""
OUT_OF_MEMORY = 3
"""Exit code of a reader that reached its limit of memory."""

_ATTEMPTS = 2
"""Readings of a file that changes meanwhile."""
_HIDDEN = (".", "~$")
_MAX_SHOWN = 3
"""Links that are named in one sentence."""
_TIMED_OUT = (signal.SIGPROF, signal.SIGALRM)


class Loaded(NamedTuple):
    """The outcome of reading a corpus."""

    documents: list[Document]  # folder by folder, sorted by name, then by place in the file
    problems: list[str]  # one sentence for each thing left out
    failed: set[
        str
    ]  # sources of files that could not be read now, as said there: what was known of them still holds


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
            metadata = {**writable(document.metadata), "source": name}
            documents.append(Document(page_content=writable(document.page_content), metadata=metadata))
    if not documents:
        more = f" ({problems[0].rstrip('.')})" if problems else ""
        raise RetrievalError(f"A corpus must hold at least one document, but it has none{more}; add one.")
    return Loaded(documents, problems, set())


def read_path(root: Path, name: str = "") -> Loaded:
    """As `load_path` of what exists, but without an error if nothing could be read."""
    problems: list[str] = []
    return read_files(walk_path(root, name, problems), problems)


def walk_path(root: Path, name: str, problems: list[str]) -> Iterator[tuple[Path, str]]:
    """Every file of a kind that can be read, with its source; name and what is left out as for `load_path`."""
    skipped: Counter[str] = Counter()
    is_file = root.is_file()
    for path, relative in _files(root, problems):
        kind = kind_of(path.name)
        if kind is not None and kind.is_installed():
            yield path, (name or relative) if is_file else f"{name}/{relative}".lstrip("/")
        else:
            skipped[readable_name(ending_of(path.name))] += 1
    problems += [why_skipped(suffix, count) for suffix, count in sorted(skipped.items())]


def read_files(files: Iterable[tuple[Path, str]], problems: list[str]) -> Loaded:
    """The documents of files, each with its source. problems: to which a sentence is added for each thing left out."""
    loaded = Loaded([], problems, set())
    try:
        for path, source in files:
            _read(path, source, loaded)
    finally:
        SHARED.close()  # a site that runs on needs no second process, with texts in its memory
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
        subfolders[:] = sorted(s for s in subfolders if not s.startswith(".") and not has_index(here / s))
        names = [name for name in names if not name.startswith(_HIDDEN)]
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
    """The name of a file or folder under `root` in metadata and sentences."""
    return readable_name(path.relative_to(root).as_posix())


def _read(path: Path, source: str, loaded: Loaded) -> None:
    """Adds the documents of one file; what goes wrong becomes a sentence."""
    try:
        reason = _try_to_read(path, source, loaded)
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            loaded.failed.add(source)
        elif not path.is_symlink():  # it was deleted meanwhile
            return
        reason = f"it cannot be read ({error.strerror or error}); check its rights"
    except Unreadable as error:
        reason = str(error)
        if isinstance(error, ReaderFailed):
            loaded.failed.add(source)
    if reason:
        loaded.problems.append(f"{source} was left out: {reason}.")


def _try_to_read(path: Path, source: str, loaded: Loaded) -> str:
    """Adds the documents of one file, or says why not. Raises Unreadable or OSError."""
    for _ in range(_ATTEMPTS):
        before = _state(path)
        try:
            documents, problems = SHARED.read(path, source)
        except Unreadable:
            if _state(path) == before:
                raise
            continue
        if _state(path) == before:
            loaded.documents.extend(documents)
            loaded.problems.extend(problems)
            return ""
    loaded.failed.add(source)
    return "it changed while it was read; index it again when it is finished"


def _state(path: Path) -> tuple[int, int, int]:
    """A state that differs when a file was written to or replaced. Unreadable for what could block a reader."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise Unreadable("it is a pipe, socket or device, not a file; remove it")
    return status.st_size, status.st_mtime_ns, status.st_ino


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


# ---- the reader process, seen from here ----------------------------------------------------------------------


class Limits(NamedTuple):
    """Limits on reading one file."""

    seconds: float = 60  # of processor time: 400 times what the usual page of a book takes
    seconds_per_mb: float = (
        10  # more for each 10^6 bytes of the file, since a sound book of 2,000 pages takes minutes
    )
    memory_mb: int = 2_000  # resident; a page of html takes about 50 times its size


LIMITS = Limits()


class ReaderFailed(Unreadable):
    """The reader of a file was ended by its limits or by a fault, so nothing is known of what the file holds."""


class ReaderProcess:
    """Reads files one after the other in one process. Safe for threads, which wait for each other."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def read(self, path: Path, source: str) -> tuple[list[Document], list[str]]:
        """The documents of a file, and a sentence for each part that had to be left out.

        source: what the file is called. Raises Unreadable for a file of no use, ReaderFailed for one that ended its
        reader, OSError, and RetrievalError if no reader can be started.
        """
        num_bytes = path.stat().st_size
        limit_s = self._limits.seconds + self._limits.seconds_per_mb * num_bytes / 1e6
        request = {
            "path": str(path),
            "source": source,
            "limit_s": limit_s,
            "max_chars": max(MIN_CHARS, CHARS_PER_BYTE * num_bytes),
        }
        with self._lock:
            try:
                documents, end = self._exchange(json.dumps(request).encode() + b"\n")
            except BaseException:  # the rest of the answer must not be taken for the next one
                self._end()
                raise
        match end:
            case {"exit": int(code)}:
                raise ReaderFailed(_explain_exit(code, limit_s, self._limits.memory_mb))
            case {"failed": str(name)}:
                raise ReaderFailed(f"its reader failed with {name}; repair it or save it as text")
            case {"refused": int(number)}:
                raise OSError(number, os.strerror(number))
            case {"unreadable": str(reason)}:
                raise Unreadable(reason)
        return documents, end["problems"]

    def pid(self) -> int | None:
        """The number of the process; None while none runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def close(self) -> None:
        """Ends the process; the next file starts another one."""
        with self._lock:
            self._end()

    def _exchange(self, request: bytes) -> tuple[list[Document], dict[str, Any]]:
        """The documents of a file, and the last line of the answer, or {"exit": code} if the process ended."""
        if self.pid() is None:
            self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended, which shows below
            process.stdin.write(request)
            process.stdin.flush()
        documents: list[Document] = []
        for line in process.stdout:
            if not line.endswith(b"\n"):  # it ended within
                break
            answer = json.loads(line)
            if "text" not in answer:
                return documents, answer
            documents.append(Document(page_content=answer["text"], metadata=answer["metadata"]))
        return documents, {"exit": process.wait()}

    def _start(self) -> None:
        """Starts a process, which finds Tandem where this one does. Raises RetrievalError."""
        self._end()
        command = [sys.executable, "-P", "-c", f"from {__name__} import serve; serve()"]
        folders = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
        variables = {**os.environ, "PYTHONPATH": folders, "OPENBLAS_NUM_THREADS": "1"}
        why = ""
        try:
            self._process = process = subprocess.Popen(
                [*command, str(self._limits.memory_mb)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # a traceback quotes, and is of no use next to the sentence
                env=variables,
                start_new_session=True,  # Ctrl-C is for the process that reads the answers
            )
            assert process.stdout is not None
            if not process.stdout.readline():
                why = f"exit code {process.wait()}"
        except OSError as error:
            why = error.strerror or str(error)
        if why:
            raise RetrievalError(
                f"Files are read in a process of its own, but {sys.executable} cannot be started for it ({why}); "
                "free memory and processes, or repair the installation."
            )

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


SHARED = ReaderProcess()
"""The one that everything in this process reads files with."""

atexit.register(lambda: SHARED.close())


def _explain_exit(code: int, limit_s: float, memory_mb: int) -> str:
    """A sentence on why a reader ended, with the remedy for the file."""
    if -code in _TIMED_OUT:
        return f"reading it took longer than {limit_s:.0f} s; split it or save it as text"
    if code == OUT_OF_MEMORY:
        return f"reading it needed more than {memory_mb} MB of memory; split it or save it as text"
    how = f"exit code {code}"
    with suppress(ValueError):
        how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else how
    return f"it ended its reader with {how}; repair it or save it as text"


# ---- in the reader process -----------------------------------------------------------------------------------


def serve() -> None:
    """The reader process: answers requests on stdin until that ends. Its argument: megabytes of memory."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a parser prints is no answer
    is_busy = threading.Event()
    _limit_memory(int(sys.argv[1]) * 1_000_000, is_busy)
    for number in _TIMED_OUT:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _TIMED_OUT)
    requests: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_receive, args=(requests,), daemon=True).start()

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields).encode() + b"\n")

    answer(ready=True)
    while True:
        answers.flush()
        request = json.loads(requests.get())
        _set_time(request["limit_s"])
        is_busy.set()
        try:
            _answer(request, answer)
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        is_busy.clear()
        _set_time(0)


def _limit_memory(num_bytes: int, is_busy: threading.Event) -> None:
    """Ends the process soon after it holds more; no allocation succeeds that would take it to four times as much.

    The second alone would not do, nor close behind the first: CPython 3.11 may spin where not even a small object can
    be allocated. Also says that
    a crash leaves no file behind with what was in memory.
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


def _receive(requests: SimpleQueue[bytes]) -> None:
    """Ends the process at once when the one that asks is gone, whatever a reader does."""
    for line in sys.stdin.buffer:
        requests.put(line)
    os._exit(0)


def _set_time(limit_s: float) -> None:
    """The kernel ends the process after so much processor time; never for 0."""
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    signal.setitimer(signal.ITIMER_REAL, WAIT_FACTOR * limit_s)


def _answer(request: dict[str, Any], answer: Callable[..., None]) -> None:
    """Answers one request. Raises MemoryError alone."""
    path, left = Path(request["path"]), request["max_chars"]
    problems: list[str] = []
    end: dict[str, Any] = {}
    try:
        with path.open("rb") as file:
            for document in read_file(file, path.name, request["source"], problems):
                left -= len(document.page_content)
                if left < 0:
                    raise Unreadable(f"it unpacks to more than {request['max_chars']} characters; split it")
                answer(text=document.page_content, metadata=document.metadata)
    except MemoryError:
        raise
    except Unreadable as error:
        end = {"unreadable": str(error)}
    except OSError as error:
        end = {"refused": error.errno or 0}
    except Exception as error:  # a fault of a parser
        end = {"failed": type(error).__name__}
    answer(problems=problems, **end)
