"""The manifest of an index: everything that must fit before it may be used, and checksums of its files."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

from tandem.errors import RetrievalError


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
    files: dict[str, Checksum]  # of vectors, next to the database
    generation: int = 0  # builds of this index so far
    chunks_hash: str = ""  # of ids, texts and metadata, hexadecimal
    facts_hash: str = ""  # of the metadata that filters use, hexadecimal
    roots: list[str] = field(
        default_factory=list
    )  # what it was built from (`tandem.retrieval.roots`); []: unknown


def damaged(directory: Path, what: str) -> RetrievalError:
    """The error for an index that cannot be trusted."""
    return RetrievalError(f"The index {directory} is damaged: {what}; build it again with `tandem index`.")


def parse_manifest(directory: Path, where: str, body: Any) -> Manifest:
    """A manifest from its JSON object, every field of the right type; RetrievalError otherwise."""
    kinds = {"dimension": int, "count": int, "generation": int, "files": dict, "roots": list}
    if isinstance(body, dict):
        body = {"roots": [], **body}  # earlier versions wrote none
    names = [entry.name for entry in fields(Manifest)]
    for name in names:
        if not isinstance(body, dict) or type(body.get(name)) is not kinds.get(name, str):
            raise damaged(directory, f'{where} lacks a proper "{name}"')
    try:
        files = {name: Checksum(**entry) for name, entry in body["files"].items()}
        bytes.fromhex(body["id_key"])
    except (TypeError, ValueError):
        raise damaged(directory, f'{where} lacks a proper "files" or "id_key"') from None
    if not all(isinstance(root, str) for root in body["roots"]):
        raise damaged(directory, f'{where} lacks a proper "roots"')
    return Manifest(**{**{name: body[name] for name in names}, "files": files})


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
