"""Rows and batches: the layout that the generation engine relies on, and which tokens count."""

from random import Random

import numpy as np
import pytest
from tokenizers import Tokenizer

from tandem.corpora import WEIGHTS
from tandem.lab.training.batches import collate, draw_batches, encode_roll_call, encode_row, prompt_ids
from tandem.lab.training.samples import CORPUS, draw_roll_call, draw_sample
from tandem.lab.training.tokenizer import BOS_ID, EOS_ID


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(WEIGHTS / "tokenizer.json"))


def test_prompt_is_bos_document_part_query_part(tokenizer):
    document, query = "Mira enjoys puzzle games.", "Which game should Mira try?"
    document_ids = tokenizer.encode("Mira enjoys puzzle games.\n").ids
    query_ids = tokenizer.encode("Question: Which game should Mira try?\nAnswer:").ids
    assert prompt_ids(tokenizer, document, query) == [BOS_ID, *document_ids, *query_ids]
    assert prompt_ids(tokenizer, None, query) == [BOS_ID, *query_ids]


def test_row_says_the_answer_and_ends(tokenizer):
    sample = draw_sample(Random(1), "heldout", 2, case="right_page")
    row = encode_row(tokenizer, sample)
    prompt = prompt_ids(tokenizer, sample.document, sample.question.text)
    assert row.ids[: len(prompt)] == prompt
    assert tokenizer.decode(row.ids[len(prompt) : -1]) == f" {sample.question.answer}"
    assert row.ids[-1] == EOS_ID
    assert tokenizer.decode(row.ids[row.kind]) == f" {sample.question.kind}"
    assert tokenizer.decode(row.ids[row.title]) == f" {sample.question.title}"


def test_a_masked_kind_does_not_count_and_another_counts_as_told(tokenizer):
    masked = encode_row(tokenizer, draw_sample(Random(2), "train", 1, case="right_page"), 3.0)
    counted = encode_row(tokenizer, draw_sample(Random(2), "train", 1, case="own_note"), 3.0)
    assert set(masked.weights[masked.kind]) == {0.0}
    assert set(counted.weights[counted.kind]) == {3.0}
    assert set(masked.weights[masked.title]) == {1.0}


def test_in_a_roll_call_only_kinds_count(tokenizer):
    call = draw_roll_call(Random(3), "train", 1, CORPUS)
    row = encode_roll_call(tokenizer, call, 2.0)
    told = [token for token, weight in zip(row.ids, row.weights, strict=True) if weight]
    assert tokenizer.decode(told) == "".join(f" {kind}" for _, kind in call.likes)


def test_labels_are_the_next_ids_and_padding_does_not_count(tokenizer):
    rows = [encode_row(tokenizer, draw_sample(Random(seed), "train", 3)) for seed in range(6)]
    batch = collate(rows)
    assert batch.ids.shape == batch.labels.shape == batch.weights.shape
    assert np.array_equal(
        batch.labels[:, :-1][batch.weights[:, :-1] > 0], batch.ids[:, 1:][batch.weights[:, :-1] > 0]
    )
    for r, row in enumerate(rows):
        assert batch.weights[r].sum() == sum(row.weights)
        assert not batch.weights[r, len(row.ids) - 1 :].any()


def test_same_random_state_gives_the_same_batches(tokenizer):
    first, second = (draw_batches(Random(5), tokenizer, CORPUS, 4, 2, 2.0) for _ in range(2))
    assert all(np.array_equal(a.ids, b.ids) for a, b in zip(first, second, strict=True))
