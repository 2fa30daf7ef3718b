"""The readers of all kinds of files: what they share, which there are, and what is in a file that holds others.

A reader yields `Document`s and, of a container, `Part`s; it appends a sentence to `problems` for what it must leave
out, and raises `Unreadable` when the whole file is of no use. A file of which it yields no text is left out, too.

What is within such a file has its path within it as its name, `letters.zip/2024/may.eml/plan.pdf`, and its reader by
its ending, like a file of a folder.
"""

from __future__ import annotations

import codecs
import errno
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple
from zipfile import ZipFile

from tandem import plugins
from tandem.retrieval.documents import Document, readable_name
from tandem.system.file_kinds import ending_of, endings, kind_of, why_skipped

EMPTY = "it holds no text; fill it or remove it"
ENCRYPTED = "it is encrypted; save it without a password"
MIN_UNPACKED = 100_000_000
UNPACKED_PER_BYTE = 100
"""How much an archive may unpack to, in bytes, and for each of its own where that is more: what people pack gets ten
times smaller, what gets smaller than this was made to fill a disk."""

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # begins as that of UTF-16 does
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_WESTERN = "windows-1252"
_AS_WESTERN = {"iso-8859-1", "latin-1", "latin1", "ascii", "us-ascii", "iso8859-1"}
"""Names for which a browser takes windows-1252, which has characters in the place of controls."""
_NOT_WESTERN = re.compile(
    r"[\x80-\x9f]|[a-zà-öø-ÿ][À-ÖØ-Þ]|(?<=[^\W\d_])[^\w\s\0-\x7f\u2013\u2014\u2018\u2019\xb7\xad](?=[^\W\d_])|[^\0-\x7f]{4}"
)
"""What no text of a Western language has: controls, a capital or a symbol within a word, four accents in a row."""
_LIGATURES = {"\ufb00": "ff", "\ufb01": "fi", "\ufb02": "fl", "\ufb03": "ffi", "\ufb04": "ffl"}
LIGATURES = str.maketrans(_LIGATURES | {"\ufb05": "st", "\ufb06": "st"})
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_GUESSED_BYTES = 100_000
_GUESSED = "was read as {}, which is a guess, since it is not UTF-8; save it as UTF-8 if letters are wrong"
GOOD_PER_BAD = 3
"""Letters beyond ASCII for each byte that does not fit, in a text that is UTF-8; in others there is a third of one."""
_BASE64 = r"[A-Za-z0-9+/=_%-]"
_DATA = re.compile(
    r"(?:^[ \t]*\[[^\]\n]{1,200}\]:[ \t]*)?<?data:[\w.+-]+/[\w.+-]+(?:;[\w.+=-]+)*,"
    rf"(?:[^\s<>()\"']{{64,}}(?:\n[ \t]*{_BASE64}{{40,}})*(?:\n[ \t]*{_BASE64}+(?=[>)\"']))?)>?"
    rf"|^-----BEGIN ([A-Z0-9 ]{{3,40}})-----\n(?=(?:.*\n){{0,12}}?{_BASE64}{{40,100}}\n)"
    rf"(?:(?:[\w-]+:.*|{_BASE64}{{0,100}})\n)+-----END \1-----"
    r"|^begin [0-7]{3,4} \S.*\n(?:[ -`]{1,90}\n)+end$",
    re.MULTILINE,
)
"""Files that are written into a text: data URIs, armoured keys and messages, what uuencode makes."""
_DATA_WORDS = ("data:", "-----BEGIN ", "begin ")
_QUOTES = re.compile(r"""(['"]).{1,2}\1|b?(['"]).*""", re.DOTALL)


class Unreadable(Exception):
    """A file cannot be used; the text says why and what to do, to follow '<file> was left out: '."""


class Part(NamedTuple):
    """A file within a file: a member of an archive, an attachment."""

    name: str  # within its container, with / between folders
    num_bytes: int
    open: Callable[[], BinaryIO]  # raises Unreadable


