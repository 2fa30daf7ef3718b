"""Search by words: what counts as one, and the full-text table of an index (SQLite's FTS5).

Chunks and queries are folded alike, then cut into

    parts     runs of letters and runs of digits: `INV-2024-0117` is inv, 2024, 0117
    bigrams   of scripts that do not put spaces between words: 東京都 is 東京, 京都 and, as its last character, 都
    joined    parts without what stands between them: inv20240117, 41445550112 for +41 44 555 01 12

FTS5 keeps where in a chunk each of them stands, and not the text. A query asks for its parts, for neighbours in a
compound as phrases, and for what its compounds are joined to; nothing in it is an operator.
"""

from __future__ import annotations

import json
import re
import sqlite3
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import blake2b
from itertools import accumulate, pairwise
from pathlib import PurePosixPath
from sqlite3 import Connection

SCHEMA = (
    "CREATE VIRTUAL TABLE words USING fts5(parts, joined, content = '', tokenize = 'ascii')",
    "CREATE VIRTUAL TABLE vocabulary USING fts5vocab(words, row)",
)
STORED = (
    "SELECT name, sql FROM sqlite_schema WHERE name IN ('words', 'vocabulary') ORDER BY name",
    "SELECT id, block FROM words_data ORDER BY id",
    "SELECT segid, term, pgno FROM words_idx ORDER BY segid, term",
    "SELECT id, sz FROM words_docsize ORDER BY id",
    "SELECT k, v FROM words_config ORDER BY k",
)
"""All that there is of the words."""

MAX_CANDIDATES = 10_000
"""Chunks that a search scores, about: of a query's terms the rarest count, as long as together they have no more. A
small index is searched for all of them."""
LEAST_RARE, RARE_SHARE, LEAST_FILES = 3, 50, 20
"""A word is rare that no more than so many chunks have, or one in so many; or as many files, where there are so many:
in a file of rows each may have the word of the heading."""
MAX_MARKS, MARK_BYTES = 256, 3
"""Most marks of a search, and bytes of each."""
MAX_TERMS = 256
"""Terms of a query that count; of a longer one those at its end."""
_MAX_JOINED = 40

_SPELLINGS = str.maketrans("øłđðħŧ\u0131", "olddhti") | str.maketrans({"þ": "th", "æ": "ae", "œ": "oe"})
_MARKS_APART = str.maketrans({"™": " ", "℠": " "})  # compatibility would glue their letters to the word
_DROPPED = re.compile(
    "[\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
    "\u00ad\u0640\u061c\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e0fff]"
)
"""Accents and points of Latin, Greek, Cyrillic, Hebrew and Arabic (a voiced か stays apart from か), and what is not
seen: soft hyphens, joiners, marks of direction, variants."""
_DIGIT, _SHORT = re.compile("[0-9]"), re.compile("[0-9]{1,4}")
_OTHER_DIGIT = re.compile(r"(?![0-9])\d")
_UNSPACED = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ecf\u1000-\u103f\u1050-\u109f\u1780-\u17d3\u1100-\u11ff\u3005-\u3007"
    "\u3041-\u309f\u30a1-\u30fa\u30fc-\u312f\u3131-\u318e\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f"
    "\uac00-\ud7fb\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, Korean (whose particles stick to words), Japanese and Chinese."""


def fold(text: str) -> str:
    """A text without the differences of form that people do not type: case, accents, width, normal form, the script of
    digits. Folding it again changes nothing."""
    if text.isascii():
        return text.lower()
    text = unicodedata.normalize("NFKD", text.translate(_MARKS_APART)).casefold()
    text = _DROPPED.sub("", unicodedata.normalize("NFKD", text)).translate(_SPELLINGS)
    return unicodedata.normalize("NFC", _OTHER_DIGIT.sub(lambda digit: str(int(digit[0])), text))


def entries(text: str) -> tuple[str, str]:
    """What the table keeps of a text: its parts and bigrams in their order, and what its compounds are joined to."""
    parts: list[str] = []
    joined: list[str] = []
    for compound, run in _runs(text):
        parts += compound or [run[n : n + 2] for n in range(len(run))]  # the last one is a single character
        joined += _joined(compound)
    return " ".join(parts), " ".join(joined)


