"""Watching the files of an index: here until it is stopped, or in a process next to the one that answers.

    retriever --settings, then nothing more--> stdin of the process
    stdout of the process --a line of JSON for each line of the log--> retriever's log

The process has its own embedder and a low priority, so that embedding does not hold up answers. It ends with the one
that started it, also if that is killed: then its stdin ends. It may be killed at any time itself, and is started again.
What to look at and what to do then: `tandem.plugins.watching.follower`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from tandem.actors.loading import drop_stale_caches, load_embedder
from tandem.config.schema import Config
from tandem.errors import RetrievalError, install_line
from tandem.plugins.watching.follower import Follower, is_below
from tandem.retrieval.build import BuildReport
from tandem.retrieval.embedding import TextEmbedder
from tandem.retrieval.store import BUSY_S, NAME, NICENESS, IndexBusyError, claimed
from tandem.system.file_kinds import kind_of
from tandem.system.processes import environment

_log = logging.getLogger("tandem")

QUIET_S, LONGEST_S = 0.3, 1.5
"""A look follows an event after so much quiet, and however much goes on after so long."""
RESCAN_S = 60.0
"""Between two looks that no event asks for."""
FAILED_S = 5.0
"""When to look again after a look that failed."""
POLL_S, BREATH = 2.0, 10
"""Between two looks where there are no events: so long, and this many times as long as one takes."""
TICK_S = 1.0
"""Between two looks at the roots themselves, which may go and come back with a disk."""
WITHOUT_EVENTS = frozenset(
    "9p afs ceph cifs davfs drvfs fuse glusterfs lustre ncpfs nfs nfs4 prl_fs smb3 smbfs vboxsf virtiofs vmhgfs".split()  # noqa: SIM905
)
"""Kinds of file systems that others change without a word to this machine's kernel."""
RESTART_S = 10.0
"""When to start it again after it ended by itself."""
WAIT_S = 5.0
"""When to try again where there is nothing to watch, or another process watches."""


class Events:
    """Says when something changes in the folders of an index, by the events of the system where there are any."""

    def __init__(self, directory: Path) -> None:
        """directory: of the index, which is not listened in."""
        self.changed = threading.Event()
        self.why_none: str | None = (
            None  # why folders must be looked at again and again; None: there are events
        )
        self._own = os.path.realpath(directory)
        self._roots: list[tuple[str, int, int]] = []
        self._folders: list[tuple[str, int, int]] = []  # that are listened in
        self._is_stale = threading.Event()  # there may be others
        self._stop = threading.Event()

    def cover(self, roots: Sequence[str]) -> bool:
        """Listens in these roots and the folders below; whether that is new, as they are others or were replaced."""
        identities = [_identity(root if os.path.isdir(root) else os.path.dirname(root)) for root in roots]
        if identities == self._roots and not self._is_stale.is_set():
            return False
        self._roots = identities
        self._is_stale.clear()
        folders = [_identity(folder) for root in roots for folder in folders_of(root, self._own)]
        if folders == self._folders:
            return False
        self.close()
        self._folders = folders
        self.why_none = self._listen()
        return True

    def close(self) -> None:
        """Ends the thread."""
        self._stop.set()

    def _listen(self) -> str | None:
        try:
            from watchfiles._rust_notify import RustNotify
        except ImportError:
            return f"the package watchfiles is not installed; run `{install_line('watch')}`"
        for folder, *_ in self._roots:
            if (kind := file_system(folder)).partition(".")[0] in WITHOUT_EVENTS:
                return f"{folder} is on a file system ({kind}) that others change without an event"
        paths = [folder for folder, *rest in self._folders if any(rest)]
        try:  # one by one: by itself, it would go through links
            events = RustNotify(paths, False, False, 0, recursive=False, ignore_permission_denied=True)
        except FileNotFoundError:
            self._is_stale.set()
            return None
        except UnicodeEncodeError:
            return "the name of a folder is not UTF-8"
        except OSError as error:
            return f"the system has no events left ({error}; see fs.inotify.max_user_watches)"
        self._stop = threading.Event()
        threading.Thread(target=self._pass_on, args=(events, self._stop), daemon=True).start()
        return None

    def _pass_on(self, events: Any, stop: threading.Event) -> None:
        with events:
            while True:
                try:
                    changes = events.watch(int(1000 * LONGEST_S), int(1000 * QUIET_S), 0, stop)
                except RuntimeError:  # of a name that is not UTF-8, for one
                    self._folders = []
                    self._is_stale.set()
                    self.changed.set()
                    return
                if isinstance(changes, str):
                    return
                self.handle(path for _, path in changes)

    def handle(self, paths: Iterable[str]) -> None:
        """Notes what may concern a document."""
        folders = {folder for folder, *_ in self._folders}
        for path in paths:
            is_folder = os.path.isdir(path) and not os.path.islink(path)
            if is_folder:
                self._is_stale.set()
            if is_folder or path in folders or kind_of(path) is not None:
                self.changed.set()


def folders_of(root: str, own: str) -> Iterator[str]:
    """The folders whose files a look at a root finds. Links are not followed. own: is left out."""
    if not os.path.isdir(root):
        yield os.path.realpath(os.path.dirname(root))
        return
    top = os.path.realpath(root)
    for folder, names, files in os.walk(top):
        if NAME in files and folder != top:
            names.clear()
            continue
        names[:] = [name for name in names if name[0] != "." and os.path.join(folder, name) != own]
        yield folder