Reader = Callable[[BinaryIO, str, list[str]], Iterator[Document | Part]]
"""The contents of a file, what it is called, and where sentences about it go -> what is in it."""


def decode(data: bytes, source: str, problems: list[str], declared: str = "") -> str:
    """The text of a file, with its line ends unified and without a byte-order mark.

    A mark decides, then UTF-8 where it fits but for a few bytes, then `declared`; else its encoding is guessed. A
    sentence says what was guessed or does not fit. Raises Unreadable if it is no text.
    """
    text, remark = _decode(data, declared.strip().lower())
    if "\0" in text:
        raise Unreadable(f"it is not text (a zero byte at offset {data.index(0)}); remove it or convert it")
    if remark:
        problems.append(f"{source} {remark}.")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _decode(data: bytes, declared: str) -> tuple[str, str]:
    """The text of a file, and what is to be said of how it was read."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return _strict(data[len(mark) :], encoding), ""
    if encoding := _wide(data):
        return _strict(data, encoding), _GUESSED.format(encoding)
    tried = ["utf-8", _WESTERN if declared in _AS_WESTERN else declared]
    if data.isascii() or declared.startswith("utf-7"):
        tried.reverse()  # ISO-2022-JP is ASCII to look at
    for encoding in tried:
        if encoding and not encoding.startswith(("utf-16", "utf-32")):  # those would have zero bytes
            try:
                return data.decode(encoding), ""
            except (LookupError, ValueError):
                pass
        if encoding == "utf-8" and (num_bad := _few_bad(data)):
            are = "1 byte that is" if num_bad == 1 else f"{num_bad} bytes that are"
            return data.decode("utf-8", "replace"), f"has {are} not UTF-8, read as \ufffd; save it as UTF-8"
    encoding = _guess(data)
    return _strict(data, encoding), _GUESSED.format(encoding)


def _few_bad(data: bytes) -> int:
    """How many bytes of a text are not UTF-8, 0 if so many that it is in another encoding."""
    text = data.decode("utf-8", "replace")
    num_bad = text.count("\ufffd") - data.count("\ufffd".encode())
    num_good = len(text) - len(text.encode("ascii", "ignore")) - num_bad
    return num_bad if num_good >= GOOD_PER_BAD * num_bad else 0


def _wide(data: bytes) -> str:
    """UTF-16 without a mark: every second byte of most texts is zero."""
    start = data[:_GUESSED_BYTES]
    even, odd = start[::2].count(0), start[1::2].count(0)
    if not data or len(data) % 2 or max(even, odd) < len(start) * 0.3 or min(even, odd) > len(start) * 0.02:
        return ""
    return "utf-16-be" if even > odd else "utf-16-le"


def _guess(data: bytes) -> str:
    """The likely encoding of text in none of Unicode's. Raises Unreadable."""
    import charset_normalizer

    start = data[:_GUESSED_BYTES]
    text = start.decode(_WESTERN, "ignore")
    if len(text) == len(start) and not _NOT_WESTERN.search(text):
        return _WESTERN
    best = None if 0 in start else charset_normalizer.from_bytes(start).best()
    if best is None:
        return "utf-8"  # which says what is wrong with it
    return best.encoding


