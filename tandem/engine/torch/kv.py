"""Keys and values of one document, and a store of them on disk."""

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


@dataclass(frozen=True, slots=True)
class DocumentCache:
    """Keys and values of one document's tokens; read only."""

    keys: tuple[torch.Tensor, ...]  # [layers] of [key-value heads, tokens, head size]
    values: tuple[torch.Tensor, ...]  # [layers] of [key-value heads, tokens, head size]

    @property
    def num_tokens(self) -> int:
        """Length of the document part, beginning-of-sequence included."""
        return self.keys[0].shape[1]

    @property
    def num_bytes(self) -> int:
        """Size of the tensors."""
        return sum(tensor.nbytes for tensor in self.keys + self.values)


FORMAT = "tandem-prefix-1"
"""As version 0.1 wrote it, so that its files stay valid."""
MAX_OPEN = 4096
"""Files that stay mapped; their pages belong to the system's cache and count for no process."""

_SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True)
class _OpenFile:
    identity: tuple[int, int, int]  # device, inode, bytes: another file of that name has others
    cache: DocumentCache


class DiskStore:
    """A `CacheStore` in a folder. Safe for several threads and processes."""

    def __init__(self, folder: Path, model: str, max_bytes: int, warn: Callable[[str], object]) -> None:
        """model: `fingerprint_computation`. max_bytes: of all files in `folder`, of whatever model, so that those of a
        model no longer used are evicted first. warn: receives a sentence about what was not used or not written.
        """
        self._folder, self._model = folder, model
        self._max_bytes, self._warn = max_bytes, warn
        self._open: OrderedDict[str, _OpenFile] = OrderedDict()
        self._reported: set[str] = set()
        self._counted: int | None = None  # bytes in the folder when they were last counted
        self._uncounted = 0  # bytes written since then
        self.can_write = True  # until the disk refuses
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Bytes of all files in the folder; what other processes wrote meanwhile is counted a little later."""
        if self._counted is None:
            self._counted = sum(size for _, size, _ in self._list_files())
        return self._counted + self._uncounted

    @property
    def max_bytes(self) -> int:
        """Size beyond which it evicts: a sixteenth below the budget."""
        return self._max_bytes - self._max_bytes // 16

    def is_of_another_model(self) -> bool:
        """Whether the folder holds caches, but none that this model may use."""
        return not (self._folder / self._model).is_dir() and any(self._folder.glob("*/"))

    def name(self, tokens: Sequence[int]) -> str:
        """Name of the file of a document's tokens, without its suffix."""
        return sha256(array("q", tokens).tobytes()).hexdigest()

    def path(self, tokens: Sequence[int]) -> Path:
        """The file of a document's tokens, whether it exists or not."""
        name = self.name(tokens)
        return self._folder / self._model / name[:2] / f"{name}{_SUFFIX}"

    def get(self, tokens: Sequence[int]) -> DocumentCache | None:
        """The cache of a document's tokens; None if there is none or it cannot be used.

        Its checksum is compared when this process first opens the file.
        """
        path = self.path(tokens)
        with self._lock:
            try:
                status = path.stat()
            except OSError:
                return None
            identity = (status.st_dev, status.st_ino, status.st_size)
            file = self._open.pop(path.name, None)
            if file is None or file.identity != identity:
                cache = self._read(path, len(tokens))
                if cache is None:
                    return None
                file = _OpenFile(identity, cache)
            self._open[path.name] = file
            if len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
        with suppress(OSError):  # a read-only folder records no last use
            os.utime(path)
        return file.cache

    def put(self, tokens: Sequence[int], cache: DocumentCache) -> None:
        """Write a cache, and evict the least recently used files beyond the budget.

        After the first write that the disk refuses, no other is tried.
        """
        if not self.can_write or cache.num_bytes > self.max_bytes:
            return
        path = self.path(tokens)
        try:
            with self._lock:
                self._uncounted += _write(path, cache, self._model)
                if self._counted is None or self._uncounted > self._max_bytes - self.max_bytes:
                    self._evict()
        except FileNotFoundError:
            pass  # the folder was removed meanwhile, because the index was rebuilt
        except OSError as error:
            self.can_write = False
            self._warn(
                f"The key-value store {self._folder} cannot be written ({error.strerror or error}), so documents "
                "are computed for each question; free space, or lower kv_max_bytes."
            )

    def prune(self, keep: Collection[str]) -> None:
        """Remove all files, of any model, except those of this model whose names are in `keep`."""
        for path, _, _ in self._list_files():
            if path.parent.parent.name != self._model or path.stem not in keep:
                path.unlink(missing_ok=True)
        with suppress(FileNotFoundError):  # an index that is newer than this has texts unknown here
            os.utime(self._folder)
        self._counted, self._uncounted = None, 0

    def _read(self, path: Path, num_tokens: int) -> DocumentCache | None:
        try:
            return _read(path, self._model, num_tokens)
        except FileNotFoundError:
            return None  # just removed by another process
        except (OSError, RuntimeError, ValueError, LookupError, TypeError, SafetensorError) as error:
            if path.name not in self._reported:
                self._reported.add(path.name)
                reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")[:100]
                self._warn(
                    f"The stored cache {path} is damaged or of another kind ({reason}) and is not used; "
                    "it is computed again."
                )
            return None

    def _evict(self) -> None:
        """Count the files, and remove the least recently used ones beyond the budget."""
        files = sorted(self._list_files(), key=lambda file: file[2])
        total = sum(size for _, size, _ in files)
        present = {path for path, _, _ in files}
        for path, size, _ in files:
            if total <= self.max_bytes:
                break
            path.unlink(missing_ok=True)
            present.remove(path)
            total -= size
        self._counted, self._uncounted = total, 0
        own = {path.name for path in present if path.parent.parent.name == self._model}
        for name in self._open.keys() - own:  # while mapped, a removed file still takes its room on the disk
            del self._open[name]

    def _list_files(self) -> list[tuple[Path, int, int]]:
        """Path, bytes and time of last use of every file, leftovers of killed writers included."""
        files = []
        for path in self._folder.glob("*/*/*"):
            with suppress(OSError):  # just removed by another process
                status = path.stat()
                files.append((path, status.st_size, status.st_mtime_ns))
        return files


