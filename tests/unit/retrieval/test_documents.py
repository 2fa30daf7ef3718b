"""Ids and metadata of documents."""

from __future__ import annotations

from datetime import date

from tandem.retrieval.documents import ID_BYTES, Document, chunk_id, describe_passage, split, with_metadata


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
    assert "".join("".join(chunks).split()) == "".join(text.split()), "nothing is lost or doubled"


def test_headings_alone_are_a_chunk_where_nothing_follows() -> None:
    document = Document(page_content="# Empty\n\n## Still", metadata={"source": "a.md"})
    assert [chunk.page_content for chunk in split([document], 10, 0)] == ["# Empty\n\n## Still"]
