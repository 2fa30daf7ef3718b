"""A cross-encoder as the scoring model, loaded from a folder as a user's would be: small, with random weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.errors import RetrievalError
from tandem.plugins.embedders import CrossEncoderScorer
from tests.unit.retrieval.tiny_bert import save_bert

WORDS = "mira likes puzzle games the best rated game is of"
TEXTS = ["Mira likes puzzle games.", "The best rated game is of the best.", "games"]
LENGTH = 32


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
