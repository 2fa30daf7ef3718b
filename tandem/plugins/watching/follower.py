"""Keeping an index up to date with the folders that it was built from, while they change.

    file system --something changed, then quiet--> Follower.look --sources that changed--> replace_sources

Events say when to look, never what to do. A look walks the folders, reads the files whose state is not the one that was
seen, and compares what the index holds with what was read. So a lost event, a kill or another process that builds the
index costs time, but nothing else: the next look finds what is missing. The states are kept in the index, each with a
digest of what it held of the file then; they are trusted only while it holds just that.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tandem.errors import RetrievalError
from tandem.retrieval.build import (
    DEFAULTS,
    GIVEN,
    BuildReport,
    describe_kept,
    names_of,
    replace_sources,
    source_of,
)
from tandem.retrieval.documents import Cutting, Passage, readable_name
from tandem.retrieval.embedding import TextEmbedder
from tandem.retrieval.folders import RootFile
from tandem.retrieval.index import Index
from tandem.retrieval.loaders import read_files, walk_path
from tandem.retrieval.store import IndexBusyError, Manifest, Snapshot, writing
from tandem.system import __version__

_log = logging.getLogger("tandem")

AT_ONCE_BYTES = 64_000
"""Of new files that one look reads, more or less: what changes while a large folder is new need not wait for all of it.
Of those that the index knows it reads KNOWN_COST times as many, as little of them has to be embedded."""
KNOWN_COST = 16
SETTLED_NS = 3_000_000_000
"""A file that changed so shortly before it was seen may change again without showing it, as some file systems count
time in steps of two seconds. It is read once more."""


@dataclass(slots=True)
class Seen:
    """One file as it was when it was last read."""

    source: str
    state: list[int] | None  # size, times of change in ns, inode; None: it must be read again
    is_elsewhere: bool  # on another file system than its root
    holds: dict[str, str] = field(default_factory=dict)  # what the index held of it then: digest by source


class Follower:
    """Brings one index up to date, again and again. Its roots are those that the index remembers at each look."""

    def __init__(self, directory: Path, embedder: TextEmbedder, options: Mapping[str, Any]) -> None:
        """options: of `update_index`, on how documents are cut and indexed. What is wrong with files is logged once.

        Raises RetrievalError where there is no index, or none that was built from files.
        """
        self.roots: list[str] = []
        self.is_behind = False  # whether the last look left files for the next one
        self.num_read = 0  # files that it read
        self._directory, self._embedder, self._options = directory, embedder, options
        # What chunks depend on besides the files.
        self._form = f"{__version__} {embedder.fingerprint} {sorted(options.items())}"
        chunk_chars = options.get("chunk_chars", DEFAULTS.chunk_chars)
        self._cutting = Cutting(chunk_chars, options.get("overlap", DEFAULTS.chunk_overlap))
        self._manifest: Manifest | None = None  # of the index whose content is known
        self._digests: dict[str, str] = {}  # of that content, by source
        self._absent: set[str] = set()  # roots without a file to read
        self._logged: set[str] = set()
        self._read_index()
        self._files = self._load_states()

    def look(self, now_ns: int) -> BuildReport | None:
        """Makes the index what a build would make of the files now; None if it was that already.

        Of many changes it takes the latest ones, and is behind. A file that cannot be read, and a root or file system
        that is not there, keep what the index holds of them. now_ns: since 1970, as of changes of files. Raises
        RetrievalError (IndexBusyError where it is enough to look again) or OSError; the index is then as it was.
        """
        roots = self._read_index()
        names = names_of(roots)
        files: dict[str, Seen] = {}
        stale_files: dict[str, RootFile] = {}
        absent: set[str] = set()
        problems: list[str] = []
        for root, name in zip(roots, names, strict=True):
            below = self._walk(Path(root), name, stale_files, problems)
            if not below:
                absent.add(root)
                below = {path: seen for path, seen in self._files.items() if is_below(path, root)}
            files |= below
        self._log_absent(absent)
        if self._files:  # of what is left out on the way, the first look speaks
            problems.clear()
        stale = {path: _state(file.status) for path, file in stale_files.items() if file.status is not None}
        factors = {path: KNOWN_COST if files[path].source in self._digests else 1 for path in stale}
        now = latest(stale, {path: state[0] / factors[path] for path, state in stale.items()})
        self.is_behind, self.num_read = len(now) < len(stale), len(now)
        loaded = read_files(
            [(stale_files[path], files[path].source) for path in now], problems, self._cutting
        )
        changed = {files[path].source for path in now} - loaded.failed
        owners = _owners(self._digests, {seen.source for seen in files.values()})
        gone = {s for s, owner in owners.items() if not owner and _root_of(s, roots, names) not in absent}
        replaced = {s for s, owner in owners.items() if owner in changed} | changed | gone
        self.say(*problems, *describe_kept(sorted(loaded.failed & self._digests.keys())))
        report = self._replace(replaced, loaded.documents) if replaced else None
        self._note(files, {path: stale[path] for path in now}, loaded.failed, now_ns)
        return report

    def _walk(
        self, root: Path, name: str, stale_files: dict[str, RootFile], problems: list[str]
    ) -> dict[str, Seen]:
        """The files below a root, by path; those that must be read also go to `stale_files`."""
        files: dict[str, Seen] = {}
        with suppress(OSError):
            device = root.stat().st_dev
            for file, source in walk_path(root, name, problems):
                if file.status is None:
                    continue
                path = str(file.path)
                seen = self._files.get(path)
                if seen is None or not self._is_current(seen, source, _state(file.status)):
                    seen = Seen(source, None, file.status.st_dev != device)
                    stale_files[path] = file
                files[path] = seen
            if files:
                for path, seen in self._files.items():
                    is_gone = path not in files and is_below(path, str(root))
                    if is_gone and _is_out_of_reach(path, seen, device):
                        files[path] = seen
        return files

    def _is_current(self, seen: Seen, source: str, state: list[int]) -> bool:
        holds = all(self._digests.get(name) == digest for name, digest in seen.holds.items())
        return seen.state == state and seen.source == source and holds

    def _replace(self, replaced: set[str], passages: Sequence[Passage]) -> BuildReport | None:
        """Brings sources up to date, and notes what the index holds from now on."""
        with Index.open(self._directory, self._embedder.fingerprint) as previous:
            if previous.manifest != self._manifest:
                raise _changed(self._directory)
            others = {name: self._options[name] for name in self._options.keys() - {"chunk_chars", "overlap"}}
            others["roots"] = list(previous.manifest.roots)
            report = replace_sources(
                previous, self._embedder, replaced, passages, self._cutting, problems=[], **others
            )
        if report.is_unchanged:
            return None
        with Snapshot(self._directory) as snapshot:
            if snapshot.manifest != report.manifest:  # what was written was replaced already
                raise _changed(self._directory)
            kept = {source: digest for source, digest in self._digests.items() if source not in replaced}
            self._digests = kept | snapshot.digests(replaced | {source_of(each) for each in passages})
            self._manifest = snapshot.manifest
        return report

    def _read_index(self) -> list[str]:
        with Snapshot(self._directory) as snapshot:
            manifest = snapshot.manifest
            if not manifest.roots or GIVEN in manifest.roots:
                raise RetrievalError(
                    f"Only an index of files can follow them, but {self._directory} was built from {GIVEN}; build it "
                    "again from a file or folder with `tandem index PARTY PATH --replace`."
                )
            if manifest != self._manifest:
                self._digests = snapshot.digests()
                self._manifest = manifest
        self.roots = list(manifest.roots)
        return self.roots

    def _note(
        self, files: dict[str, Seen], read: Mapping[str, list[int]], failed: Collection[str], now_ns: int
    ) -> None:
        """Keeps what is known of all files, here and beside the index. read: states of those that were read now."""
        sources = {files[path].source for path in read}
        holds: dict[str, dict[str, str]] = {}
        for source, owner in _owners(self._digests, sources).items():
            if owner:
                holds.setdefault(owner, {})[source] = self._digests[source]
        for path, state in read.items():
            seen = files[path]
            seen.holds = holds.get(seen.source, {})
            is_settled = now_ns - max(state[1:3]) > SETTLED_NS
            can_be_read = seen.source not in failed or os.access(path, os.R_OK)
            seen.state = state if is_settled and can_be_read else None
        if read or files.keys() != self._files.keys():
            self._files = files
            self._save_states()

    def _save_states(self) -> None:
        files = {path: [f.source, f.state, f.is_elsewhere, f.holds] for path, f in self._files.items()}
        body = json.dumps({"form": self._form, "files": files})
        with (
            suppress(RetrievalError),
            writing(self._directory, self._manifest) as writer,
        ):  # else they are read again
            writer.write_watched(body)

    def _load_states(self) -> dict[str, Seen]:
        with Snapshot(self._directory) as snapshot:
            kept = json.loads(snapshot.watched() or "{}")
        if kept.get("form") != self._form:
            return {}
        return {path: Seen(*values) for path, values in kept["files"].items()}

    def say(self, *sentences: str) -> None:
        """Log what was not said before."""
        for sentence in sentences:
            if sentence not in self._logged:
                self._logged.add(sentence)
                _log.warning("%s", sentence)

    def _log_absent(self, absent: set[str]) -> None:
        for root in sorted(absent - self._absent):
            _log.warning(
                "%s holds no file that can be read now, so the index keeps what it has of it; bring it back, or take "
                "it out of the index with `tandem index PARTY --delete` or `--replace`.",
                readable_name(root),
            )
        for root in sorted(self._absent - absent):
            _log.info("%s is back.", readable_name(root))
        self._absent = absent


def _state(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _changed(directory: Path) -> IndexBusyError:
    return IndexBusyError(f"The index {directory} was changed by another process meanwhile; look again.")


def is_below(path: str, root: str) -> bool:
    """Whether a path is that of a root, or of something in it."""
    return path == root or path.startswith(os.path.join(root, ""))


def _is_out_of_reach(path: str, seen: Seen, device: int) -> bool:
    """Whether a file that is not there any more may be back with its file system, or with a folder's rights.

    device: of its root.
    """
    folder = os.path.dirname(path)
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    is_gone = seen.is_elsewhere and os.stat(folder).st_dev == device
    return is_gone or not os.access(folder, os.R_OK | os.X_OK)


def latest(stale: Mapping[str, list[int]], costs: Mapping[str, float]) -> list[str]:
    """The files that one look reads: those that changed last, while `costs` are up to `AT_ONCE_BYTES`, in the order of
    `stale`.
    """
    left, now = float(AT_ONCE_BYTES), set[str]()
    for path in sorted(stale, key=lambda path: stale[path][2], reverse=True):
        if left <= 0:
            break
        left -= costs[path]
        now.add(path)
    return [path for path in stale if path in now]


def _owners(sources: Iterable[str], files: Collection[str]) -> dict[str, str]:
    """The file that each source came from: itself, or one that holds it as a folder would; "" for none of these."""
    owners: dict[str, str] = {}
    for source in sources:
        owner = source
        while owner and owner not in files:
            owner = owner.rpartition("/")[0]
        owners[source] = owner
    return owners


def _root_of(source: str, roots: Sequence[str], names: Sequence[str]) -> str:
    named = zip(roots[1:], names[1:], strict=True)
    return next((root for root, name in named if is_below(source, name)), roots[0])
