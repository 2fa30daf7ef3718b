"""Caches of prefixes on disk: one safetensors file each, mapped into memory when it is used.

    kv/                          0700: a cache shows its document
      3f9c.../                   one model, as it computes here: see `fingerprint`
        07/07ab....safetensors   0600: one prefix, named by its tokens' SHA-256

A file is written beside its place and renamed, so readers and other writers see all of it or nothing; what a crash
or a disk damaged is found by its checksum, computed again and replaced. The time of a file's last change is that of
its last use. Any number of processes may use one folder. Knows nothing of models, texts or time.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import zlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from tandem.engine.prefixes import PrefixCache

FORMAT = "tandem-prefix-1"
MAX_OPEN = 4096
"""Files that stay mapped; their pages are the system's, and count for no process."""

_SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True)
class _Opened:
    file: tuple[int, int, int]  # device, inode, bytes: another file of that name has others
    cache: PrefixCache


class PrefixFiles:
    """A store in a folder. Safe for several threads and processes."""

    def __init__(self, folder: Path, model: str, max_bytes: int, warn: Callable[[str], object]) -> None:
        """model: fingerprint of what computes. max_bytes: of all files in `folder`, of whatever model, so that those
        of a model no longer used go first. warn: is told in one sentence what was not used or not written.
        """
        self._folder, self._model = folder, model
        self._max_bytes, self._warn = max_bytes, warn
        self._opened: OrderedDict[str, _Opened] = OrderedDict()
        self._distrusted: set[str] = set()
        self._total: int | None = None  # bytes in the folder, where they were counted
        self._uncounted = 0  # bytes written since then
        self.can_write = True  # until the disk refuses
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Bytes of all files in the folder; what other processes wrote meanwhile is counted a little later."""
        if self._total is None:
            self._total = sum(size for _, size, _ in self._files())
        return self._total + self._uncounted

    @property
    def max_bytes(self) -> int:
        """What it may grow to before it forgets: a sixteenth less than the budget."""
        return self._max_bytes - self._max_bytes // 16

    def is_of_another_model(self) -> bool:
        """Whether the folder holds caches, and none that this model may use."""
        return not (self._folder / self._model).is_dir() and any(self._folder.glob("*/"))

    def name(self, tokens: Sequence[int]) -> str:
        """What the file of a prefix is called, without its suffix."""
        return sha256(array("q", tokens).tobytes()).hexdigest()

    def get(self, tokens: Sequence[int]) -> PrefixCache | None:
        """The cache of a prefix, its checksum compared when this process first opens the file; None if it is not
        there or cannot be used.
        """
        path = self._path(tokens)
        with self._lock:
            try:
                status = path.stat()
            except OSError:
                return None
            file = (status.st_dev, status.st_ino, status.st_size)
            opened = self._opened.pop(path.name, None)
            if opened is None or opened.file != file:
                cache = self._read(path, len(tokens))
                if cache is None:
                    return None
                opened = _Opened(file, cache)
            self._opened[path.name] = opened
            if len(self._opened) > MAX_OPEN:
                self._opened.popitem(last=False)
        with suppress(OSError):  # a read-only folder has no last use
            os.utime(path)
        return opened.cache

    def put(self, tokens: Sequence[int], cache: PrefixCache) -> None:
        """Write a cache; the least recently used files go where it exceeds the budget.

        The first write that the disk refuses is the last one that is tried.
        """
        if not self.can_write or cache.num_bytes > self.max_bytes:
            return
        path = self._path(tokens)
        try:
            with self._lock:
                self._uncounted += _write(path, cache, self._model)
                if self._total is None or self._uncounted > self._max_bytes - self.max_bytes:
                    self._shrink()
        except FileNotFoundError:
            pass  # the folder was removed meanwhile, for the index was built anew
        except OSError as error:
            self.can_write = False
            self._warn(
                f"The key-value store {self._folder} cannot be written ({error.strerror or error}), documents are "
                "computed for each question; free space, or lower kv_max_bytes."
            )

    def prune(self, keep: Collection[str]) -> None:
        """Remove all files, of any model, but those of this model that are called as in `keep`."""
        for path, _, _ in self._files():
            if path.parent.parent.name != self._model or path.stem not in keep:
                path.unlink(missing_ok=True)
        with suppress(FileNotFoundError):  # an index that is newer has texts that this was not told of
            os.utime(self._folder)
        self._total, self._uncounted = None, 0

    def _path(self, tokens: Sequence[int]) -> Path:
        name = self.name(tokens)
        return self._folder / self._model / name[:2] / f"{name}{_SUFFIX}"

    def _read(self, path: Path, num_tokens: int) -> PrefixCache | None:
        try:
            return _read(path, self._model, num_tokens)
        except FileNotFoundError:
            return None  # just removed by another process
        except (OSError, RuntimeError, ValueError, LookupError, TypeError, SafetensorError) as error:
            if path.name not in self._distrusted:
                self._distrusted.add(path.name)
                reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")[:100]
                self._warn(
                    f"The stored cache {path} is not used, for it is damaged or of another kind ({reason}); "
                    "it is computed again."
                )
            return None

    def _shrink(self) -> None:
        """Count the files, and remove the least recently used ones beyond the budget."""
        files = sorted(self._files(), key=lambda file: file[2])
        total = sum(size for _, size, _ in files)
        there = {path for path, _, _ in files}
        for path, size, _ in files:
            if total <= self.max_bytes:
                break
            path.unlink(missing_ok=True)
            there.remove(path)
            total -= size
        self._total, self._uncounted = total, 0
        own = {path.name for path in there if path.parent.parent.name == self._model}
        for name in self._opened.keys() - own:  # mapped, a removed file would still take the disk's room
            del self._opened[name]

    def _files(self) -> list[tuple[Path, int, int]]:
        """Path, bytes and time of last use of every file, also of what a killed writer left."""
        found = []
        for path in self._folder.glob("*/*/*"):
            with suppress(OSError):  # just removed by another process
                status = path.stat()
                found.append((path, status.st_size, status.st_mtime_ns))
        return found


def remove(folder: Path) -> None:
    """Remove a store: its documents are no longer those of the index. What reads it goes on."""
    shutil.rmtree(folder, ignore_errors=True)


def tensors(cache: PrefixCache) -> dict[str, torch.Tensor]:
    """A cache's tensors by the names that they have in a file."""
    named = {f"{index}.keys": tensor for index, tensor in enumerate(cache.keys)}
    return named | {f"{index}.values": tensor for index, tensor in enumerate(cache.values)}


