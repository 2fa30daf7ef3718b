"""What counts as a word, and searching for it: spellings, scripts, codes, hostile queries, and damage."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tandem.errors import RetrievalError
from tandem.messages import wire
from tandem.retrieval import words
from tandem.retrieval.build import build_index
from tandem.retrieval.documents import Document
from tandem.retrieval.index import Index
from tandem.retrieval.store import NAME, Snapshot
from tandem.retrieval.words import mark_of, read_marks
from tests.unit.retrieval.conftest import WordEmbedder
from tests.unit.retrieval.helpers import edit, make_index, words_of

FORMS = [
    ("STRASSE", "straße"),
    ("Zürich", "ZURICH"),
    ("cafe\u0301", "CAFÉ"),
    ("İstanbul", "istanbul"),
    ("Łódź", "lodz"),
    ("Ærø", "aero"),
    ("ΣΊΣΥΦΟΣ", "σισυφος"),
    ("Ёлка", "елка"),
    ("\uff34\uff4f\uff4b\uff59\uff4f", "tokyo"),
    ("ｶﾞｲﾄﾞ", "ガイド"),
    ("ガ", "カ\u3099"),
    ("\u1112\u1161\u11ab\u1100\u1173\u11af", "한글"),
    ("ﬁnal", "final"),
    ("Donau\u00addampf", "donaudampf"),
    ("שָׁלוֹם", "שלום"),
    ("كِتَـاب", "كتاب"),
    ("٠٤٤ ๓", "044 3"),
    ("Tandem™", "tandem"),
]
"""Two spellings of each, which find each other."""
PIECES = [
    *("*^:\0+-{}'()_" + '"'),
    *("NEAR(", " OR ", " AND ", "NOT", "skis", "row", "東", "京都", "A4", "77", "v2.13", "@"),
]


@pytest.mark.parametrize(("one", "other"), FORMS)
def test_spellings_find_each_other(tmp_path: Path, embedder, one: str, other: str) -> None:
    texts = [f"{one} is here", f"{other} is here", "neither is here"]
    for normal in (str, lambda text: unicodedata.normalize("NFD", text)):
        index = index_of(tmp_path / normal(one), embedder, texts)
        assert set(found(index, normal(one))) == set(found(index, normal(other))) == {0, 1}


@given(st.text(max_size=40))
@settings(max_examples=150, deadline=None)
def test_folding_again_changes_nothing(text: str) -> None:
    folded = words.fold(text)
    assert words.fold(folded) == folded
    for form in ("NFC", "NFD"):
        assert words.terms(unicodedata.normalize(form, text)) == words.terms(text)


NOTES = [
    "Invoice INV-2024-0117 of Halden Tents was paid.",
    "Invoice INV-2024-0171 of Halden Tents is open.",
    "Row A4-77 in the cellar holds the skis.",
    "Row A7-47 in the cellar holds the tent.",
    "Call Anna at +41 44 555 01 12, or write to anna.meier@example.org.",
    "Call Bruno at +41 44 555 01 21, or write to bruno.meier@example.org.",
    "The controller runs v2.13.0 since May.",
    "The controller ran v2.12.3 before.",
    "IBAN CH93 0076 2011 6238 5295 7, Covid-19 certificate below.",
    "東京都の天気は晴れです。",
    "京都の寺を訪ねた。",
    "서울에서 부산까지 기차로 간다.",
    "สวัสดีครับ ผมชื่อสมชาย",
    "上海明天下雨,北京晴。",
]


QUERIES = {
    0: ("INV-2024-0117", "invoice 0117?"),
    1: ("What became of inv 2024-0171", "INV20240171"),
    2: ("A4-77", "a4 77", "A477"),
    3: ("row A7-47",),
    4: ("+41 44 555 01 12", "+41445550112", "anna.meier@example.org"),
    5: ("0041 44 555-01-21", "555 01 21", "mail of bruno.meier"),
    6: ("v2.13.0", "version 2.13"),
    7: ("2.12.3",),
    8: ("CH9300762011623852957", "covid19"),
    9: ("東京", "晴れです"),
    10: ("寺",),
    11: ("서울", "부산"),
    12: ("สมชาย",),
    13: ("北京", "雨"),
}
"""What is searched for, by the note that is to be found first."""


@pytest.mark.parametrize("row", QUERIES)
def test_names_numbers_and_codes_as_typed_and_in_parts(notes: Index, row: int) -> None:
    assert [found(notes, query, 1) for query in QUERIES[row]] == [[row]] * len(QUERIES[row])


def test_a_term_of_one_or_two_characters_finds_all_that_hold_it_and_no_other(
    tmp_path: Path, embedder
) -> None:
    """Against Python's `in`, for scripts without spaces."""
    rng = np.random.default_rng(0)
    alphabet = list("東京都上海北天気の雨晴")
    texts = ["".join(rng.choice(alphabet, rng.integers(1, 7))) for _ in range(300)]
    index = index_of(tmp_path / "i", embedder, texts)
    for term in [*alphabet, *("".join(rng.choice(alphabet, 2)) for _ in range(40))]:
        assert sorted(found(index, term, 300)) == [row for row, text in enumerate(texts) if term in text]


