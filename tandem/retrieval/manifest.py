"""The manifest of an index: what it was built with, and a checksum of everything it consists of."""

from __future__ import annotations

from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

from tandem.errors import RetrievalError

NAME = "tandem-index.sqlite"
"""The database that makes a folder an index."""


class NoIndexError(RetrievalError):
    """A folder holds no index of this format."""


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
    generation: int  # builds of this index so far
    chunks_hash: str  # of ids, texts and metadata, hexadecimal
    facts_hash: str  # of the metadata that filters use, hexadecimal
    files: dict[str, Checksum]  # of vectors, next to the database


def no_index(directory: Path) -> NoIndexError:
    """The error for a folder without an index."""
    return NoIndexError(
        f"An index must hold a {NAME}, but {directory} has none; build it with `tandem index`."
    )


def damaged(directory: Path, what: str) -> RetrievalError:
    """The error for an index that cannot be trusted."""
    return RetrievalError(f"The index {directory} is damaged: {what}; build it again with `tandem index`.")


def parse_manifest(directory: Path, where: str, body: Any) -> Manifest:
    """A manifest from its JSON object, every field of the right type; RetrievalError otherwise."""
    kinds = {"dimension": int, "count": int, "generation": int, "files": dict}
    for field in fields(Manifest):
        if not isinstance(body, dict) or type(body.get(field.name)) is not kinds.get(field.name, str):
            raise damaged(directory, f'{where} lacks a proper "{field.name}"')
    try:
        files = {name: Checksum(**entry) for name, entry in body["files"].items()}
        bytes.fromhex(body["id_key"])
    except (TypeError, ValueError):
        raise damaged(directory, f'{where} lacks a proper "files" or "id_key"') from None
    return Manifest(**{**{field.name: body[field.name] for field in fields(Manifest)}, "files": files})


def checksum(path: Path) -> Checksum:
    """Length and SHA-256 of a file, read in pieces."""
    digest = sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
        return Checksum(num_bytes=file.tell(), sha256=digest.hexdigest())


def verify_file(directory: Path, path: Path, expected: Checksum) -> None:
    """FileNotFoundError if a file of an index is missing, RetrievalError if it differs."""
    num_bytes = path.stat().st_size
    if num_bytes != expected.num_bytes:
        raise damaged(directory, f"{path.name} has {num_bytes} bytes instead of {expected.num_bytes}")
    if checksum(path) != expected:
        raise damaged(directory, f"{path.name} does not match its checksum")
