"""Ids and metadata of documents."""

from __future__ import annotations

from datetime import date

from tandem.retrieval.documents import ID_BYTES, Document, chunk_id, describe_passage, with_metadata


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
