"""What an engine keeps of what it has computed: documents' caches, and the rows of ended queries.

A row begins with its document (and the beginning-of-sequence token) at position 0, and that part sees nothing but
itself. So its cache is a function of the model and of these tokens, and computed once it serves every question. What
its tensors hold, only the runner knows that made it.
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from tandem.errors import first_line
from tandem.system.paths import write_whole


@dataclass(frozen=True, slots=True)
class Cache:
    """A runner's state after the tokens of a document, as it may be stored; read only."""

    tensors: Mapping[str, Any]  # of PyTorch, or arrays of numpy, by name
    num_tokens: int

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


class CacheForm(NamedTuple):
    """How the caches of a runner are written to files of safetensors."""

    framework: str  # as safetensors calls it: "pt" or "np"
    names: Callable[[int], Sequence[str]]  # of so many tensors, in order
    save: Callable[[dict[str, Any], dict[str, str]], bytes]  # the content of a file; of safetensors
    bytes_of: Callable[[Any], memoryview]  # those of a tensor


class MemoryStore:
    """A store in this process that evicts what was used least recently. Safe for several threads."""

    def __init__(self, max_bytes: int) -> None:
        """max_bytes: of all tensors together; 0 keeps nothing."""
        self._max_bytes = max_bytes
        self._entries: OrderedDict[tuple[int, ...], Cache] = OrderedDict()
        self._lock = threading.Lock()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, tokens: Sequence[int]) -> Cache | None:
        """The cache of a document's tokens, which is evicted last from now on."""
        key = tuple(tokens)
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def put(self, tokens: Sequence[int], cache: Cache) -> None:
        """Keep a cache, and evict the least recently used ones beyond the budget."""
        key = tuple(tokens)
        if cache.num_bytes > self._max_bytes:
            return
        with self._lock:
            if key in self._entries:
                self.num_bytes -= self._entries.pop(key).num_bytes
            self._entries[key] = cache
            self.num_bytes += cache.num_bytes
            while self.num_bytes > self._max_bytes:
                self.num_bytes -= self._entries.popitem(last=False)[1].num_bytes


class DocumentCaches:
    """The caches of one model's documents: found in the store, or computed where they are needed and kept."""

    def __init__(self) -> None:
        self.store: CacheStore | None = None  # to be set; None stores nothing
        self.num_hits = 0
        self.num_misses = 0

    def find(self, tokens: Sequence[int]) -> Cache | None:
        """The stored cache of at least one token.

        It has the bits that computing it would give, as long as it was computed by this model with the same libraries,
        kind of processor and number of threads (`fingerprint_computation`).
        """
        cache = None if self.store is None else self.store.get(tokens)
        self.num_hits += cache is not None
        return cache

    def keep(self, tokens: Sequence[int], make: Callable[[], Cache], *, is_stored: bool = True) -> None:
        """A cache was computed; `make` copies it. is_stored: whether it goes to the store."""
        self.num_misses += 1
        if is_stored and self.store is not None:
            self.store.put(tokens, make())

    def statistics(self) -> dict[str, float]:
        """Counts of documents whose cache was found and was not, and the store's bytes."""
        num_bytes = 0 if self.store is None else self.store.num_bytes
        return {"kv_hits": self.num_hits, "kv_misses": self.num_misses, "kv_bytes": num_bytes}


# ---- Rows of queries that have ended ---------------------------------------------------------------------------


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many leading tokens two sequences share."""
    if second[: len(first)] == first:
        return len(first)
    pairs = enumerate(zip(first, second, strict=False))
    return next((position for position, (a, b) in pairs if a != b), min(len(first), len(second)))


@dataclass(frozen=True, slots=True)
class KeptPrefix:
    """The beginning of a kept row."""

    cache: Cache  # of the whole row
    num_tokens: int
    num_document: int  # tokens of the kept row's document


class TurnCaches:
    """The rows of ended queries, in memory; those that were used least recently are evicted first.

    Invariants: they take at most `max_bytes`, and none is there that begins another one.
    """

    def __init__(self) -> None:
        self.max_bytes = 0  # to be set; 0 keeps nothing
        self.num_bytes = 0
        self.num_reused = 0  # tokens behind the documents, of all rows, that were not computed again
        # by its tokens, a row and the number of its document's; least recently used first
        self._kept: dict[tuple[int, ...], tuple[Cache, int]] = {}

    def keep(self, row: Sequence[int], cache: Cache, num_document: int) -> None:
        """A query has ended. row: tokens, of which this is the cache. num_document: those of its document."""
        row = tuple(row)
        if cache.num_bytes > self.max_bytes:
            return
        for other in [each for each in self._kept if row[: len(each)] == each]:
            self._drop(other)
        self._kept[row] = cache, num_document
        self.num_bytes += cache.num_bytes
        while self.num_bytes > self.max_bytes:
            self._drop(next(iter(self._kept)))

    def find(self, tokens: Sequence[int], num_document: int) -> KeptPrefix | None:
        """The longest beginning of these tokens that a kept row has; None if it has not their document.

        num_document: tokens of the document, with which they begin; it may be 0.
        """
        tokens, least = tuple(tokens), num_document
        best: tuple[int, ...] | None = None
        for row in self._kept:
            if row[:least] == tokens[:least] and (length := common_length(row, tokens)) >= max(1, least):
                best, least = row, length + 1
        if best is None:
            return None
        cache, document = self._kept[best] = self._kept.pop(best)  # now the last to be evicted
        return KeptPrefix(cache, least - 1, document)

    def statistics(self) -> dict[str, float]:
        """Tokens behind the documents that were not computed again, counted in each row, and the kept bytes."""
        return {"turn_tokens": self.num_reused, "turn_bytes": self.num_bytes}

    def _drop(self, row: tuple[int, ...]) -> None:
        self.num_bytes -= self._kept.pop(row)[0].num_bytes


# ---- A store on disk ------------------------------------------------------------------------------------------

FORMAT = "tandem-prefix-1"
"""The name that version 0.1 wrote, so that its files stay valid."""
MAX_OPEN = 4096
"""Files that stay mapped; their pages belong to the system's cache and count for no process."""


