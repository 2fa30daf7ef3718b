"""Documents: ids, metadata, and the chunks they are cut into."""

from __future__ import annotations

from datetime import date

import pytest

from tandem.errors import RetrievalError
from tandem.retrieval.documents import (
    ID_BYTES,
    Document,
    Window,
    chunk_id,
    describe_passage,
    split,
    with_metadata,
)
from tests.unit.retrieval.helpers import CHUNK_CHARS, OVERLAP


def test_an_id_is_stable_and_opaque() -> None:
    assert chunk_id("Mira enjoys puzzles", "notes/mira.txt") == "bb627b06ba340d9cc841"
    assert len(chunk_id("", "")) == 2 * ID_BYTES


def test_an_id_depends_on_text_source_occurrence_and_key() -> None:
    ids = {chunk_id("a", "s"), chunk_id("b", "s"), chunk_id("a", "t"), chunk_id("a", "s", 1)}
    ids |= {chunk_id("a", "s", key=b"k"), chunk_id("a", "s", key=b"l")}
    assert len(ids) == 6


def test_own_metadata_wins_and_the_given_is_kept() -> None:
    document = with_metadata("text", {"source": "theirs", "author": "Ada"}, source="ours", line=3)
    assert document.metadata == {"source": "ours", "given_source": "theirs", "author": "Ada", "line": 3}


def test_half_a_surrogate_pair_becomes_writable() -> None:
    assert with_metadata("a\ud800b", {}, source="s").page_content == "a?b"
    assert chunk_id("a", "bad\udcff name")


def test_metadata_become_plain_values() -> None:
    """A LangChain store's may hold what the client cannot import."""
    metadata = {"source": "a.md", "when": date(2024, 5, 6), 3: object, "tags": ("a",)}
    passage = describe_passage(Document(page_content="text", metadata=metadata))
    assert passage["metadata"] == {"source": "a.md", "when": "2024-05-06", "3": str(object), "tags": ["a"]}


def test_a_heading_is_no_chunk_of_its_own() -> None:
    title, sections = (
        "# Boiler",
        [f"## Year {year}\n\n" + f"It was serviced in {year}. " * 30 for year in (2024, 2025)],
    )
    text = "\n\n".join([title, *sections])
    chunks = [
        chunk.page_content
        for chunk in split([Document(page_content=text, metadata={"source": "a.md"})], 800, 0)
    ]
    assert chunks[0].startswith("# Boiler\n\n## Year 2024\n\nIt was")
    assert all("It was serviced" in chunk for chunk in chunks)
    texts = [chunks[0], *(chunk.removeprefix("# Boiler\n") for chunk in chunks[1:])]
    assert texts[1].startswith("## Year 2025\n\nIt was")
    assert "".join("".join(texts).split()) == "".join(text.split()), "nothing is lost or doubled"


def test_a_chunk_is_under_its_headings() -> None:
    """Those of the levels above, none of a section that has ended, and no comment of a listing."""
    text = "# A\n## B\nb\n# C\n```\n# no\n```\n### D\n" + "d " * 60
    heads = {
        tuple(line for line in chunk.page_content.splitlines() if line.startswith("#"))
        for chunk in split([Document(page_content=text, metadata={"source": "a.html"})], 40, 0)
        if "d d" in chunk.page_content
    }
    assert heads == {("# C", "### D")}


ROWS = [f"{number}\tHall {number}\t{10 * number}" for number in range(1, 60)]


@pytest.mark.parametrize("window", [None, Window(80, len)])
def test_a_row_is_whole_and_under_its_first(window: Window | None) -> None:
    """The first row stands in every chunk of a table; text behind the table has none."""
    text = "\n".join(["# Halls", "No.\tName\tSeats", *ROWS, "", "They are open on Friday. " * 5])
    chunks = [chunk.page_content for chunk in split([document(text, "a.xlsx")], 100, 20, window=window)]
    assert set(ROWS) <= {line for chunk in chunks for line in chunk.splitlines()}
    in_table = [chunk for chunk in chunks if "\tHall" in chunk]
    assert len(in_table) > 10
    assert all("No.\tName\tSeats" in chunk.splitlines() for chunk in in_table)
    assert all("# Halls" in chunk for chunk in chunks)
    behind = [chunk for chunk in chunks if "Friday" in chunk and "Hall " not in chunk]
    assert behind
    assert not any("Seats" in chunk for chunk in behind)
    if window is not None:
        assert max(map(len, chunks)) <= 80


def test_a_table_of_markdown_keeps_its_rule() -> None:
    rows = [f"| {number} | Hall {number} |" for number in range(30)]
    text = "\n".join(["| No. | Name |", "|---|:-:|", *rows])
    chunks = split([document(text, "a.md")], 100, 0)
    assert len(chunks) > 5
    assert all(chunk.page_content.startswith("| No. | Name |\n|---|:-:|\n| ") for chunk in chunks)


