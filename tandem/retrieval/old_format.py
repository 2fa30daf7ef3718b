"""Indexes of Tandem 0.1, which become indexes of today's format when they are opened or built again.

index/
  manifest.json                 names the folder with the files, and a checksum of each
  data-7/chunks.jsonl           {"id", "text", "metadata"} per line, by row
  data-7/vectors.faiss          as today
  data-7/embeddings.npy         as today's vectors-N.npy
  .embedded                     journal: hash of the embedder, then per text hash, vector and CRC-32
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tandem.errors import RetrievalError
from tandem.retrieval.documents import Document
from tandem.retrieval.store import (
    KEY_BYTES,
    Manifest,
    checksum,
    damaged,
    parse_manifest,
    verify_file,
    writing,
)

NAME = "manifest.json"
JOURNAL = ".embedded"

_FORMAT, _VERSION = "tandem-index", 1
_CHUNKS = "chunks.jsonl"
_RENAMED = {"vectors.faiss": "faiss", "embeddings.npy": "npy"}
_HEADER_BYTES, _CRC_BYTES = 32, 4
_READ_AT_ONCE = 256

_log = logging.getLogger("tandem")


def is_old(directory: Path) -> bool:
    """Whether a folder holds an index of Tandem 0.1, sound or not."""
    try:
        is_named = _FORMAT in (directory / NAME).read_text("utf-8", errors="replace")
    except OSError:
        return False
    return is_named or any(directory.glob("data-*/vectors.faiss"))


def check_folder(directory: Path) -> None:
    """Refuses to write into what is not a folder of its own for an index."""
    is_file = directory.exists() and not directory.is_dir()
    if is_file or ((directory / NAME).exists() and not is_old(directory)):
        what = "is a file" if is_file else f"holds a {NAME} that is not Tandem's"
        raise RetrievalError(
            f"An index needs a folder of its own, but {directory} {what}; choose another folder."
        )


def read_manifest(directory: Path) -> tuple[Manifest, Path]:
    """The manifest of an old index, and the folder of its files. RetrievalError if it is damaged."""
    try:
        body = json.loads((directory / NAME).read_bytes())
    except (OSError, ValueError, RecursionError):
        raise damaged(directory, f"{NAME} is not readable JSON") from None
    if not isinstance(body, dict) or body.get("format") != _FORMAT:
        raise damaged(directory, f'{NAME} lacks "format": "{_FORMAT}"')
    if body.get("version") != _VERSION:
        raise RetrievalError(
            f"This Tandem converts indexes of version {_VERSION}, but {directory} has version "
            f"{body.get('version')}; build it again with `tandem index`."
        )
    if not isinstance(body.get("folder"), str):
        raise damaged(directory, f'{NAME} lacks a proper "folder"')
    today = {**body, "generation": 0, "chunks_hash": "", "facts_hash": ""}
    return parse_manifest(directory, NAME, today), directory / body["folder"]


def verify(directory: Path) -> Manifest:
    """The manifest of an old index whose files fit it; RetrievalError if one is missing or differs."""
    manifest, folder = read_manifest(directory)
    for name, expected in manifest.files.items():
        try:
            verify_file(directory, folder / name, expected)
        except FileNotFoundError:
            raise damaged(directory, f"{name} is missing") from None
    return manifest


def convert(directory: Path) -> bool:
    """Makes an old index one of today's format; False if there is none. Nothing is embedded again.

    Raises RetrievalError if it is damaged or the folder cannot be written; the old index is then kept.
    """
    if not is_old(directory):
        return False
    manifest = verify(directory)
    try:
        _convert(directory, manifest)
    except RetrievalError as error:
        raise RetrievalError(
            f"The index {directory} has the format of Tandem 0.1 and could not be converted: {error}"
        ) from error
    remove([path for path in leftovers(directory) if path.name != JOURNAL])  # of use to the next build
    _log.warning("The index %s had the format of Tandem 0.1 and was converted; nothing was lost.", directory)
    return True


def read_journal(
    directory: Path, fingerprint: str, dimension: int
) -> Iterator[tuple[list[bytes], NDArray[np.float32]]]:
    """What an interrupted build of Tandem 0.1 embedded with this embedder: keys and vectors [n, d], in batches."""
    header = blake2b(f"{fingerprint} {dimension}".encode(), digest_size=_HEADER_BYTES).digest()
    record = np.dtype([("key", f"V{KEY_BYTES}"), ("vector", "<f4", (dimension,)), ("crc", f"V{_CRC_BYTES}")])
    try:
        file = (directory / JOURNAL).open("rb")
    except OSError:
        return
    with file:
        if file.read(_HEADER_BYTES) != header:
            return
        while data := file.read(record.itemsize * _READ_AT_ONCE):
            records = np.frombuffer(data[: len(data) // record.itemsize * record.itemsize], record)
            sound = [n for n, row in enumerate(records) if _crc(row.tobytes()) == row["crc"].tobytes()]
            yield [records["key"][n].tobytes() for n in sound], records["vector"][sound]


def leftovers(directory: Path) -> list[Path]:
    """Files of Tandem 0.1 in a folder: an index, and the journal of a build."""
    names = (JOURNAL, ".lock", ".building-*", "data-*")
    paths = [path for name in names for path in directory.glob(name)]
    return paths + ([directory / NAME] if is_old(directory) else [])


def remove(paths: list[Path]) -> None:
    """Deletes files and folders; what cannot be deleted stays for the next build."""
    for path in paths:
        with suppress(OSError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _convert(directory: Path, manifest: Manifest) -> None:
    _, folder = read_manifest(directory)
    with writing(directory) as writer:
        if writer.manifest is not None:  # another process was faster
            return
        writer.replace_chunks(_read_chunks(directory, folder / _CHUNKS))
        files = {}
        for name, suffix in _RENAMED.items():
            if name in manifest.files:
                path = writer.make_file(suffix)
                path.unlink()
                _link(folder / name, path)
                files[path.name] = checksum(path)
        writer.commit(replace(manifest, files=files))


def _read_chunks(directory: Path, path: Path) -> list[Document]:
    try:
        bodies = [json.loads(line) for line in path.read_bytes().split(b"\n") if line]
        return [
            Document(page_content=body["text"], metadata=body["metadata"], id=body["id"]) for body in bodies
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(directory, f"{path.name} cannot be read ({error})") from None


def _link(source: Path, target: Path) -> None:
    """A second name for a file, or a copy where the file system has none; the time of its last change stays."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _crc(record: bytes) -> bytes:
    """Checksum of a record's bytes without their last four."""
    return crc32(memoryview(record)[:-_CRC_BYTES]).to_bytes(_CRC_BYTES, "little")