class DiskStore:
    """A store in a folder. Safe for several threads and processes."""

    def __init__(
        self, folder: Path, model: str, max_bytes: int, warn: Callable[[str], object], form: CacheForm
    ) -> None:
        """model: `computing_fingerprint`. max_bytes: of all files in `folder`, of whatever model, so that those of a
        model no longer used are evicted first. warn: receives a sentence about what was not used or not written.
        """
        self._folder, self._model, self._form = folder, model, form
        self._warn = warn
        self._margin_bytes = max_bytes // 16
        self.max_bytes = max_bytes - self._margin_bytes  # beyond which it evicts
        # device, inode and bytes of a file, of which another one of that name has others, and its cache
        self._open: OrderedDict[str, tuple[tuple[int, int, int], Cache]] = OrderedDict()
        self._reported: set[str] = set()
        self._counted: int | None = None  # bytes in the folder when they were last counted
        self._uncounted = 0  # bytes written since then
        self.can_write = True  # until the disk refuses
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Bytes of all files in the folder; what other processes write is counted a little later."""
        if self._counted is None:
            self._counted = sum(size for _, size, _ in self._list_files())
        return self._counted + self._uncounted

    def is_of_another_model(self) -> bool:
        """Whether the folder holds caches, but none that this model may use."""
        return not (self._folder / self._model).is_dir() and any(self._folder.glob("*/"))

    def name(self, tokens: Sequence[int]) -> str:
        """The name of the file of a document's tokens, without its suffix."""
        return sha256(array("q", tokens).tobytes()).hexdigest()

    def path(self, tokens: Sequence[int]) -> Path:
        """The file of a document's tokens, whether it exists or not."""
        name = self.name(tokens)
        return self._folder / self._model / name[:2] / f"{name}.safetensors"

    def get(self, tokens: Sequence[int]) -> Cache | None:
        """The cache of a document's tokens; None if there is none, or it is damaged when it is first opened."""
        path = self.path(tokens)
        with self._lock:
            try:
                status = path.stat()
            except OSError:
                return None
            identity = (status.st_dev, status.st_ino, status.st_size)
            opened, cache = self._open.pop(path.name, (None, None))
            if opened != identity:
                cache = self._read(path, len(tokens))
            if cache is None:
                return None
            self._open[path.name] = identity, cache
            if len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
        with suppress(OSError):  # a read-only folder records no last use
            os.utime(path)
        return cache

    def put(self, tokens: Sequence[int], cache: Cache) -> None:
        """Write a cache, unless the disk has refused one, and evict the least recently used files beyond the budget."""
        if not self.can_write or cache.num_bytes > self.max_bytes:
            return
        path = self.path(tokens)
        try:
            with self._lock:
                self._uncounted += self._write(path, cache)
                if self._counted is None or self._uncounted > self._margin_bytes:
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

    def _read(self, path: Path, num_tokens: int) -> Cache | None:
        """The cache of one file, mapped; None if it is gone or damaged."""
        try:
            # By its descriptor, since safe_open opens twice, and meanwhile another process may replace the file.
            with (
                path.open("rb") as whole,
                safe_open(f"/dev/fd/{whole.fileno()}", self._form.framework) as file,
            ):
                about = dict(json.loads((file.metadata() or {})["tandem"]))
                if about["format"] != FORMAT:
                    raise ValueError(f"its format is {about['format']!r}, not {FORMAT!r}")
                if about["name"] != path.stem:
                    raise ValueError("it is no cache of this document")
                if about["model"] != self._model:
                    raise ValueError("it was made by another model")
                names = self._form.names(len(file.keys()))
                cache = Cache({name: file.get_tensor(name) for name in names}, num_tokens)
            if checksum(cache, self._form) != about["checksum"]:
                raise ValueError("it does not match its checksum")
            return cache
        except FileNotFoundError:
            return None  # just removed by another process
        except (OSError, RuntimeError, ValueError, LookupError, TypeError, SafetensorError) as error:
            if path.name not in self._reported:
                self._reported.add(path.name)
                self._warn(
                    f"The stored cache {path} is damaged or of another kind ({first_line(error):.100}) and is not "
                    "used; it is computed again."
                )
            return None

    def _write(self, path: Path, cache: Cache) -> int:
        """Write one file, whole or not at all; returns its number of bytes.

        Not flushed to the disk: after a power cut the checksum finds what is missing, and nobody waits for the disk.
        """
        about = {
            "format": FORMAT,
            "name": path.stem,
            "model": self._model,
            "checksum": checksum(cache, self._form),
        }
        content = self._form.save(dict(cache.tensors), {"tandem": json.dumps(about)})
        for folder in reversed(path.parents[:3]):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, content)
        return len(content)

    def _evict(self) -> None:
        """Count the files, and remove the least recently used ones beyond `max_bytes`."""
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


CacheStore = MemoryStore | DiskStore
"""Keeps the caches of one model. A store may forget any entry, but never returns that of other tokens."""


def checksum(cache: Cache, form: CacheForm) -> int:
    """CRC-32 of all names, types, shapes and bytes: guards against accidents, at the speed of memory."""
    value = 0
    for name, tensor in cache.tensors.items():
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        value = zlib.crc32(form.bytes_of(tensor), value)
    return value
