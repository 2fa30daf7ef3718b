"""Training samples: a page must not tell what a person likes, and only held-in words are shown."""

from random import Random

import pytest

from tandem.lab.training.phrases import DOMAINS, Domain
from tandem.lab.training.samples import (
    COPYING,
    CORPUS,
    KIND_MASKED,
    Case,
    Lesson,
    draw_roll_call,
    draw_sample,
)
from tandem.lab.training.synthetic import split_of


@pytest.mark.parametrize("lesson", [COPYING, CORPUS])
def test_shares_sum_to_one_and_cover_every_case(lesson: Lesson):
    assert sum(lesson.shares.values()) == pytest.approx(1)
    assert set(lesson.shares) == set(Case.__args__)


def _kind_shown(document: str, domain: Domain) -> str:
    (kind,) = {kind for kind in domain.kinds if f" {kind} {domain.noun}" in document}
    return kind


def _share_of_matches(case: Case, num_samples: int) -> float:
    rng, num_matches = Random(11), 0
    for _ in range(num_samples):
        sample = draw_sample(rng, "train", 2, case=case)
        assert sample.document is not None
        shown = _kind_shown(sample.document, sample.question.domain)
        num_matches += shown == sample.question.kind
    return num_matches / num_samples


def test_where_a_page_of_the_domain_stands_beside_a_counted_kind_it_is_independent_of_it():
    """8,000 draws, six standard deviations: false alarm about 1e-9."""
    assert _share_of_matches("any_page", 8000) == pytest.approx(1 / 8, abs=6 * (7 / 64 / 8000) ** 0.5)


def test_a_page_chosen_by_the_answer_would_be_noticed():
    """The mutant: the kind counted beside pages of the answer's own kind, or never of it."""
    assert _share_of_matches("right_page", 200) == 1
    assert _share_of_matches("wrong_page", 200) == 0


def test_the_kind_is_masked_wherever_the_page_depends_on_it():
    rng = Random(12)
    for case in CORPUS.shares:
        assert draw_sample(rng, "train", 2, case=case).is_kind_masked == (
            case in ("right_page", "wrong_page")
        )
    assert KIND_MASKED == ("right_page", "wrong_page")


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


def test_roll_call_asks_after_everybody_in_the_note_and_after_strangers():
    rng = Random(16)
    for _ in range(200):
        call = draw_roll_call(rng, "train", 1, CORPUS)
        assert len({name for name, _ in call.likes}) == len(call.likes) >= 2
        assert call.question.domain in DOMAINS
        assert all(split_of(name) == "train" for name, _ in call.likes)