def terms(query: str) -> list[tuple[str, ...]]:
    """What to look for, each once: words, phrases of two, and beginnings of words, which end in `*`. A part of one
    character counts only where it stands alone."""
    asked: dict[tuple[str, ...], None] = {}
    for compound, run in _runs(query):
        is_alone = len(compound) == 1
        words = [part for part in compound if is_alone or len(part) > 1] + _joined(compound)
        words += [run[n : n + 2] for n in range(len(run) - 1)] or [f"{run}*"] * len(run)
        asked.update(dict.fromkeys((word,) for word in words))
        asked.update(dict.fromkeys(pairwise(compound)))
    return list(asked)[-MAX_TERMS:]


def parts_of(text: str) -> frozenset[str]:
    """The parts and bigrams of a text, each once."""
    return frozenset(entries(text)[0].split())


def mark_of(word: str, *, is_rare: bool = False) -> bytes:
    """By which another party knows a word if it has it, too, [MARK_BYTES]: its hash, and in the first bit whether few
    documents here have it. It tells nothing else, but who has a list of words can try them."""
    first, *rest = blake2b(fold(word).encode(), digest_size=MARK_BYTES).digest()
    return bytes((first & 0x7F | is_rare << 7, *rest))


def read_marks(marks: bytes) -> dict[bytes, bool]:
    """Whether the word of each mark is rare, by that of one that is not."""
    return {
        bytes((marks[start] & 0x7F,)) + marks[start + 1 : start + MARK_BYTES]: marks[start] >= 0x80
        for start in range(0, len(marks), MARK_BYTES)
    }


class Names:
    """The names of files, for queries that give one."""

    def __init__(self, sources: Iterable[str]) -> None:
        """sources: paths, of which the last part counts, without its ending."""
        self._parts = {source: _parts_of_name(source) for source in sources}
        self._having: dict[str, list[str]] = {}
        for source, parts in self._parts.items():
            for part in parts:
                self._having.setdefault(part, []).append(source)

    def given(self, query: str) -> dict[str, int]:
        """The number of parts of its name, of each source of which a query gives all."""
        asked = parts_of(query)
        counts = Counter(source for part in asked for source in self._having.get(part, ()))
        return {source: count for source, count in counts.items() if count == len(self._parts[source])}


def _parts_of_name(source: str) -> frozenset[str]:
    parts = parts_of(PurePosixPath(source).stem)
    return frozenset(part for part in parts if len(part) > 1 or part.isdigit()) or parts


