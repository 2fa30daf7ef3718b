"""Files that this user alone may read: keys, tokens, records of what runs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from tandem.errors import ConfigError

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700


def make_folder(folder: Path) -> None:
    """A folder for this user alone; an existing one stays as it is. Raises ConfigError."""
    try:
        folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"The folder {folder} cannot be made ({error.strerror}); check the permissions above it."
        ) from None


def write_private(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, also on a full disk; it is on the disk then. Raises ConfigError."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE)
            with open(descriptor, "wb") as file:
                os.fchmod(descriptor, PRIVATE_FILE)
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            draft.replace(path)
            _flush(path.parent)
        finally:
            with contextlib.suppress(FileNotFoundError):
                draft.unlink()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror}); what was there before is kept. Check the disk and the "
            "folder's permissions."
        ) from None


def _flush(folder: Path) -> None:
    """Have a new name in it outlive a power failure, where the file system can promise that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_private(path: Path) -> bytes | None:
    """The content; None if there is no such file. Raises ConfigError where others may read it, too."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise ConfigError(
                    f"{path} must be readable by this user alone, but has mode {mode:04o}; if nobody else has seen "
                    f"it, run `chmod 600 {path}`, otherwise delete it and start again."
                )
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); check its permissions.") from None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes that lock this file waiting. Raises ConfigError."""
    make_folder(path.parent)
    with open_lock(path) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def open_lock(path: Path) -> Iterator[int]:
    """The descriptor of a file to lock. Raises ConfigError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be opened ({error.strerror}); check the disk and the folder's permissions."
        ) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)
