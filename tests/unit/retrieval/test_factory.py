"""Which documents a party's index holds: some that come with Tandem, or the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem import Config
from tandem.corpora import HOUSEHOLD
from tandem.errors import RetrievalError
from tandem.retrieval import build_index, update_index
from tandem.retrieval.factory import corpus_of


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