def codes(query_terms: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Those of a query's terms that stand for numbers and codes: all that have a digit but short numbers alone."""
    return [
        term
        for term in query_terms
        if _DIGIT.search(" ".join(term)) and not (len(term) == 1 and _SHORT.fullmatch(term[0]))
    ]


def _runs(text: str) -> Iterator[tuple[list[str], str]]:
    """The parts of each compound with "", and no parts with each run of characters without spaces."""
    pattern, parts = _patterns()
    for match in pattern.finditer(fold(text)):
        word = match[0]
        if match[1] is None:
            yield [], word
        else:
            yield [word] if word.isalpha() or word.isdigit() else parts.findall(word), ""


def _joined(compound: list[str]) -> list[str]:
    """The whole of a compound of several parts, unless it is too long to be one name or number."""
    word = "".join(compound)
    return [word] if len(compound) > 1 and len(word) <= _MAX_JOINED else []


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Those of compounds, in group 1, or runs without spaces, and of the parts of a compound; of folded texts."""
    marks = "".join(c for c in map(chr, range(0x300, 0x1E94B)) if unicodedata.category(c)[0] == "M")

    def words_of(letter: str) -> str:
        return f"{letter}+(?:[{marks}]+{letter}*)*"

    run = words_of(f"[^\\W_{_UNSPACED}]")
    # What stands within names and codes, and what between groups of digits.
    apart = r"(?:[-_./:@+#&*'\u2019,\\~=%\u2010-\u2015]|(?<=\d)[ ()./-]{1,3}(?=\d))"
    compound = re.compile(f"({run}(?:{apart}{run})*)|[{_UNSPACED}]+")
    return compound, re.compile(r"\d+|" + words_of(r"[^\W\d_]"))


# ---- the table: `chunks.words_row` is the row of a chunk's words ---------------------------------------------------


def can_open(database: Connection) -> bool:
    """Whether the tables can be opened, and so removed, be they sound or not; or are not there."""
    query = "SELECT name FROM sqlite_schema WHERE name IN ('words', 'vocabulary')"
    try:
        for (table,) in database.execute(query).fetchall():
            database.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone()
    except sqlite3.Error:
        return False
    return True


def remove_words(database: Connection, gone: Iterable[tuple[int, str]]) -> None:
    """Removes the words of these rows, which are those of these texts."""
    query = "INSERT INTO words (words, rowid, parts, joined) VALUES ('delete', ?, ?, ?)"
    database.executemany(query, ((row, *entries(text)) for row, text in gone))


def clear_words(database: Connection) -> None:
    """Removes all words."""
    database.execute("INSERT INTO words (words) VALUES ('delete-all')")


def add_words(database: Connection, first: int) -> None:
    """Adds those of the chunks whose words get row `first` or a later one, and rewrites the table, so that nothing of
    what was removed is left in it."""
    chunks = database.execute(
        "SELECT words_row, text FROM chunks WHERE words_row >= ? ORDER BY words_row", (first,)
    )
    query = "INSERT INTO words (rowid, parts, joined) VALUES (?, ?, ?)"
    database.executemany(query, ((row, *entries(text)) for row, text in chunks))
    database.execute("INSERT INTO words (words) VALUES ('optimize')")
    database.execute("SAVEPOINT words")  # makes FTS5 write all that it holds back, for the checksum
    database.execute("RELEASE words")


class WordSearch:
    """Searches the words of a database that does not change meanwhile. Its caller sees to threads."""

    def __init__(self, database: Connection) -> None:
        self._database = database
        self._counts: dict[str, int] = {}

    def rows(
        self, query_terms: list[tuple[str, ...]], k: int, among: Iterable[int] | None = None
    ) -> list[int]:
        """The k chunks that fit some terms best by BM25, best first, the first row first among equals; fewer if fewer
        have one of them. among: the only rows that may be found.
        """
        rarest = self._rarest(query_terms)
        if not rarest:
            return []
        allowed = "" if among is None else "AND +chunks.row IN (SELECT value FROM json_each(?2))"
        # CROSS JOIN: the words first, and then the chunks that have them.
        statement = (
            "SELECT chunks.row FROM words CROSS JOIN chunks ON chunks.words_row = words.rowid WHERE words MATCH ?1 "
            f"{allowed} ORDER BY bm25(words), chunks.row LIMIT ?3"
        )
        values = (" OR ".join(map(_expression, rarest)), json.dumps(list(among or ())), k)
        return [row for (row,) in self._database.execute(statement, values)]

    def _rarest(self, query_terms: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """The terms that the index has, the rarest first, until they have MAX_CANDIDATES chunks."""
        counts = {term: min(map(self._count, term)) for term in query_terms}
        ranked = sorted((term for term in query_terms if counts[term]), key=counts.__getitem__)
        totals = accumulate(counts[term] for term in ranked)
        return [
            term for term, total in zip(ranked, totals, strict=True) if total <= MAX_CANDIDATES
        ] or ranked[:1]

    def marks(self, texts: Iterable[str], num_chunks: int, num_files: int) -> bytes:
        """`mark_of` the parts and joined words of some texts, the rarest first, MAX_MARKS at most."""
        found = sorted({word for text in texts for half in entries(text) for word in half.split()})
        most, most_files = (max(LEAST_RARE, number // RARE_SHARE) for number in (num_chunks, num_files))

        def is_rare(word: str) -> bool:
            has_files = num_files >= LEAST_FILES
            return self._count(word) <= most or (
                has_files and self._count_files(word, most_files) <= most_files
            )

        ranked = sorted(found, key=self._count)[:MAX_MARKS]
        return b"".join(mark_of(word, is_rare=is_rare(word)) for word in ranked)

    def _count_files(self, word: str, most: int) -> int:
        """Files that have a word, or more than `most`, of which all are not counted."""
        statement = (
            "SELECT DISTINCT json_extract(metadata, '$.source') FROM words CROSS JOIN chunks "
            "ON chunks.words_row = words.rowid WHERE words MATCH ? LIMIT ?"
        )
        return len(self._database.execute(statement, (_expression((word,)), most + 1)).fetchall())

    def _count(self, word: str) -> int:
        """Chunks that have a word, or about so many with words that begin with it; kept, as of `the` it takes long."""
        if word not in self._counts:
            start = word.rstrip("*")
            end = start if start == word else f"{start}\U0010ffff"
            query = "SELECT total(doc) FROM vocabulary WHERE term BETWEEN ? AND ?"
            self._counts[word] = int(self._database.execute(query, (start, end)).fetchone()[0])
        return self._counts[word]


def _expression(term: tuple[str, ...]) -> str:
    """A term in FTS5's language, in which what stands in quotes is no operator."""
    words = " ".join(term)
    return f'"{words.rstrip("*")}" *' if words.endswith("*") else f'"{words}"'
