"""Training samples: what counts as told follows from the document, and only held-in words are shown."""

import re
from random import Random

import pytest

from tandem_lab.training.phrases import Domain
from tandem_lab.training.samples import (
    CORPUS,
    Case,
    draw_roll_call,
    draw_sample,
)
from tandem_lab.training.synthetic import split_of


def _kind_shown(document: str, domain: Domain) -> str:
    (kind,) = {kind for kind in domain.kinds if f" {kind} {domain.noun}" in document}
    return kind


def test_what_counts_as_told_is_what_the_document_says():
    rng = Random(12)
    for case in CORPUS.shares:
        for _ in range(30):
            sample = draw_sample(rng, "train", 2, case=case)
            asked = sample.question
            says = re.search(rf"\b{asked.name}\b.* {asked.kind} {asked.domain.noun}", sample.document or "")
            assert sample.is_kind_told == (case == "own_note")
            assert sample.is_kind_told <= bool(says)
            assert sample.is_title_told == (asked.title in (sample.document or ""))


def test_kinds_shown_beside_a_page_are_uniform():
    """Chi-square of the pair (page's kind, answer's kind), 63 degrees of freedom: false alarm about 1e-9."""
    rng, counts = Random(13), dict.fromkeys(((a, b) for a in range(8) for b in range(8)), 0)
    for _ in range(8000):
        sample = draw_sample(rng, "train", 1, case="any_page")
        kinds = sample.question.domain.kinds
        shown = _kind_shown(sample.document or "", sample.question.domain)
        counts[kinds.index(shown), kinds.index(sample.question.kind)] += 1
    assert sum((n - 125) ** 2 / 125 for n in counts.values()) < 150


@pytest.mark.parametrize("case", list(CORPUS.shares))
def test_training_shows_no_held_out_word(case: Case):
    rng = Random(14)
    for _ in range(100):
        question = draw_sample(rng, "train", 2, case=case).question
        assert split_of(question.name) == split_of(question.title) == "train"


def test_roll_call_asks_after_people_in_the_document_and_after_one_stranger():
    rng = Random(16)
    for _ in range(100):
        samples = draw_roll_call(rng, "train", CORPUS)
        names = [sample.question.name for sample in samples]
        assert len(samples) == CORPUS.num_answers + 1
        assert len({sample.document for sample in samples}) == 1
        for sample in samples:
            is_named = bool(re.search(rf"\b{sample.question.name}\b", sample.document or ""))
            assert sample.is_kind_told == is_named
        assert sum(not sample.is_kind_told for sample in samples) == 1
        assert all(split_of(word) == "train" for word in names)
