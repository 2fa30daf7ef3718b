"""Documents: ids, metadata, and the chunks they are cut into."""

from __future__ import annotations

import pytest

from tandem.retrieval.documents import Document, Window, join_texts, split
from tests.unit.retrieval.helpers import CHUNK_CHARS, OVERLAP

ROWS = [f"{number}\tHall {number}\t{10 * number}" for number in range(1, 60)]


def document(text: str, source: str = "a.txt") -> Document:
    return Document(page_content=text, metadata={"source": source})


def test_a_chunk_is_under_its_headings() -> None:
    """Those of the levels above, none of a section that has ended, and no comment of a listing."""
    text = "# A\n## B\nb\n# C\n```\n# no\n```\n### D\n" + "d " * 60
    heads = {
        tuple(line for line in chunk.page_content.splitlines() if line.startswith("#"))
        for chunk in split([document(text, "a.html")], 40, 0)
        if "d d" in chunk.page_content
    }
    assert heads == {("# C", "### D")}


@pytest.mark.parametrize("window", [None, Window(80, len)])
def test_a_row_is_whole_and_under_its_first(window: Window | None) -> None:
    """The first row stands in every chunk of a table; text behind the table has none."""
    text = "\n".join(["# Halls", "No.\tName\t2026", *ROWS, "", "They are open on Friday. " * 5])
    chunks = [chunk.page_content for chunk in split([document(text, "a.xlsx")], 100, 20, window=window)]
    assert set(ROWS) <= {line for chunk in chunks for line in chunk.splitlines()}
    in_table = [chunk for chunk in chunks if "\tHall" in chunk]
    assert len(in_table) > 10
    assert all("No.\tName\t2026" in chunk.splitlines() for chunk in in_table)
    assert all("# Halls" in chunk for chunk in chunks)
    behind = [chunk for chunk in chunks if "Friday" in chunk and "Hall " not in chunk]
    assert behind
    assert not any("2026" in chunk for chunk in behind)
    if window is not None:
        assert max(map(len, chunks)) <= 80


@pytest.mark.parametrize(
    ("table", "spelled"),
    [
        (
            "part\tshelf\tstock\nhub\tA1\t3\nrim\t\t7\told",
            ["part: hub; shelf: A1; stock: 3", "part: rim; stock: 7; old"],
        ),
        ("|name|job|deputy|\n|:-|-|-|\n| Ida | rigger ||\n", ["name: Ida; job: rigger"]),
        ("part\tshelf\thub\nrim\tA\tspoke", []),  # which may have no names
        ("part\t2025\t2026\nhub\t1\t3", []),
        ("part\tstock\nhub\t3", []),
        ("part\t\tstock\nhub\tA1\t3", []),
        ("part\tshelf\tstock", []),
    ],
)
def test_a_row_under_names_is_a_chunk_of_its_own(table: str, spelled: list[str]) -> None:
    """Names are what has no digits above digits, or what Markdown says; else the table stands as it is."""
    text = f"# Parts\nAsk first.\n\n{table}\n\nThanks."
    chunks = [chunk.page_content for chunk in split([document(text, "a.md")], 800, 100)]
    rows = [f"# Parts\n{row}" for row in spelled]
    assert chunks == (["# Parts\nAsk first.", *rows, "# Parts\nThanks."] if spelled else [text])


def test_a_long_table_stands_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.retrieval.documents.MAX_ROWS", 58)
    table = "\n".join(["No.\tName\tSeats", *ROWS])
    assert len(split([document(table, "a.xlsx")], 10_000, 20)) == 1
    assert len(split([document(table.rpartition("\n")[0], "a.xlsx")], 10_000, 20)) == 58


def test_chunks_keep_to_the_length_and_hold_every_word() -> None:
    words = [f"word{n}" for n in range(500)]
    chunks = split([document(" ".join(words))], 100, 20)
    assert all(len(chunk.page_content) <= 100 for chunk in chunks)
    assert set(" ".join(chunk.page_content for chunk in chunks).split()) == set(words)
    assert [chunk.metadata["chunk"] for chunk in chunks] == list(range(len(chunks)))
    last, first = chunks[0].page_content.split()[-1], chunks[1].page_content.split()
    assert last in first


@pytest.mark.parametrize("source", ["a.txt", "a.md"])
def test_chunks_that_were_cut_within_a_paragraph_can_be_joined(source: str) -> None:
    """What stands above both is there once."""
    body = " ".join(f"word{n}" for n in range(200))
    text = body if source == "a.txt" else f"# Manual\n\n## Heating\n\n{body}"
    first, *others = (chunk.page_content for chunk in split([document(text, source)], 100, 20))
    for other in others:
        joined = join_texts(first, other)
        assert joined is not None
        first = joined
    assert first.split() == text.split()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a", ""),
        ("see page 1", "12 apples"),
        ("the old shelf 4", "shelf 40 has jars"),
        ("Call Anna", "Anna's number"),
        ("| part | stock |", "| shelf | 3 |"),
    ],
)
def test_others_are_not_joined(first: str, second: str) -> None:
    assert join_texts(first, second) is None


def test_a_table_that_was_cut_is_joined_with_its_first_row_once() -> None:
    rows = ["| part | stock |", "|---|---|", *(f"| part{n} | {7 * n} |" for n in range(60))]
    first, second, *_ = (each.page_content for each in split([document("\n".join(rows), "a.md")], 800, 100))
    joined = join_texts(first, second)
    assert joined is not None
    assert joined.splitlines() == rows


@pytest.mark.parametrize("text", ["7" * 1000, "ab. " * 250, "\u6c34" * 999 + "\u3002"])
def test_no_chunk_is_longer_than_the_embedders_window(text: str) -> None:
    """Here a character is a token, as digits and Chinese are for many embedders."""
    chunks = split([document(text)], 800, 0, window=Window(100, len))
    assert all(len(chunk.page_content) <= 100 for chunk in chunks)
    assert set("".join(chunk.page_content for chunk in chunks)) | {" "} == set(text) | {" "}
    assert sum(len(chunk.page_content) for chunk in chunks) >= len(text.replace(" ", ""))
    assert len(split([document(text)], 800, 0)) <= 3


def test_ids_are_stable_and_differ_by_text_source_occurrence_and_key() -> None:
    def ids(*documents: Document, key: bytes = b"") -> list[str | None]:
        return [chunk.id for chunk in split(documents, CHUNK_CHARS, OVERLAP, key)]

    first = [document("same"), document("same"), document("same", "b.txt"), document("other")]
    assert len(set(ids(*first) + ids(*first, key=b"k") + ids(*first, key=b"l"))) == 12
    assert ids(document("new", "0.txt"), *first)[1:] == ids(*first)
