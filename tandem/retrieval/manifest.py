"""The manifest of an index: what it was built with, and a checksum of each of its files.

The manifest is also the pointer to the folder with the current files: whoever replaces it, in one atomic
rename, replaces the index. Knows neither FAISS nor embedders.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

from tandem.errors import RetrievalError

FORMAT = "tandem-index"
VERSION = 1
NAME = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checksum:
    """Length and SHA-256 of one file."""

    num_bytes: int
    sha256: str  # hexadecimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything that must fit before an index may be used."""

    embedder: str  # name, for people
    embedder_fingerprint: str
    dimension: int
    count: int  # vectors, and chunks
    factory: str  # FAISS factory string
    id_key: str  # hexadecimal; keys the chunks' ids and never leaves this side
    folder: str  # where the files are, relative to the manifest
    files: dict[str, Checksum]


def is_index(directory: Path) -> bool:
    """Whether a folder holds an index of Tandem's, sound or not."""
    try:
        return FORMAT in (directory / NAME).read_text("utf-8", errors="replace")
    except OSError:
        return False


def write(path: Path, manifest: Manifest) -> None:
    """Writes a manifest to `path`; making that atomic is the caller's part."""
    body = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    path.write_text(json.dumps(body, indent=2, sort_keys=True) + "\n", "utf-8")


def read(directory: Path) -> Manifest:
    """The manifest of an index; RetrievalError if there is none, or none that this Tandem understands."""
    try:
        body = json.loads((directory / NAME).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise RetrievalError(
            f"An index must hold a {NAME}, but {directory} has none; build it with `tandem index`."
        ) from None
    except (OSError, ValueError, RecursionError):
        raise damaged(directory, f"{NAME} is not readable JSON") from None
    if not isinstance(body, dict) or body.pop("format", None) != FORMAT:
        raise damaged(directory, f'{NAME} lacks "format": "{FORMAT}"')
    version = body.pop("version", None)
    if version != VERSION:
        raise RetrievalError(
            f"This Tandem reads index version {VERSION}, but {directory} has version {version}; "
            "build it again with `tandem index`, or use the Tandem that wrote it."
        )
    return _parsed(directory, body)


def checksum(path: Path) -> Checksum:
    """Length and SHA-256 of a file, read in pieces."""
    digest = sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
        return Checksum(num_bytes=file.tell(), sha256=digest.hexdigest())


def verify(directory: Path, manifest: Manifest) -> None:
    """Checks every file: FileNotFoundError if one is missing, RetrievalError if it differs."""
    for name, expected in manifest.files.items():
        path = directory / manifest.folder / name
        num_bytes = path.stat().st_size
        if num_bytes != expected.num_bytes:
            raise damaged(directory, f"{name} has {num_bytes} bytes instead of {expected.num_bytes}")
        if checksum(path) != expected:
            raise damaged(directory, f"{name} does not match its checksum")


def damaged(directory: Path, what: str) -> RetrievalError:
    """The error for an index that cannot be trusted."""
    return RetrievalError(f"The index {directory} is damaged: {what}; build it again with `tandem index`.")


def _parsed(directory: Path, body: dict[str, Any]) -> Manifest:
    """A manifest from its JSON object, every field of the right type."""
    kinds = {"dimension": int, "count": int, "files": dict}
    for field in fields(Manifest):
        if type(body.get(field.name)) is not kinds.get(field.name, str):
            raise damaged(directory, f'{NAME} lacks a proper "{field.name}"')
    try:
        files = {name: Checksum(**entry) for name, entry in body["files"].items()}
        bytes.fromhex(body["id_key"])
    except (TypeError, ValueError):
        raise damaged(directory, f'{NAME} lacks a proper "files" or "id_key"') from None
    known = {field.name: body[field.name] for field in fields(Manifest)}
    return Manifest(**{**known, "files": files})