@given(
    st.one_of(
        st.text(st.characters(exclude_categories=[]), max_size=60),
        st.lists(st.sampled_from(PIECES), max_size=12).map("".join),
        st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join),
    )
)
@settings(max_examples=200, deadline=None)
@example("NEAR(skis tent)")
@example('"')
@example("skis AND tent")
@example("NOT skis")
@example("parts:skis")
@example("ski*")
@example("^row")
@example("skis\0tent")
@example("'; DROP TABLE words --")
def test_nothing_in_a_query_is_an_operator(notes: Index, query: str) -> None:
    """Whatever it holds, it finds the notes that have one of its terms, one by one, and no others."""
    expected = {
        row for row, note in enumerate(NOTES) if any(holds(note, term) for term in words.terms(query))
    }
    assert set(found(notes, query, 20)) == expected


def holds(text: str, term: tuple[str, ...]) -> bool:
    for column in words.entries(text):
        stored = column.split()
        if term[0].endswith("*"):
            return any(word.startswith(term[0][:-1]) for word in stored)
        if any(tuple(stored[n : n + len(term)]) == term for n in range(len(stored))):
            return True
    return False


def test_ranks_are_those_of_bm25_and_equals_stand_in_their_order(tmp_path: Path, embedder) -> None:
    """Against the formula, for plain words: k1 = 1.2, b = 0.75 (FTS5's documentation)."""
    rng = np.random.default_rng(1)
    vocabulary = [f"word{chr(97 + n)}" for n in range(12)]
    texts = [" ".join(rng.choice(vocabulary, rng.integers(3, 12))) for _ in range(80)] * 2
    index = index_of(tmp_path / "i", embedder, texts)
    documents = [[entry for column in words.entries(text) for entry in column.split()] for text in texts]
    mean = np.mean([len(document) for document in documents])
    for query in (["worda", "wordb"], ["wordc"], vocabulary[3:9]):
        scores = np.zeros(len(texts))
        for word in query:
            count = sum(word in document for document in documents)
            idf = max(1e-6, np.log((len(texts) - count + 0.5) / (count + 0.5)))
            for row, document in enumerate(documents):
                often = document.count(word)
                scores[row] += idf * often * 2.2 / (often + 1.2 * (0.25 + 0.75 * len(document) / mean))
        best = np.lexsort((np.arange(len(texts)), -np.round(scores, 12)))
        expected = [int(row) for row in best if scores[row] > 0][:40]
        assert found(index, " ".join(query), 40) == expected


# ---- builds, updates, deletions ------------------------------------------------------------------------------


def test_what_is_deleted_is_not_found_and_not_on_the_disk(tmp_path: Path, embedder) -> None:
    folder, directory = tmp_path / "notes", tmp_path / "index"
    folder.mkdir()
    for name in ("kept", "gone", "other"):
        (folder / f"{name}.txt").write_text(f"secret zq{name}word 4417-{name}")
    build_index(folder, directory, embedder)
    assert any(b"zqgoneword" in path.read_bytes() for path in directory.iterdir())
    (folder / "gone.txt").unlink()
    build_index(None, directory, embedder)
    with Snapshot(directory) as index:
        counts = [len(index.search_words(word, 5)) for word in ("zqgoneword", "zqkeptword", "secret")]
    assert counts == [0, 1, 2]
    assert not any("gone" in word for word, *_ in words_of(directory))
    content = b"".join(path.read_bytes() for path in directory.iterdir())
    assert b"goneword" not in content
    assert b"keptword" in content