def cache_of(get: Callable[[str], torch.Tensor], num_layers: int, num_tokens: int) -> PrefixCache:
    """Inverse of `tensors`; ValueError if a tensor has another number of tokens."""
    keys = tuple(get(f"{index}.keys") for index in range(num_layers))
    values = tuple(get(f"{index}.values") for index in range(num_layers))
    for tensor in keys + values:
        if tensor.ndim != 3 or tensor.shape[1] != num_tokens:
            raise ValueError(f"a tensor of shape {tuple(tensor.shape)} for {num_tokens} tokens")
    return PrefixCache(keys=keys, values=values)


def _read(path: Path, model: str, num_tokens: int) -> PrefixCache:
    """One file, mapped. Raises OSError, or whatever comes of its content."""
    # By its descriptor, since safe_open opens twice, and another process may replace or remove the file in between.
    with path.open("rb") as whole, safe_open(f"/dev/fd/{whole.fileno()}", "pt") as file:
        about = dict(json.loads((file.metadata() or {})["tandem"]))
        if about["format"] != FORMAT or about["name"] != path.stem:
            raise ValueError("it is no cache of this prefix")
        if about["model"] != model:
            raise ValueError("it was made by another model")
        cache = cache_of(file.get_tensor, len(file.keys()) // 2, num_tokens)
    if _checksum(cache) != about["checksum"]:
        raise ValueError("it does not match its checksum")
    return cache


def _write(path: Path, cache: PrefixCache, model: str) -> int:
    """One file, whole or not at all; its number of bytes.

    Not flushed to the disk: after a power cut the checksum finds what is missing, and nobody waits for the disk.
    """
    about = {"format": FORMAT, "name": path.stem, "model": model, "checksum": _checksum(cache)}
    content = save(tensors(cache), {"tandem": json.dumps(about)})
    for folder in reversed(path.parents[:3]):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".writing-", delete=False) as file:  # 0600
        try:
            file.write(content)
            file.flush()
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
    return len(content)


def _checksum(cache: PrefixCache) -> int:
    """CRC-32 of all names, types, shapes and bytes: found faster than the memory is read, against accidents."""
    value = 0
    for name, tensor in tensors(cache).items():
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        value = zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data, value)
    return value
