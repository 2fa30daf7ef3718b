"""The readers of all kinds of files, and what is in a file that holds others: archives, attachments.

What is within such a file has its path within it as its name, `letters.zip/2024/may.eml/plan.pdf`, and its reader by
its ending, like a file of a folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO

from tandem import plugins
from tandem.retrieval.documents import Document, readable_name
from tandem.retrieval.formats import (
    MIN_UNPACKED,
    UNPACKED_PER_BYTE,
    Part,
    Reader,
    Unreadable,
    too_large,
)
from tandem.system.file_kinds import ending_of, endings, kind_of, why_skipped

MAX_NESTED = 4
"""Files within each other: an archive within an attachment within a mailbox is the third."""
MAX_PARTS = 20_000
"""Files within one file."""
MAX_SOURCE_CHARS = 2_000
"""Of a file within one, with the names of all that it is in; every chunk has it."""
MAX_PROBLEMS = 100
"""Sentences about the parts of one file."""


def read_file(file: BinaryIO, name: str, source: str, problems: list[str]) -> Iterator[Document]:
    """The documents of a file and of the files within it.

    name: by whose ending its reader is chosen. Raises Unreadable if the file itself is of no use, appends a sentence
    for whatever else cannot be read.
    """
    contents = _Contents(file.seek(0, 2))
    file.seek(0)
    yield from contents.read(file, name, source)
    found = contents.problems
    found += [
        why_skipped(readable_name(ending), count, f" in {source}")
        for ending, count in sorted(contents.skipped.items())
    ]
    problems += found[:MAX_PROBLEMS]
    if (more := len(found) - MAX_PROBLEMS) > 0:
        problems.append(f"{source}: there are {more} more such problems.")


class _TooMuch(Unreadable):
    """The whole file, not a part of it, is of no use."""


class _Contents:
    """What is within one file, however deep, and how much of it was read."""

    def __init__(self, num_bytes: int) -> None:
        """num_bytes: of the file."""
        self.problems: list[str] = []
        self.skipped: Counter[str] = Counter()  # parts that are not read, by their ending
        self._most = self._left = max(MIN_UNPACKED, UNPACKED_PER_BYTE * num_bytes)
        self._num_parts = 0

    def read(self, file: BinaryIO, name: str, source: str, depth: int = 0) -> Iterator[Document]:
        """The documents of a file that is `depth` files deep. Raises Unreadable if it is of no use."""
        kind = kind_of(name)
        if kind is None:
            raise Unreadable(f"it is none of {endings()}; save what it says as text")
        read: Reader = plugins.load(kind.reader)
        for item in read(file, source, self.problems):
            if isinstance(item, Document):
                yield item
            else:
                yield from self._read_part(item, f"{source}/{item.name}", depth + 1)

    def _read_part(self, part: Part, source: str, depth: int) -> Iterator[Document]:
        kind = kind_of(part.name)
        if kind is None or not kind.is_installed():
            self.skipped[ending_of(part.name)] += 1
            return
        self._num_parts += 1
        self._left -= part.num_bytes
        if self._left < 0:
            raise _TooMuch(too_large(self._most))
        if self._num_parts > MAX_PARTS:
            raise _TooMuch(f"it holds more than {MAX_PARTS:,} files; unpack it, and index what it holds")
        try:
            if len(source) > MAX_SOURCE_CHARS:
                raise Unreadable(f"its name has more than {MAX_SOURCE_CHARS:,} characters; rename it")
            if depth > MAX_NESTED:
                raise Unreadable(f"it lies in more than {MAX_NESTED} files within each other; unpack them")
            yield from self.read(part.open(), part.name, source, depth)
        except (MemoryError, _TooMuch):
            raise
        except Unreadable as error:
            self.problems.append(f"{source} was left out: {error}.")
        except Exception as error:  # a fault of a parser
            why = f"its reader failed with {type(error).__name__}; repair it or save it as text"
            self.problems.append(f"{source} was left out: {why}.")