# ---- damage --------------------------------------------------------------------------------------------------

DAMAGE = [
    "DELETE FROM words_data WHERE id > 10",
    "UPDATE words_data SET block = zeroblob(length(block)) WHERE id > 10",
    "UPDATE words_data SET block = 'text' WHERE id = 1",
    "UPDATE words_docsize SET sz = zeroblob(2) WHERE id = 1",
    "DELETE FROM words_idx",
    "UPDATE chunks SET words_row = words_row + 100",
    "DELETE FROM words_config",
    "DROP TABLE words_data",
    "DROP TABLE words",
    "DROP TABLE vocabulary",
]


@pytest.mark.parametrize("statement", DAMAGE)
def test_damage_is_found_and_the_next_build_repairs_it(
    directory: Path, chunks: list[Document], embedder, statement: str
) -> None:
    whole = words_of(directory)
    edit(directory, statement)
    sentence = r"^The index .* is damaged: .*; build it again with `tandem index`\.$"
    with pytest.raises(RetrievalError, match=sentence):
        Index.open(directory)
    make_index(directory, chunks, embedder).close()
    assert words_of(directory) == whole


def test_damage_while_an_index_is_open(directory: Path) -> None:
    """A search says so in the usual sentence, or finds what it found; it never quotes a text."""
    with Snapshot(directory) as index:
        path = directory / NAME
        content = bytearray(path.read_bytes())
        for place in range(4096, len(content)):
            content[place] ^= 0x5A
        path.write_bytes(content)
        with pytest.raises(RetrievalError, match=r"is damaged: .* cannot be read"):
            index.search_words("chess", 3)


def test_marks_say_which_words_few_chunks_or_files_have(tmp_path: Path, embedder) -> None:
    texts = [f"The tariff {name} {number} cents." for number, name in enumerate(("Dayhen", "Seagull"))]
    with index_of(tmp_path / "few", embedder, [*texts, *["The tariff."] * 2]) as index:
        marked = read_marks(index.marks(texts[:1]))
    assert marked == {
        mark_of(word): word not in ("the", "tariff") for word in texts[0].rstrip(".").lower().split()
    }
    rows = [
        Document(page_content=f"Zone Amber: day {number}", metadata={"source": "a"}) for number in range(9)
    ]
    others = [
        Document(page_content="Zone.", metadata={"source": f"b{number}"})
        for number in range(words.LEAST_FILES)
    ]
    for row, chunk in enumerate(chunks := [*rows, *others]):
        chunk.id = str(row)
    with make_index(tmp_path / "files", chunks, embedder) as index:
        marked = read_marks(index.marks(["Zone Amber"]))
    assert marked == {mark_of("zone"): False, mark_of("Amber"): True}  # nine rows, but one file


def test_marks_are_bounded_and_the_rarest_come_first(tmp_path: Path, embedder) -> None:
    texts = [" ".join(f"w{number}" for number in range(start, 400)) for start in (0, 100, 200, 300)]
    with index_of(tmp_path, embedder, texts) as index:
        marks = index.marks(texts)
    assert len(marks) == words.MARK_BYTES * words.MAX_MARKS == wire.MARK_BYTES * wire.MAX_MARKS
    assert {mark_of(f"w{number}") for number in range(100)} <= read_marks(marks).keys()


# ---- helpers -------------------------------------------------------------------------------------------------


def index_of(directory: Path, embedder, texts: list[str]) -> Index:
    chunks = [Document(id=str(row), page_content=text, metadata={}) for row, text in enumerate(texts)]
    return make_index(directory, chunks, embedder)


def found(index: Snapshot, query: str, k: int = 10) -> list[int]:
    rows: list[int] = index.search_words(query, k).tolist()
    return rows


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return index_of(tmp_path_factory.mktemp("notes") / "i", WordEmbedder(), NOTES)
