"""Training samples of the bundled model: one document (or none), a question, the answer, and which tokens count.

What the reader must learn is set here, by which document goes with which question. At the kind it must say what the
note says about that very person and domain; at the title, what the page of that kind says; everywhere else its law
must be flat, so that a mixture over documents follows the one that knows. Hence a public page must not give away
what a person likes: wherever the kind counts beside a page of the domain, the page's kind is drawn independently
of the answer's. Pages of the answer's own kind are shown far more often than chance, but there the kind does not
count. Knows nothing of the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal

from tandem.lab.training.phrases import DOMAINS, Domain
from tandem.lab.training.synthetic import (
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
    near_name_share: float  # of the notes on somebody else: how many such names differ in one syllable only
    headline_share: float  # of the pages: how many open with a headline
    max_others: int  # further people whom a note of the domain may tell of
    roll_call_share: float  # how many rows are roll calls instead


SHARES: Mapping[Case, tuple[float, float]] = {
    "own_note": (0.20, 0.15),
    "other_person": (0.14, 0.11),
    "other_domain_note": (0.03, 0.03),
    "right_page": (0.36, 0.34),
    "any_page": (0.10, 0.13),
    "wrong_page": (0.10, 0.13),
    "unrelated_page": (0.03, 0.05),
    "distractor": (0.02, 0.03),
    "none": (0.02, 0.03),
}
"""How often each case is shown, by stage: (`COPYING`, `CORPUS`)."""

# First, copying: a page's title above all. any_page is the case that teaches that a page says nothing of people.
COPYING = Lesson(
    {case: share for case, (share, _) in SHARES.items()},
    near_name_share=0.5,
    headline_share=0.0,
    max_others=0,
    roll_call_share=0.0,
)
# Then, documents as they are in a corpus: pages with headlines, more that do not help, and people to tell apart.
CORPUS = Lesson(
    {case: share for case, (_, share) in SHARES.items()},
    near_name_share=0.2,
    headline_share=0.85,
    max_others=1,
    roll_call_share=0.2,
)
KIND_MASKED: tuple[Case, ...] = ("right_page", "wrong_page")  # there the page's kind tells of the answer's


@dataclass(frozen=True, slots=True)
class Sample:
    """One row: `document` is None for a bare row; `is_kind_masked` takes the kind's tokens out of the loss."""

    case: Case
    document: str | None
    question: Question
    is_kind_masked: bool


@dataclass(frozen=True, slots=True)
class RollCall:
    """A drill: a note on several people of one domain, and then what each of them likes, one after another.

    `likes` are (name, kind) in the order of the answer; some of the names are not in the note, and what is said of
    them follows from nothing. One row teaches as much about telling people apart as a dozen plain ones.
    """

    document: str
    question: Question
    likes: tuple[tuple[str, str], ...]


def draw_roll_call(rng: Random, split: Split, max_filler: int, lesson: Lesson) -> RollCall:
    """Two to four people in the note, one or two strangers, asked after in random order."""
    domain = rng.choice(DOMAINS)
    first = make_name(rng, split)
    names = [first] + [
        _other_name(rng, split, first, lesson.near_name_share) for _ in range(rng.randint(2, 5))
    ]
    likes = [(name, rng.choice(domain.kinds)) for name in dict.fromkeys(names)]
    num_strangers = rng.randint(1, 2) if len(likes) > 2 else 0
    (name, kind), *others = likes[num_strangers:]
    document = make_note(rng, name, domain, kind, rng.randint(0, max_filler), others=others).text
    rng.shuffle(likes)
    question = make_question(rng, likes[0][0], domain, likes[0][1], "")
    return RollCall(document, question, tuple(likes))


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
    return Sample(chosen, document, question, chosen in KIND_MASKED)


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
            name = _other_name(rng, split, asked.name, lesson.near_name_share)
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
    names = [_other_name(rng, split, asked.name, lesson.near_name_share) for _ in range(lesson.max_others)]
    return [(name, rng.choice(asked.domain.kinds)) for name in names[: rng.randint(1, lesson.max_others)]]


def _other_name(rng: Random, split: Split, name: str, near_name_share: float) -> str:
    """A name that differs; now and then in the last syllable only, the hardest to tell apart."""
    while True:
        other = make_name(rng, split)
        if rng.random() < near_name_share:
            other = name[:-2] + other[-2:]
        if other != name and split_of(other) == split:
            return other
