"""What a build has embedded so far, in a file that outlives the process: a killed build is taken up again.

    .embedded    one record a text: hash of the text (16 bytes), vector (4 d bytes), CRC-32 of both (4 bytes)

Records are appended and flushed to the disk before they are reported done; what was cut off in the middle is
found by its checksum and dropped. Knows texts only by their hash, and nothing of indexes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

NAME = ".embedded"
KEY_BYTES = 16

_HEADER_BYTES = 32
_CRC_BYTES = 4


def text_key(text: str) -> bytes:
    """The name of a text in the journal: equal for equal texts alone."""
    return blake2b(text.encode("utf-8", "replace"), digest_size=KEY_BYTES).digest()


class Journal:
    """Vectors by text, for one embedder and one process at a time (the builder's lock sees to that)."""

    def __init__(self, path: Path, fingerprint: str, dimension: int) -> None:
        """Opens the journal at `path` and keeps every sound record; one of another embedder starts anew.

        OSError if the disk refuses.
        """
        self._path = path
        self._header = blake2b(f"{fingerprint} {dimension}".encode(), digest_size=_HEADER_BYTES).digest()
        self._record = np.dtype(
            [("key", f"V{KEY_BYTES}"), ("vector", "<f4", (dimension,)), ("crc", f"V{_CRC_BYTES}")]
        )
        self._places: dict[bytes, int] = {}
        path.touch(mode=0o600)
        self._recover()
        self._file = path.open("ab", buffering=0)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __contains__(self, key: bytes) -> bool:
        return key in self._places

    def __len__(self) -> int:
        """Number of texts whose vectors are kept."""
        return len(self._places)

    def append(self, keys: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
        """Keeps vectors [len(keys), d]; when this returns, they are on the disk."""
        records = np.zeros(len(keys), self._record)
        records["key"], records["vector"] = np.array(keys, f"V{KEY_BYTES}"), vectors
        records["crc"] = np.array([_crc(record.tobytes()) for record in records], f"V{_CRC_BYTES}")
        data = memoryview(records.tobytes())
        while data:  # an unbuffered write may take a part only
            data = data[self._file.write(data) :]
        os.fsync(self._file.fileno())
        for key in keys:
            self._places[key] = len(self._places)

    def vectors(self, keys: Sequence[bytes]) -> NDArray[np.float32]:
        """The vectors [len(keys), d] of texts that are kept."""
        records = np.memmap(self._path, self._record, "r", offset=_HEADER_BYTES)
        return np.asarray(records["vector"][[self._places[key] for key in keys]], np.float32)

    def remove(self) -> None:
        """Deletes the file; what cannot be deleted is used or replaced by the next build."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _recover(self) -> None:
        """Notes the sound records of an earlier build and cuts off the rest."""
        with self._path.open("a+b") as file:
            file.seek(0)
            if file.read(_HEADER_BYTES) != self._header:
                file.truncate(0)
                file.write(self._header)
                return
            while len(data := file.read(self._record.itemsize)) == self._record.itemsize:
                key = data[:KEY_BYTES]
                if _crc(data) != data[-_CRC_BYTES:] or key in self._places:
                    break
                self._places[key] = len(self._places)
            file.truncate(_HEADER_BYTES + len(self._places) * self._record.itemsize)


def _crc(record: bytes) -> bytes:
    """Checksum of a record's bytes without their last four."""
    return crc32(memoryview(record)[:-_CRC_BYTES]).to_bytes(_CRC_BYTES, "little")