def _strict(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        seen = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        name = encoding.upper().removesuffix("-LE").removesuffix("-BE")
        raise Unreadable(f"it is not {name} text ({seen}); save it as UTF-8") from None


def without_data(text: str) -> tuple[str, int]:
    """A text without the files that are written into it as letters, and how many these are."""
    return _DATA.subn("", text) if any(word in text for word in _DATA_WORDS) else (text, 0)


def describe_data(source: str, num_files: int) -> list[str]:
    """What to say of files that are written into a text."""
    if num_files == 0:
        return []
    were = "file was" if num_files == 1 else "files were"
    return [
        f"{source}: {num_files} {were} left out, written into its text as data; keep pictures, keys and the like in "
        "files of their own."
    ]


def safe_name(name: str) -> str:
    """A path within a container, with / between its parts, that leads nowhere else and can be shown."""
    parts = _CONTROLS.sub("_", readable_name(name)).replace("\\", "/").split("/")
    return "/".join(part.strip() for part in parts if part.strip() not in ("", ".", ".."))


def as_table(rows: Iterable[Iterable[str]]) -> str:
    """Rows of cells as text: a line per row that has any, tabs between its cells."""
    lines = ("\t".join(" ".join(cell.split()) for cell in row).rstrip() for row in rows)
    return "\n".join(line for line in lines if line.strip())


def shorten(text: str, max_chars: int) -> str:
    """A text, or its beginning."""
    return text if len(text) <= max_chars else f"{text[: max_chars - 3]}..."


def listed(names: Sequence[str], most: int) -> str:
    """The first of some names, and dots where there are more."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def brief(error: BaseException) -> str:
    """First line of an error's text, without what it quotes of the file and without a final full stop."""
    lines = str(error).strip().splitlines()
    return without_quotes(lines[0] if lines else "").rstrip(" .") or type(error).__name__


def without_quotes(text: str) -> str:
    """An error's text, at most 100 characters, in which "..." stands for what it quotes of a file; a sign or two, as
    in "expected ','", stay.
    """
    return _QUOTES.sub(lambda quoted: quoted[0] if quoted[1] else "...", text)[:100]


@contextmanager
def parsing(kind: str, remedy: str) -> Iterator[None]:
    """Whatever a parser of foreign files raises on a damaged one becomes Unreadable."""
    try:
        yield
    except (MemoryError, Unreadable):
        raise
    except Exception as error:  # parsers raise many kinds, some of them OSError without a number
        # A zip archive whose beginning is missing sends its reader to a place before it.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise Unreadable(f"it is not a sound {kind} ({brief(error)}); {remedy}") from None


@contextmanager
def unzipped(file: BinaryIO, kind: str) -> Iterator[ZipFile]:
    """A format that is a zip archive, opened. Raises Unreadable for one that is damaged, encrypted or a bomb."""
    start = file.read(8)
    if start.startswith(
        b"\xd0\xcf\x11\xe0"
    ):  # Microsoft's container of the formats before, and of encrypted ones
        file.seek(0)
        is_locked = "EncryptedPackage".encode("utf-16-le") in file.read()
        old = f"it is in a format older than {kind}; save it as {kind}"
        raise Unreadable(ENCRYPTED if is_locked else old)
    with parsing(kind, "save it again"), ZipFile(file) as archive:
        size = file.seek(0, 2)
        most = max(MIN_UNPACKED, UNPACKED_PER_BYTE * size)
        if sum(member.file_size for member in archive.infolist()) > most:
            raise Unreadable(too_large(most))
        yield archive


def too_large(most: int) -> str:
    """What to say of an archive that unpacks to more bytes than that."""
    return f"it unpacks to more than {most // 1_000_000} MB; unpack it, and index what it holds"


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
    sentences = contents.problems
    sentences += [
        why_skipped(readable_name(ending), count, f" in {source}")
        for ending, count in sorted(contents.skipped.items())
    ]
    problems += sentences[:MAX_PROBLEMS]
    if (more := len(sentences) - MAX_PROBLEMS) > 0:
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
        is_empty, num_problems, num_written = True, len(self.problems), 0
        for item in read(file, source, self.problems):
            if isinstance(item, Part):
                is_empty = False
                yield from self._read_part(item, f"{source}/{item.name}", depth + 1)
                continue
            item.page_content, num_files = without_data(item.page_content)
            num_written += num_files
            if item.page_content.strip():
                is_empty = False
                yield item
        self.problems += describe_data(source, num_written)
        if is_empty and len(self.problems) == num_problems:  # else it has said why
            raise Unreadable(EMPTY)

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