def _identity(folder: str) -> tuple[str, int, int]:
    """What tells a folder from another one in its place; nothing if it is not there."""
    folder = os.path.realpath(folder)
    try:
        status = os.stat(folder)
    except OSError:
        return (folder, 0, 0)
    return (folder, status.st_dev, status.st_ino)


def file_system(path: str) -> str:
    """The kind of file system of a path, as the kernel calls it; "" where it does not say."""
    best, kind = "", ""
    with suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(errors="surrogateescape").splitlines():
            _, place, name, *_ = line.split(" ")
            place = place.replace("\\040", " ")
            if len(place) >= len(best) and is_below(path, place):
                best, kind = place, name
    return kind


def follow(
    directory: Path,
    embedder: TextEmbedder,
    options: Mapping[str, Any],
    on_change: Callable[[BuildReport], object] = lambda report: None,
    stop: threading.Event | None = None,
) -> None:
    """Keeps an index up to date until `stop` is set, or for ever. Arguments as of `Follower`; on_change: called after
    each change of the index. What happens is logged.

    Raises IndexBusyError if another process does, and RetrievalError as `Follower`.
    """
    stop = stop or threading.Event()
    with claimed(directory) as lock:
        follower = Follower(directory, embedder, options)
        with closing(Events(directory)) as events:
            due_s, is_rescan, period_s = time.monotonic(), False, RESCAN_S
            while not stop.is_set():
                if events.cover(follower.roots):
                    due_s, is_rescan = min(due_s, time.monotonic() + QUIET_S), False
                if events.why_none is not None and period_s == RESCAN_S:
                    _log.warning("The folders are looked at every %g s: %s.", POLL_S, events.why_none)
                period_s = RESCAN_S if events.why_none is None else POLL_S
                left_s = min(due_s - time.monotonic(), TICK_S)
                if left_s > 0 and not events.changed.wait(left_s):
                    continue
                is_rescan = is_rescan and not events.changed.is_set()
                events.changed.clear()
                began_s = time.monotonic()
                report, retry_s = _look(follower)
                os.utime(lock)
                took_s = time.monotonic() - began_s
                if report is not None:
                    on_change(report)
                    _log.info(
                        "Brought up to date in %.1f s: %d added, %d replaced, %d deleted of %d chunks.",
                        took_s,
                        report.num_added,
                        report.num_replaced,
                        report.num_deleted,
                        report.num_chunks,
                    )
                    if is_rescan and not events.changed.is_set() and events.why_none is None:
                        events.why_none = "something changed without an event"
                elif retry_s is None and events.why_none is not None:
                    retry_s = max(POLL_S, POLL_S if follower.num_read else BREATH * took_s)
                is_rescan = retry_s is None
                due_s = time.monotonic() + (period_s if retry_s is None else retry_s)


def _look(follower: Follower) -> tuple[BuildReport | None, float | None]:
    """What one look changed, and when to look again though nothing changes."""
    try:
        report = follower.look(time.time_ns())
        return report, 0.0 if follower.is_behind else None
    except IndexBusyError:
        return None, BUSY_S
    except (RetrievalError, OSError) as error:
        follower.say(str(error))
        return None, FAILED_S


def follow_here(party: str, config: Config, folder: Path, embedder: TextEmbedder) -> None:
    """`follow` the folders of a party's index in this process, for ever."""
    follow(folder, embedder, config.retrieval.build_options, drop_lost_caches(config, party, folder))


# ---- a process that follows, next to the one that answers -----------------------------------------------------


async def watch_beside(party: str, config: Config) -> None:
    """Runs the process until this is cancelled, and logs what it says."""
    settings = json.dumps({"party": party, "config": config.to_json()}).encode() + b"\n"
    while True:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", f"from {__name__} import main; main()"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,  # a traceback quotes
            env=environment(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1"),
            start_new_session=True,  # Ctrl-C is for the process that answers
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(settings)
            async for line in process.stdout:
                level, text = json.loads(line)
                _log.log(level, "%s: %s", party, text)
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        _log.warning(
            "%s: the process that watches ended with exit code %d and is started again.", party, code
        )
        await asyncio.sleep(RESTART_S)


def drop_lost_caches(config: Config, party: str, folder: Path) -> Callable[[BuildReport], None]:
    """What follows a change of the index: if it lost chunks, so do the stored caches."""

    def drop(report: BuildReport) -> None:
        if report.num_deleted or report.num_replaced:
            drop_stale_caches(config, party, folder)

    return drop


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line for the process that started this one."""
        print(json.dumps([record.levelno, record.getMessage()]), flush=True)  # noqa: T201


def main() -> None:
    """The process: watches until its stdin ends."""
    os.nice(NICENESS)
    settings = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
    logger = logging.getLogger("tandem")
    logger.setLevel(logging.INFO)
    logger.addHandler(_Lines())
    party, config = settings["party"], Config.from_json(settings["config"])
    embedder = load_embedder(config, num_threads=1)
    folder = Path(config.party(party).index)
    reason = ""
    while True:
        try:
            follow_here(party, config, folder, embedder)
        except RetrievalError as error:
            if str(error) != reason:
                logger.warning("%s", reason := str(error))
        time.sleep(WAIT_S)
