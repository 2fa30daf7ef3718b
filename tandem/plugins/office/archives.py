"""The reader of zip archives."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from io import BytesIO
from typing import BinaryIO
from zipfile import ZipFile, ZipInfo

from tandem.retrieval.readers import ENCRYPTED, Part, Unreadable, parsing, safe_name, unzipped

_UTF8_NAME = 0x800
_ENCRYPTED = 0x1
MAX_NAMED = 3
"""Encrypted members that a sentence names."""


def read_zip(file: BinaryIO, source: str, problems: list[str]) -> Iterator[Part]:
    """A zip archive: its members, without hidden ones."""
    locked: list[str] = []
    num_members = 0
    with unzipped(file, "zip") as archive:
        for member in archive.infolist():
            name = _name(member)
            if member.is_dir() or not name or any(part[0] == "." for part in name.split("/")):
                continue
            if name.startswith("__MACOSX/"):  # resources of a Mac's files
                continue
            num_members += 1
            if member.flag_bits & _ENCRYPTED:
                locked.append(name)
            else:
                yield Part(name, member.file_size, partial(_open, archive, member))
    if num_members == len(locked):
        raise Unreadable(ENCRYPTED if locked else "it holds no files; fill it or remove it")
    if locked:
        shown = ", ".join(locked[:MAX_NAMED]) + (", ..." if len(locked) > MAX_NAMED else "")
        were = "member was" if len(locked) == 1 else "members were"
        problems.append(
            f"{source}: {len(locked)} encrypted {were} left out ({shown}); pack what they hold without a password."
        )


def _name(member: ZipInfo) -> str:
    """The name of a member: UTF-8 where it is, whether or not its packer said so, else in the code page of DOS."""
    name = member.filename
    if not member.flag_bits & _UTF8_NAME:
        try:
            name = name.encode("cp437").decode()
        except UnicodeError:
            name = member.filename
    return safe_name(name)


def _open(archive: ZipFile, member: ZipInfo) -> BytesIO:
    with parsing("member of a zip archive", "pack it again"):
        return BytesIO(archive.read(member))
