"""Texts that an experiment adds after the documents found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tandem.retrieval.build import build_index
from tandem.retrieval.index import Index
from tandem.retrieval.retriever import Retriever
from tandem_lab.baselines.documents import score_texts
from tests.unit.retrieval.conftest import WordEmbedder


class Lengths:
    name = fingerprint = "lengths"

    def scores(self, text: str, documents: Sequence[str]) -> list[float]:
        return [float(len(document)) for document in documents]


def test_given_texts_are_scored_as_those_of_an_index(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    for name, text in (("a", "A lighthouse by the sea."), ("b", "Its keeper sleeps."), ("c", "Soup.")):
        (tmp_path / "pages" / f"{name}.txt").write_text(text)
    build_index(tmp_path / "pages", tmp_path / "index", WordEmbedder())
    for scorer in (None, Lengths()):
        retriever = Retriever(Index.open(tmp_path / "index"), WordEmbedder(), scorer)
        found = retriever.search("the lighthouse and its keeper", 3)
        texts = [hit.document.page_content for hit in reversed(found)]
        given = score_texts(texts, "the lighthouse and its keeper", retriever)
        assert [hit.id for hit in given] == ["given-1", "given-2", "given-3"]
        assert [hit.document.page_content for hit in given] == texts
        assert [hit.score for hit in given] == pytest.approx([hit.score for hit in reversed(found)])
    assert score_texts((), "a question", retriever) == []
