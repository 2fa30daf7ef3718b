"""The generator: determinism, the split of made-up words, what a question's documents say of its answer."""

from collections import Counter
from random import Random

import pytest

from tandem_lab.training.phrases import DOMAINS, ENDS, HEADS, NAME_TAILS, STARTS, TAILS
from tandem_lab.training.synthetic import (
    Split,
    make_name,
    make_note,
    make_page,
    make_title,
    make_world,
    split_of,
)


@pytest.mark.parametrize("make", [make_name, make_title])
def test_splits_share_no_word(make):
    rng = Random(0)
    splits: tuple[Split, Split] = ("train", "heldout")
    words = {split: {make(rng, split) for _ in range(2000)} for split in splits}
    assert not words["train"] & words["heldout"]
    assert all(split_of(word) == split for split in splits for word in words[split])


def test_world_answers_need_a_note_and_a_page():
    world = make_world(Random(5), "heldout")
    titles = {(page.domain, page.kind): page for page in world.pages}
    for question, note in zip(world.questions, world.notes, strict=True):
        page = titles[question.domain, question.kind]
        assert question.answer == (
            f"{note.name} likes {note.kind} {note.domain.plural}, so try {page.title}."
        )
        assert note.kind in note.text
        assert page.title in page.text
        assert question.title not in note.text
        assert question.name not in page.text


def test_filler_names_no_kind_and_no_domain():
    rng, domain = Random(1), DOMAINS[0]
    words = {word for d in DOMAINS for word in (d.noun, d.plural)}
    for _ in range(300):
        texts = [
            make_note(rng, "Mira", domain, "puzzle", 3).text.replace("puzzle", "").replace("game", ""),
            make_page(rng, domain, "puzzle", "Vatos Merin", 3).text.replace("puzzle", "").replace("game", ""),
        ]
        for text in texts:
            assert not words & set(text.lower().replace(".", "").replace(",", "").split())


def test_kinds_are_uniform_over_questions():
    rng = Random(9)
    kinds = Counter(
        question.kind
        for _ in range(200)
        for question in make_world(rng, "heldout").questions
        if question.domain is DOMAINS[0]
    )
    expected = sum(kinds.values()) / 8
    chi_square = sum((kinds[kind] - expected) ** 2 / expected for kind in DOMAINS[0].kinds)
    assert chi_square < 56  # 7 degrees of freedom: false alarm 1e-9


def test_syllables_meet_in_pairs_of_letters_that_no_syllable_has():
    inside = {
        syllable[i : i + 2] for syllable in (*HEADS, *TAILS, *NAME_TAILS) for i in range(len(syllable) - 1)
    }
    joints = {vowel + start for vowel in "aeiou" for start in STARTS}
    assert not inside & joints
    assert not set(STARTS) & set(ENDS)