def test_headings_leave_half_of_the_window() -> None:
    """Where all do not fit, the nearest are kept; one that is longer than the window is text."""
    text = "# " + "far " * 12 + "\n## near\n" + "word " * 100
    chunks = [chunk.page_content for chunk in split([document(text, "a.md")], 800, 0, window=Window(60, len))]
    assert all(len(chunk) <= 60 for chunk in chunks)
    assert all("## near\n" in chunk for chunk in chunks if "word" in chunk)
    long = document("# " + "long " * 40, "a.md")
    whole = [chunk.page_content for chunk in split([long], 800, 0, window=Window(60, len))]
    assert all(len(chunk) <= 60 for chunk in whole)
    assert " ".join(whole).count("long") >= 40


def test_headings_alone_are_a_chunk_where_nothing_follows() -> None:
    document = Document(page_content="# Empty\n\n## Still", metadata={"source": "a.md"})
    assert [chunk.page_content for chunk in split([document], 10, 0)] == ["# Empty\n\n## Still"]


# ---- Lengths, numbers and ids of chunks --------------------------------------------------------------


def document(text: str, source: str = "a.txt", **metadata: object) -> Document:
    return Document(page_content=text, metadata={"source": source, **metadata})


def test_a_short_document_is_one_chunk_with_its_metadata() -> None:
    (chunk,) = split([document("A short page.", author="Ada")], CHUNK_CHARS, OVERLAP)
    assert chunk.page_content == "A short page."
    assert chunk.metadata == {"source": "a.txt", "author": "Ada", "chunk": 0}


def test_chunks_keep_to_the_length_and_hold_every_word() -> None:
    words = [f"word{n}" for n in range(500)]
    chunks = split([document(" ".join(words))], 100, 20)
    assert all(len(chunk.page_content) <= 100 for chunk in chunks)
    assert set(" ".join(chunk.page_content for chunk in chunks).split()) == set(words)
    assert [chunk.metadata["chunk"] for chunk in chunks] == list(range(len(chunks)))
    last, first = chunks[0].page_content.split()[-1], chunks[1].page_content.split()
    assert last in first


@pytest.mark.parametrize("text", ["7" * 1000, "ab. " * 250, "\u6c34" * 999 + "\u3002"])
def test_no_chunk_is_longer_than_the_embedders_window(text: str) -> None:
    """Here a character is a token, as digits and Chinese are for many embedders."""
    chunks = split([document(text)], 800, 0, window=Window(100, len))
    assert all(len(chunk.page_content) <= 100 for chunk in chunks)
    assert set("".join(chunk.page_content for chunk in chunks)) | {" "} == set(text) | {" "}
    assert sum(len(chunk.page_content) for chunk in chunks) >= len(text.replace(" ", ""))
    assert len(split([document(text)], 800, 0)) <= 3


def test_markdown_is_cut_at_headings() -> None:
    text = "# One\n\n" + "a " * 30 + "\n\n## Two\n\n" + "b " * 30
    chunks = split([document(text, "a.md")], 80, 0)
    assert [chunk.page_content[:6] for chunk in chunks] == ["# One\n", "# One\n"]
    assert chunks[1].page_content.startswith("# One\n## Two\n\nb")


def test_chunk_numbers_count_per_source() -> None:
    documents = [document("one", "a.jsonl"), document("two", "a.jsonl"), document("three", "b.txt")]
    assert [chunk.metadata["chunk"] for chunk in split(documents, CHUNK_CHARS, OVERLAP)] == [0, 1, 0]


def test_ids_are_stable_and_differ_even_for_equal_texts() -> None:
    documents = [document("same"), document("same"), document("same", "b.txt")]
    ids = [chunk.id for chunk in split(documents, CHUNK_CHARS, OVERLAP)]
    assert len(set(ids)) == 3
    assert ids == [chunk.id for chunk in split(documents, CHUNK_CHARS, OVERLAP)]
    assert not set(ids) & {chunk.id for chunk in split(documents, CHUNK_CHARS, OVERLAP, b"secret")}


def test_an_unchanged_chunk_keeps_its_id_when_others_come() -> None:
    before = split([document("kept")], CHUNK_CHARS, OVERLAP)
    after = split([document("new", "0.txt"), document("kept")], CHUNK_CHARS, OVERLAP)
    assert before[0].id == after[1].id


@pytest.mark.parametrize(
    ("chunk_chars", "overlap", "sentence"),
    [
        (0, 0, "A chunk needs at least 1 character, but chunk_chars is 0; raise it."),
        (10, 10, "The overlap must lie between 0 and chunk_chars - 1 = 9, but it is 10; change it."),
        (10, -1, "The overlap must lie between 0 and chunk_chars - 1 = 9, but it is -1; change it."),
    ],
)
def test_lengths_that_make_no_sense(chunk_chars: int, overlap: int, sentence: str) -> None:
    with pytest.raises(RetrievalError) as caught:
        split([document("a")], chunk_chars, overlap)
    assert str(caught.value) == sentence
