"""Training samples of the bundled model: one document (or none), a question, the answer, and which tokens count.

What the reader must learn is set here, by which document goes with which question. At the kind it must say what the
note says about that very person and domain; at the title, what the page of that kind says; everywhere else its law
must be flat, so that a mixture over documents follows the one that knows. Hence a public page must not give away
what a person likes: wherever the kind counts beside a page of the domain, the page's kind is drawn independently
of the answer's. Pages of the answer's own kind are shown far more often than chance, but there the kind does not
count. Knows nothing of the model.
"""

from dataclasses import dataclass
from random import Random
from typing import Literal

from tandem.corpora.phrases import DOMAINS
from tandem.corpora.synthetic import (
    Question,
    Split,
    make_distractor,
    make_name,
    make_note,
    make_page,
    make_question,
    make_title,
    split_of,
)

Case = Literal[
    "own_note", "other_person", "other_domain_note", "right_page", "any_page", "wrong_page", "unrelated_page",
    "distractor", "none",
]

# How often each document goes with a question; any_page is the one that teaches "a page says nothing about people".
SHARES: dict[Case, float] = {
    "own_note": 0.20,
    "other_person": 0.14,
    "other_domain_note": 0.03,
    "right_page": 0.36,
    "any_page": 0.10,
    "wrong_page": 0.10,
    "unrelated_page": 0.03,
    "distractor": 0.02,
    "none": 0.02,
}
KIND_MASKED: tuple[Case, ...] = ("right_page", "wrong_page")  # there the page's kind tells of the answer's


@dataclass(frozen=True, slots=True)
class Sample:
    """One row: `document` is None for a bare row; `is_kind_masked` takes the kind's tokens out of the loss."""

    case: Case
    document: str | None
    question: Question
    is_kind_masked: bool


def draw_sample(rng: Random, split: Split, max_filler: int, case: Case | None = None) -> Sample:
    """A sample of the given split with at most `max_filler` sentences of filler; `case` is drawn unless given."""
    chosen = rng.choices(list(SHARES), weights=list(SHARES.values()))[0] if case is None else case
    domain = rng.choice(DOMAINS)
    question = make_question(rng, make_name(rng, split), domain, rng.choice(domain.kinds), make_title(rng, split))
    document = _document(rng, split, chosen, question, rng.randint(0, max_filler))
    return Sample(chosen, document, question, chosen in KIND_MASKED)


def _document(rng: Random, split: Split, case: Case, asked: Question, num_filler: int) -> str | None:
    domain, kind = asked.domain, asked.kind
    match case:
        case "own_note":
            return make_note(rng, asked.name, domain, kind, num_filler).text
        case "other_person":
            return make_note(rng, _other_name(rng, split, asked.name), domain, rng.choice(domain.kinds), num_filler).text
        case "other_domain_note":
            elsewhere = rng.choice([d for d in DOMAINS if d != domain])
            return make_note(rng, asked.name, elsewhere, rng.choice(elsewhere.kinds), num_filler).text
        case "right_page":
            return make_page(rng, domain, kind, asked.title, num_filler).text
        case "any_page":
            shown = rng.choice(domain.kinds)
            title = asked.title if shown == kind else make_title(rng, split)
            return make_page(rng, domain, shown, title, num_filler).text
        case "wrong_page":
            shown = rng.choice([k for k in domain.kinds if k != kind])
            return make_page(rng, domain, shown, make_title(rng, split), num_filler).text
        case "unrelated_page":
            elsewhere = rng.choice([d for d in DOMAINS if d != domain])
            return make_page(rng, elsewhere, rng.choice(elsewhere.kinds), make_title(rng, split), num_filler).text
        case "distractor":
            return make_distractor(rng, make_title(rng, split), num_filler).text
        case "none":
            return None


def _other_name(rng: Random, split: Split, name: str) -> str:
    """A name that differs; half the time in one syllable only, the hardest to tell apart."""
    while True:
        other = make_name(rng, split)
        if rng.random() < 0.5:
            other = name[:-2] + other[-2:]
        if other != name and split_of(other) == split:
            return other
