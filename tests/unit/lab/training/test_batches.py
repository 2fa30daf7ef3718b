"""Rows and batches: the layout that the generation engine relies on, and which tokens count."""

from random import Random

import numpy as np
import pytest
from tokenizers import Tokenizer

from tandem.corpora import WEIGHTS
from tandem_lab.training.batches import (
    NOT_COUNTED,
    collate,
    encode_row,
    even_targets,
    prompt_ids,
)
from tandem_lab.training.phrases import HEADS, TAILS
from tandem_lab.training.samples import CORPUS, draw_sample
from tandem_lab.training.tokenizer import EOS_ID


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(WEIGHTS / "tokenizer.json"))


def test_row_says_the_answer_and_ends(tokenizer):
    sample = draw_sample(Random(1), "heldout", 2, case="right_page")
    row = encode_row(tokenizer, sample)
    prompt = prompt_ids(tokenizer, sample.document, sample.question.text)
    assert row.ids[: len(prompt)] == prompt
    assert tokenizer.decode(row.ids[len(prompt) : -1]) == f" {sample.question.answer}"
    assert row.ids[-1] == EOS_ID
    assert row.start == len(prompt)
    assert tokenizer.decode(row.ids[row.kind]) == f" {sample.question.kind}"
    assert tokenizer.decode(row.ids[row.title]) == f" {sample.question.title}"


def _targets(tokenizer: Tokenizer, labels: list[int]) -> list[set[str]]:
    """The texts that each label has as equally probable targets."""
    size, targets = tokenizer.get_vocab_size(), even_targets(tokenizer)
    groups = [[label] if label < size else np.flatnonzero(targets[label - size]) for label in labels]
    return [{tokenizer.decode([token]) for token in group} for group in groups]


def test_even_targets_are_even_over_all_kinds_of_a_domain_and_all_syllables(tokenizer):
    targets = even_targets(tokenizer)
    assert targets.sum(1) == pytest.approx(1)
    assert targets.max(1) == pytest.approx([1 / 8] * 8 + [1 / 100, 1 / 165])
    assert all(len(set(target.tolist())) == 2 for target in targets)  # 0 and its share


def test_what_the_document_tells_is_the_target_and_otherwise_all_are(tokenizer):
    for case in CORPUS.shares:
        sample = draw_sample(Random(2), "train", 1, case=case)
        row, asked = encode_row(tokenizer, sample), sample.question
        (kind,) = _targets(tokenizer, row.labels[row.kind])
        title = _targets(tokenizer, row.labels[row.title])
        told = {f" {asked.kind}"}
        assert kind == (told if case == "own_note" else {f" {kind}" for kind in asked.domain.kinds})
        if asked.title in (sample.document or ""):
            assert [len(part) for part in title] == [1] * 4
        else:
            assert title == [{f" {head}" for head in HEADS}, set(TAILS)] * 2


def test_labels_are_the_next_ids_and_padding_does_not_count(tokenizer):
    rows = [encode_row(tokenizer, draw_sample(Random(seed), "train", 3)) for seed in range(6)]
    batch = collate(rows)
    assert batch.ids.shape == batch.labels.shape
    is_id = (batch.labels[:, :-1] != NOT_COUNTED) & (batch.labels[:, :-1] < tokenizer.get_vocab_size())
    assert np.array_equal(batch.labels[:, :-1][is_id], batch.ids[:, 1:][is_id])
    for r, row in enumerate(rows):
        assert batch.labels[r, : len(row.ids) - 1].tolist() == row.labels[1:]
        assert (batch.labels[r, len(row.ids) - 1 :] == NOT_COUNTED).all()
