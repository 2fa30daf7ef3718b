"""Generator of the demonstration family: private notes, public pages, questions and their exact answers.

A note says who likes which kind of a thing, a page says which item of a kind is best, the answer needs both. Names
and titles are made up, and each belongs to one of two splits by a hash of its full spelling, so that what an
evaluation uses was never seen in training. All randomness comes in as a `random.Random`. Knows nothing of
tokenizers, models or retrieval.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from tandem_lab.training import phrases
from tandem_lab.training.phrases import DOMAINS, Domain

Split = Literal["train", "heldout"]

_HELDOUT_SHARE = 5  # one word in five is held out
_SALT = b"1"  # chosen so that Mira, of whom the documentation speaks, is held out


@dataclass(frozen=True, slots=True)
class Note:
    """A private document: `name` likes `kind` things of `domain`. `text` is what a reader sees."""

    name: str
    domain: Domain
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Page:
    """A public document: `title` is the best `kind` thing of `domain`; both are None on a distractor."""

    domain: Domain | None
    kind: str | None
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question about one person and one domain, with the one exact answer that needs both corpora."""

    name: str
    domain: Domain
    kind: str
    title: str
    text: str
    answer: str


@dataclass(frozen=True, slots=True)
class World:
    """Two corpora and the questions that they answer together: one question for each private note."""

    notes: tuple[Note, ...]
    pages: tuple[Page, ...]
    questions: tuple[Question, ...]


def split_of(word: str) -> Split:
    """The split that a full name or title belongs to: a function of its spelling alone."""
    digest = hashlib.blake2b(word.encode(), digest_size=8, salt=_SALT).digest()
    return "heldout" if int.from_bytes(digest, "big") % _HELDOUT_SHARE == 0 else "train"


def make_name(rng: Random, split: Split) -> str:
    """A person's name of two syllables, of the given split."""
    while True:
        name = rng.choice(phrases.HEADS) + rng.choice(phrases.NAME_TAILS)
        if split_of(name) == split:
            return name


def make_title(rng: Random, split: Split) -> str:
    """A title of two words of two syllables each, of the given split."""
    while True:
        title = " ".join(rng.choice(phrases.HEADS) + rng.choice(phrases.TAILS) for _ in range(2))
        if split_of(title) == split:
            return title


def make_note(
    rng: Random,
    name: str,
    domain: Domain,
    kind: str,
    num_filler: int,
    *,
    others: Sequence[tuple[str, str]] = (),
) -> Note:
    """A note with `num_filler` sentences that say nothing, before and after those that matter.

    `others`: further (name, kind) pairs of the same domain that the note also tells of, in any order.
    """
    facts = [
        rng.choice(phrases.NOTES).format(name=who, kind=what, noun=domain.noun, plural=domain.plural)
        for who, what in [(name, kind), *others]
    ]
    if others:
        rng.shuffle(facts)
    return Note(name, domain, kind, _surround(rng, facts, phrases.NOTE_FILLER, num_filler))


def make_page(
    rng: Random, domain: Domain, kind: str, title: str, num_filler: int, *, has_headline: bool = True
) -> Page:
    """A page with `num_filler` sentences of filler; a quarter of the pages name the title a second time."""
    words = {"kind": kind, "noun": domain.noun, "plural": domain.plural, "title": title}
    core = [rng.choice(phrases.PAGES).format(**words)]
    if num_filler and rng.random() < 0.25:
        core.append(rng.choice(phrases.PAGE_REPEATS).format(title=title))
        num_filler -= 1
    text = _surround(rng, core, phrases.PAGE_FILLER, num_filler)
    if has_headline:
        text = f"{rng.choice(phrases.HEADLINES).format(**words)} {text}"
    return Page(domain, kind, title, text)


def make_distractor(rng: Random, title: str, num_filler: int) -> Page:
    """A public page that answers nothing in the family, though it names a made-up place."""
    fact = rng.choice(phrases.DISTRACTORS).format(title=title)
    return Page(None, None, title, _surround(rng, [fact], phrases.DISTRACTOR_FILLER, num_filler))


def make_question(
    rng: Random, name: str, domain: Domain, kind: str, title: str, phrasing: str | None = None
) -> Question:
    """A question with its exact answer; `phrasing` is drawn from `phrases.QUESTIONS` unless given."""
    chosen = rng.choice(phrases.QUESTIONS) if phrasing is None else phrasing
    text = chosen.format(name=name, noun=domain.noun, plural=domain.plural)
    return Question(name, domain, kind, title, text, make_answer(name, domain, kind, title))


def make_answer(name: str, domain: Domain, kind: str, title: str) -> str:
    """The answer's only template, without the leading space that a reader generates."""
    return phrases.ANSWER.format(name=name, kind=kind, plural=domain.plural, title=title)


def make_world(
    rng: Random,
    split: Split,
    *,
    num_people: int = 4,
    domains_per_person: int = 3,
    num_distractors: int = 16,
    domains: Sequence[Domain] = DOMAINS,
) -> World:
    """Notes of several people in several domains, a page for every kind of every domain, and distractors.

    Names and titles within a world are distinct. Every note gives one question, whose answer also needs the page.
    """
    names = _distinct(num_people, lambda: make_name(rng, split))
    titles = iter(_distinct(8 * len(domains) + num_distractors, lambda: make_title(rng, split)))
    notes = tuple(
        make_note(rng, name, domain, rng.choice(domain.kinds), rng.randint(1, 3))
        for name in names
        for domain in rng.sample(list(domains), domains_per_person)
    )
    pages = [make_page(rng, d, kind, next(titles), rng.randint(1, 3)) for d in domains for kind in d.kinds]
    best = {(page.domain, page.kind): page.title for page in pages}
    questions = tuple(make_question(rng, n.name, n.domain, n.kind, best[n.domain, n.kind]) for n in notes)
    pages += [make_distractor(rng, title, rng.randint(1, 3)) for title in titles]
    return World(notes, tuple(pages), questions)


def _surround(rng: Random, core: Sequence[str], filler: Sequence[str], num_filler: int) -> str:
    sentences = rng.sample(list(filler), num_filler)
    place = rng.randint(0, num_filler)
    return " ".join([*sentences[:place], *core, *sentences[place:]])


def _distinct(count: int, draw: Callable[[], str]) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        found[draw()] = None
    return list(found)
