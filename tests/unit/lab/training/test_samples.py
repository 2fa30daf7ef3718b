"""Training samples: what counts as told follows from the document, and only held-in words are shown."""

import re
from dataclasses import replace
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

PEOPLE = replace(CORPUS, max_pages=0, num_people=(4, 6), num_answers=7)
"""Roll calls of people only."""


def test_shares_sum_to_one_and_cover_every_case():
    assert sum(CORPUS.shares.values()) == pytest.approx(1)
    assert set(CORPUS.shares) == set(Case.__args__)


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


def test_the_right_page_names_the_title_and_others_do_not():
    rng = Random(15)
    for case in CORPUS.shares:
        for _ in range(50):
            sample = draw_sample(rng, "train", 2, case=case)
            is_named = sample.question.title in (sample.document or "")
            assert is_named == (case == "right_page") or case == "any_page"


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


def test_names_that_share_a_syllable_are_shown_as_often_as_told():
    def share(near_name_share: float) -> float:
        rng, near = Random(17), 0
        for _ in range(100):
            samples = draw_roll_call(rng, "train", replace(CORPUS, near_name_share=near_name_share))
            first, second, *_ = dict.fromkeys(sample.question.name for sample in samples)
            near += first[:-2] == second[:-2] or first[-2:] == second[-2:]
        return near / 100

    assert share(0.0) < 0.2 < share(1.0)


def test_what_is_left_over_tells_no_kind():
    """Whoever copies a kind that no answer before has named is right no more often than with any kind of the document.

    Kinds that differ, each asked for once, were a way to answer without a look at names; half of them were right.
    """
    rng, num_right, num_luck = Random(19), 0.0, 0.0
    for _ in range(3000):
        samples = draw_roll_call(rng, "train", PEOPLE)
        shown = [
            kind for kind in samples[0].question.domain.kinds if f" {kind} " in (samples[0].document or "")
        ]
        last = samples[-1].question.kind
        left = [kind for kind in shown if kind not in {one.question.kind for one in samples[:-1]}]
        if left and samples[-1].is_kind_told:
            num_right += (last in left) / len(left)
            num_luck += 1 / len(shown)
    assert num_luck > 300
    assert num_right < num_luck
