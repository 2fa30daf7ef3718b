"""Finding and opening the files of a folder that others may change meanwhile.

Whoever can write to a folder can put a link in the place of a file or folder at any moment, also between two looks at
it. So nothing below a root is opened by its path: every step goes from an open folder to a name in it and follows no
link. A link to another file of the same root is resolved first, and its target is opened like that. The root itself is
what the user named; it may be a link. A hard link is a file like any other.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tandem.retrieval.documents import readable_name
from tandem.retrieval.readers import Unreadable, shorten
from tandem.retrieval.store import NAME

MAX_SHOWN_CHARS = 300
"""Of the path of a folder that cannot be read."""
_LOCK = "~$"
"""Begins the names of files by which office programs know that a document is open."""
MAX_FOLDERS, MAX_PATH_BYTES = 255, 4096
"""Folders within each other, and the length of their path, as file systems have it for paths."""
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY  # a pipe holds up nobody
_FOLLOWED_FOLDER = _READ | os.O_DIRECTORY
_FOLDER = _FOLLOWED_FOLDER | os.O_NOFOLLOW
_LINK_ERRORS = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)
"""What systems answer to who opens a link and does not follow it."""


class ReplacedError(Unreadable):
    """Something else stands where a file or folder was listed."""

    def __init__(self) -> None:
        super().__init__("it was replaced after it was listed, and links are not followed; index it again")


class Opened:
    """An open file of a root."""

    def __init__(self, folder: int | None, name: str) -> None:
        """folder: that holds the name, open; None: the name is the path of a root. Raises OSError, and Unreadable for
        what could hold up a reader."""
        self._folder, self._name = folder, name
        self._check(self._look())
        self.descriptor = os.open(name, _READ | (0 if folder is None else os.O_NOFOLLOW), dir_fd=folder)
        try:
            self._state = self._check(os.fstat(self.descriptor))
        except Unreadable:
            os.close(self.descriptor)
            raise

    def is_unchanged(self) -> bool:
        """Whether nobody wrote to it, and it is still what its name stands for. FileNotFoundError if that is gone."""
        try:
            return self._state == self._check(os.fstat(self.descriptor)) == self._check(self._look())
        except FileNotFoundError:
            raise
        except (OSError, Unreadable):
            return False

    def _look(self) -> os.stat_result:
        return os.stat(self._name, dir_fd=self._folder, follow_symlinks=self._folder is None)

    def _check(self, status: os.stat_result) -> tuple[int, ...]:
        """What differs if a file was written to or replaced."""
        if stat.S_ISLNK(status.st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if stat.S_ISDIR(status.st_mode):
            raise ReplacedError
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable("it is a pipe, socket or device, not a file; remove it")
        return *_identity(status), status.st_size, status.st_mtime_ns


class Root:
    """A file or folder that the user named."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if it is not there."""
        self.path = path
        self._identity = _identity(path.stat())
        self._real = os.path.realpath(path)

    def files(self, denied: Callable[[str, str], None], outside: list[str]) -> Iterator[RootFile]:
        """Every visible file, folder by folder, each in the order of names; folders that hold an index are passed over.

        denied: called with a folder that cannot be read, and why. outside: receives links that lead out of the root,
        which are not followed.
        """
        if self.path.is_file():
            yield RootFile(self, (), (), False, self.path.stat())
            return
        left: list[tuple[str, ...]] = [()]
        while left:
            place = left.pop()
            try:
                folders, files = self._list(place, outside)
            except ReplacedError as error:
                denied(_name_of(place), str(error))
            except OSError as error:
                is_link = bool(place) and error.errno in _LINK_ERRORS
                why = f"the folder cannot be read ({error.strerror}); check its rights"
                denied(shorten(_name_of(place), MAX_SHOWN_CHARS), str(ReplacedError()) if is_link else why)
            else:
                yield from files
                left += reversed(folders)

    def open_folder(self, place: Sequence[str]) -> int:
        """A descriptor of a folder in it. Raises OSError, also where a part is a link, and ReplacedError."""
        if len(place) > MAX_FOLDERS or len(os.fsencode("/".join(place))) > MAX_PATH_BYTES:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        folder = os.open(self.path, _FOLLOWED_FOLDER)
        try:
            if _identity(os.fstat(folder)) != self._identity:
                raise ReplacedError
            for name in place:
                inner = os.open(name, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = inner
        except BaseException:
            os.close(folder)
            raise
        return folder

    def _list(
        self, place: tuple[str, ...], outside: list[str]
    ) -> tuple[list[tuple[str, ...]], list[RootFile]]:
        folders: list[tuple[str, ...]] = []
        files: list[RootFile] = []
        folder = self.open_folder(place)
        try:
            with os.scandir(folder) as entries:
                shown = sorted((each for each in entries if each.name[0] != "."), key=lambda each: each.name)
            if place and any(each.name == NAME for each in shown):
                return [], []
            for entry in shown:
                here = (*place, entry.name)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(here)
                    continue
                inside = self._target(here) if entry.is_symlink() else here
                try:
                    status = entry.stat()
                except OSError:
                    status = None
                is_folder = status is not None and stat.S_ISDIR(status.st_mode)
                if inside is None:
                    outside.append(_name_of(here))
                elif not (is_folder or entry.name.startswith(_LOCK)):
                    files.append(RootFile(self, here, inside, entry.is_symlink(), status))
        finally:
            os.close(folder)
        return folders, files

    def _target(self, place: tuple[str, ...]) -> tuple[str, ...] | None:
        """Where a link leads, below the root; None where it leads out of it."""
        try:
            target = os.path.realpath(self.path.joinpath(*place))
        except OSError:  # it was replaced meanwhile; who opens it will see
            return place
        if os.path.commonpath([self._real, target]) != self._real:
            return None
        return Path(os.path.relpath(target, self._real)).parts


class RootFile(NamedTuple):
    """A file of a root."""

    root: Root
    listed: tuple[str, ...]  # where it was listed, below the root; () for a root that is a file
    inside: tuple[str, ...]  # where it is, without links
    is_link: bool  # it was listed as one, to something in the root
    status: os.stat_result | None  # when it was listed; None where it was gone, or a link to nowhere

    @property
    def path(self) -> Path:
        """For people and as a key; never to open it."""
        return self.root.path.joinpath(*self.listed)

    @property
    def name(self) -> str:
        """Its name below the root, or that of the root."""
        return _name_of(self.listed or (self.root.path.name,))

    @contextmanager
    def opened(self) -> Iterator[Opened]:
        """The file, open. Raises OSError, and Unreadable for what is no file or not what was listed."""
        with ExitStack() as stack:
            try:
                folder = self.root.open_folder(self.inside[:-1]) if self.inside else None
                if folder is not None:
                    stack.callback(os.close, folder)
                file = Opened(folder, self.inside[-1] if self.inside else str(self.root.path))
                stack.callback(os.close, file.descriptor)
            except OSError as error:
                if self.inside and not self.is_link and error.errno in _LINK_ERRORS:
                    raise ReplacedError from None
                raise
            yield file


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _name_of(place: Sequence[str]) -> str:
    return readable_name("/".join(place)) or "."
