"""Replaces an index on disk as a whole or not at all.

    index/
      manifest.json      names the current folder; replaced by one atomic rename
      data-7/            the files of the current index
      .lock              held by the one process that builds
      .building-.../     a build in progress, or what a killed one left; removed by the next

A build writes into a folder of its own, flushes it to disk, renames it, then replaces the manifest: before
that instant the old index is whole, after it the new one is. Only their owner may read the files. Knows nothing of
what they contain.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from tandem.errors import RetrievalError
from tandem.retrieval import manifest as manifests
from tandem.retrieval.manifest import Manifest

_STAGING = ".building-"
_DATA = "data-"
_PRIVATE = 0o700


@contextmanager
def staging(directory: Path) -> Iterator[Path]:
    """An empty folder inside `directory` to build in, for one builder at a time.

    Removed again at the end if it was not published. Raises RetrievalError if another process builds there,
    or when the disk refuses; what was indexed before is then untouched.
    """
    try:
        directory.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        with _lock(directory):
            _remove(directory, _STAGING)
            folder = directory / f"{_STAGING}{os.getpid()}"
            folder.mkdir(mode=_PRIVATE)
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise RetrievalError(
            f"The index {directory} could not be written ({error.strerror or error}); what it held before "
            "is kept: "
            "free space or check its rights, then build again."
        ) from error


def publish(directory: Path, folder: Path, manifest: Manifest) -> Manifest:
    """Makes the finished files in `folder` (from `staging`) the index, and drops the one before.

    Returns the manifest with the folder's final name. Readers see the old index or the new one, never a
    mixture.
    """
    final = _next_name(directory)
    manifest = replace(manifest, folder=final)
    for path in folder.iterdir():
        _flush(path)
    _flush(folder)
    folder.rename(directory / final)
    draft = directory / f"{_STAGING}{manifests.NAME}"
    draft.touch(mode=0o600)  # it holds the key of the ids
    manifests.write(draft, manifest)
    _flush(draft)
    _flush(directory)
    os.replace(draft, directory / manifests.NAME)
    _flush(directory)
    _remove(directory, _DATA, keep=final)
    return manifest


def has_leftovers(directory: Path) -> bool:
    """Whether there are files of other indexes than the current one. RetrievalError if there is none."""
    current = manifests.read(directory).folder
    return any(path.name != current for path in directory.glob(f"{_DATA}*"))


def remove_leftovers(directory: Path) -> None:
    """Drops the files of other indexes, within `staging`: a build that was killed left them."""
    _remove(directory, _DATA, keep=manifests.read(directory).folder)


def make_private(directory: Path) -> None:
    """Lets only their owner read the files of an index that was written with wider rights."""
    with suppress(OSError):  # another user's, who alone may change them
        (directory / manifests.NAME).chmod(0o600)
        (directory / manifests.read(directory).folder).chmod(_PRIVATE)


@contextmanager
def _lock(directory: Path) -> Iterator[None]:
    """Holds the builder's lock, which the system frees when the process ends in whatever way."""
    import fcntl

    with (directory / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RetrievalError(
                f"One process at a time may build an index, and another is building {directory}; wait for it."
            ) from None
        yield


def _next_name(directory: Path) -> str:
    """A data folder's name that was not used while any present one was."""
    used = [path.name.removeprefix(_DATA) for path in directory.glob(f"{_DATA}*")]
    return f"{_DATA}{1 + max((int(name) for name in used if name.isdigit()), default=0)}"


def _remove(directory: Path, prefix: str, keep: str = "") -> None:
    """Removes what starts with `prefix`; what cannot be removed stays for the next builder."""
    for path in directory.glob(f"{prefix}*"):
        if path.name == keep:
            continue
        shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Waits until a file's or folder's content is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
