"""Training samples of the bundled model: one document (or none), a question, the answer, and what the document tells.

What the reader must learn is set here, by which document goes with which question. At the kind it must say what the
note says about that very person and domain; at the title, what the page of that kind says. Where the document does
not tell, its distribution must be even, so that a mixture over documents follows the one that knows. Knows nothing of
the model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from tandem_lab.training.phrases import DOMAINS, NOTES, Domain
from tandem_lab.training.synthetic import (
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
    "own_note",
    "other_person",
    "other_domain_note",
    "right_page",
    "any_page",
    "wrong_page",
    "unrelated_page",
    "distractor",
    "none",
]


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a stage of training shows: how often each document goes with a question, and how hard it is."""

    shares: Mapping[Case, float]
    near_name_share: float  # of the notes on somebody else: how many such names share a syllable
    headline_share: float  # of the pages: how many open with a headline
    max_others: int  # further people whom a note of the domain may tell of
    roll_call_share: float  # how many rows are roll calls instead
    max_pages: int  # in a roll call
    num_people: tuple[int, int]  # whom a roll call tells of, at least and at most
    num_answers: int  # of a roll call, and one on a stranger


# Documents as they are in a corpus, and more that do not help.
CORPUS = Lesson(
    {
        "own_note": 0.20,
        "other_person": 0.18,
        "other_domain_note": 0.04,
        "right_page": 0.26,
        "any_page": 0.04,
        "wrong_page": 0.16,
        "unrelated_page": 0.05,
        "distractor": 0.04,
        "none": 0.03,
    },
    near_name_share=0.2,
    headline_share=0.85,
    max_others=1,
    roll_call_share=0.3,
    max_pages=3,
    num_people=(2, 4),
    num_answers=4,
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One row: `document` is None for a bare row."""

    case: Case
    document: str | None
    question: Question

    @property
    def is_kind_told(self) -> bool:
        """Whether the document says what the person likes."""
        return self.case == "own_note"

    @property
    def is_title_told(self) -> bool:
        """Whether the document says which one of the kind is best."""
        return self.document is not None and self.question.title in self.document


def draw_roll_call(rng: Random, split: Split, lesson: Lesson) -> list[Sample]:
    """A drill: one document on several people and some kinds of a domain, and answers on people drawn from them.

    The document does not tell of one more person, nor of every kind. One such row teaches as much about telling people
    and kinds apart as a dozen plain ones. Kinds are independent, and people are drawn again for each answer: else what
    is left over tells a kind as well as the name does, and no name is ever looked at.
    """
    domain = rng.choice(DOMAINS)
    names = [make_name(rng, split)]
    for _ in range(rng.randint(*lesson.num_people)):
        names.append(_other_name(rng, split, names, lesson.near_name_share))
    kinds = rng.choices(domain.kinds, k=len(names))
    likes = list(zip(names, kinds, strict=True))
    titles = {kind: make_title(rng, split) for kind in kinds}
    parts = [
        rng.choice(NOTES).format(name=name, kind=kind, noun=domain.noun, plural=domain.plural)
        for name, kind in likes[1:]
    ] + [
        make_page(rng, domain, kind, titles[kind], 0, has_headline=False).text
        for kind in rng.sample(sorted(titles), rng.randint(0, min(lesson.max_pages, len(titles))))
    ]
    rng.shuffle(parts)
    document = " ".join(parts)
    samples = [
        Sample(
            "other_person" if name == names[0] else "own_note",
            document,
            make_question(rng, name, domain, kind, titles[kind]),
        )
        for name, kind in [likes[0], *rng.choices(likes[1:], k=lesson.num_answers)]
    ]
    rng.shuffle(samples)
    return samples


def draw_sample(
    rng: Random, split: Split, max_filler: int, *, lesson: Lesson = CORPUS, case: Case | None = None
) -> Sample:
    """A sample of the given split with at most `max_filler` sentences of filler; `case` is drawn unless given."""
    chosen = rng.choices(list(lesson.shares), list(lesson.shares.values()))[0] if case is None else case
    domain = rng.choice(DOMAINS)
    question = make_question(
        rng, make_name(rng, split), domain, rng.choice(domain.kinds), make_title(rng, split)
    )
    document = _document(rng, split, chosen, question, rng.randint(0, max_filler), lesson)
    return Sample(chosen, document, question)


def _document(
    rng: Random, split: Split, case: Case, asked: Question, num_filler: int, lesson: Lesson
) -> str | None:
    domain, kind = asked.domain, asked.kind
    match case:
        case "own_note":
            return make_note(
                rng, asked.name, domain, kind, num_filler, others=_others(rng, split, asked, lesson)
            ).text
        case "other_person":
            name = _other_name(rng, split, [asked.name], lesson.near_name_share)
            others = _others(rng, split, asked, lesson)
            return make_note(rng, name, domain, rng.choice(domain.kinds), num_filler, others=others).text
        case "other_domain_note":
            elsewhere = rng.choice([d for d in DOMAINS if d != domain])
            return make_note(rng, asked.name, elsewhere, rng.choice(elsewhere.kinds), num_filler).text
        case "right_page":
            return _page(rng, domain, kind, asked.title, num_filler, lesson)
        case "any_page":
            shown = rng.choice(domain.kinds)
            title = asked.title if shown == kind else make_title(rng, split)
            return _page(rng, domain, shown, title, num_filler, lesson)
        case "wrong_page":
            shown = rng.choice([k for k in domain.kinds if k != kind])
            return _page(rng, domain, shown, make_title(rng, split), num_filler, lesson)
        case "unrelated_page":
            elsewhere = rng.choice([d for d in DOMAINS if d != domain])
            return _page(
                rng, elsewhere, rng.choice(elsewhere.kinds), make_title(rng, split), num_filler, lesson
            )
        case "distractor":
            return make_distractor(rng, make_title(rng, split), num_filler).text
        case "none":
            return None


def _page(rng: Random, domain: Domain, kind: str, title: str, num_filler: int, lesson: Lesson) -> str:
    has_headline = lesson.headline_share > 0 and rng.random() < lesson.headline_share
    return make_page(rng, domain, kind, title, num_filler, has_headline=has_headline).text


def _others(rng: Random, split: Split, asked: Question, lesson: Lesson) -> list[tuple[str, str]]:
    """People other than the one asked about, with what they like; half of the notes have none."""
    if not lesson.max_others or rng.random() < 0.5:
        return []
    names = [
        _other_name(rng, split, [asked.name], lesson.near_name_share)
        for _ in range(rng.randint(1, lesson.max_others))
    ]
    return [(name, rng.choice(asked.domain.kinds)) for name in names]


def _other_name(rng: Random, split: Split, names: Sequence[str], near_name_share: float) -> str:
    """A name that is none of `names`; now and then one that shares a syllable with one of them."""
    while True:
        other = make_name(rng, split)
        if rng.random() < near_name_share:
            near = rng.choice(names)
            other = near[:-2] + other[-2:] if rng.random() < 0.5 else other[:-2] + near[-2:]
        if other not in names and split_of(other) == split:
            return other
