"""Ids and metadata of documents."""

from __future__ import annotations

from tandem.retrieval.documents import ID_BYTES, chunk_id, with_metadata


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