def remove_store(folder: Path) -> None:
    """Remove a store whose documents are no longer those of the index. Processes that read it are not disturbed."""
    shutil.rmtree(folder, ignore_errors=True)


def name_tensors(cache: DocumentCache) -> dict[str, torch.Tensor]:
    """A cache's tensors by the names that they have in a file."""
    tensors = {f"{index}.keys": tensor for index, tensor in enumerate(cache.keys)}
    return tensors | {f"{index}.values": tensor for index, tensor in enumerate(cache.values)}


def build_cache(get: Callable[[str], torch.Tensor], num_layers: int, num_tokens: int) -> DocumentCache:
    """Inverse of `name_tensors`; ValueError if a tensor has another number of tokens."""
    keys = tuple(get(f"{index}.keys") for index in range(num_layers))
    values = tuple(get(f"{index}.values") for index in range(num_layers))
    for tensor in keys + values:
        if tensor.ndim != 3 or tensor.shape[1] != num_tokens:
            raise ValueError(f"a tensor of shape {tuple(tensor.shape)} for {num_tokens} tokens")
    return DocumentCache(keys=keys, values=values)


def checksum(cache: DocumentCache) -> int:
    """CRC-32 of all names, types, shapes and bytes: guards against accidents, at the speed of memory."""
    value = 0
    for name, tensor in name_tensors(cache).items():
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        value = zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data, value)
    return value


def _read(path: Path, model: str, num_tokens: int) -> DocumentCache:
    """One file, mapped. Raises OSError, or whatever its content leads to."""
    # By its descriptor, since safe_open opens twice, and another process may replace or remove the file in between.
    with path.open("rb") as whole, safe_open(f"/dev/fd/{whole.fileno()}", "pt") as file:
        about = dict(json.loads((file.metadata() or {})["tandem"]))
        if about["format"] != FORMAT:
            raise ValueError(f"its format is {about['format']!r}, not {FORMAT!r}")
        if about["name"] != path.stem:
            raise ValueError("it is no cache of this document")
        if about["model"] != model:
            raise ValueError("it was made by another model")
        cache = build_cache(file.get_tensor, len(file.keys()) // 2, num_tokens)
    if checksum(cache) != about["checksum"]:
        raise ValueError("it does not match its checksum")
    return cache


def _write(path: Path, cache: DocumentCache, model: str) -> int:
    """One file, whole or not at all; returns its number of bytes.

    Not flushed to the disk: after a power cut the checksum finds what is missing, and nobody waits for the disk.
    """
    about = {"format": FORMAT, "name": path.stem, "model": model, "checksum": checksum(cache)}
    content = save(name_tensors(cache), {"tandem": json.dumps(about)})
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
