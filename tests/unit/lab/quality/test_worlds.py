"""Made-up worlds: words that training never saw, and what a question's documents say of its answer."""

from __future__ import annotations

from collections import Counter
from random import Random

from tandem_lab.quality.phrases import DOMAINS
from tandem_lab.quality.worlds import is_held_out, make_world


def test_every_answer_needs_a_note_and_a_page() -> None:
    world = make_world(Random(5))
    pages = {(page.domain, page.kind): page for page in world.pages}
    for question, note in zip(world.questions, world.notes, strict=True):
        page = pages[question.domain, question.kind]
        assert is_held_out(question.name)
        assert is_held_out(question.title)
        assert question.answer == f"{note.name} likes {note.kind} {note.domain.plural}, so try {page.title}."
        assert note.kind in note.text
        assert page.title in page.text
        assert question.title not in note.text
        assert question.name not in page.text


def test_kinds_are_uniform_over_questions() -> None:
    rng = Random(9)
    questions = (question for _ in range(200) for question in make_world(rng).questions)
    kinds = Counter(question.kind for question in questions if question.domain is DOMAINS[0])
    expected = sum(kinds.values()) / 8
    chi_square = sum((kinds[kind] - expected) ** 2 / expected for kind in DOMAINS[0].kinds)
    assert chi_square < 56  # 7 degrees of freedom: false alarm 1e-9
