"""Held-out worlds of the demonstration family: private notes, public pages, questions and their exact answers.

A note says who likes which kind of a thing, a page says which item of a kind is best, the answer needs both. Names
and titles are made up, and belong by a hash of their full spelling to those that the bundled model never saw in its
training. All randomness comes in as a `random.Random` or a seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tandem.retrieval.build import build_index
from tandem.retrieval.embedding import TextEmbedder
from tandem.retrieval.retriever import Retriever
from tandem.topology import Party
from tandem_lab.quality import phrases
from tandem_lab.quality.phrases import DOMAINS, Domain

NUM_PEOPLE, DOMAINS_PER_PERSON, NUM_DISTRACTORS = 4, 3, 16
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


def worlds(num_questions: int, seed: int) -> Iterator[tuple[World, Sequence[Question]]]:
    """Worlds with, together, `num_questions` questions."""
    rng = Random(seed)
    left = num_questions
    while left > 0:
        world = make_world(rng)
        questions = world.questions[:left]
        left -= len(questions)
        yield world, questions


def retrievers_of(world: World, folder: Path, embedder: TextEmbedder) -> dict[Party, Retriever]:
    """Indexes of a world's notes and pages, one for each side, built in `folder`."""
    texts = {
        Party.DEVICE: [note.text for note in world.notes],
        Party.CLOUD: [page.text for page in world.pages],
    }
    retrievers = {}
    for party, own in texts.items():
        corpus = folder / f"{party}-corpus"
        corpus.mkdir()
        for number, text in enumerate(own):
            (corpus / f"{number:03}.md").write_text(text + "\n", "utf-8")
        build_index(corpus, folder / party, embedder)
        retrievers[party] = Retriever.open(folder / party, embedder)
    return retrievers


def make_world(rng: Random) -> World:
    """Notes of several people in several domains, a page for every kind of every domain, and distractors.

    Names and titles within a world are distinct. Every note gives one question, whose answer also needs the page.
    """
    names = _distinct(NUM_PEOPLE, lambda: make_name(rng))
    titles = iter(_distinct(8 * len(DOMAINS) + NUM_DISTRACTORS, lambda: make_title(rng)))
    notes = tuple(
        make_note(rng, name, domain, rng.choice(domain.kinds), rng.randint(1, 3))
        for name in names
        for domain in rng.sample(list(DOMAINS), DOMAINS_PER_PERSON)
    )
    pages = [make_page(rng, d, kind, next(titles), rng.randint(1, 3)) for d in DOMAINS for kind in d.kinds]
    best = {(page.domain, page.kind): page.title for page in pages}
    questions = tuple(make_question(rng, n.name, n.domain, n.kind, best[n.domain, n.kind]) for n in notes)
    pages += [make_distractor(rng, title, rng.randint(1, 3)) for title in titles]
    return World(notes, tuple(pages), questions)


def is_held_out(word: str) -> bool:
    """Whether training left a full name or title out: a function of its spelling alone."""
    digest = hashlib.blake2b(word.encode(), digest_size=8, salt=_SALT).digest()
    return int.from_bytes(digest, "big") % _HELDOUT_SHARE == 0


def make_name(rng: Random) -> str:
    """A person's name of two syllables, held out."""
    while True:
        name = rng.choice(phrases.HEADS) + rng.choice(phrases.NAME_TAILS)
        if is_held_out(name):
            return name


def make_title(rng: Random) -> str:
    """A title of two words of two syllables each, held out."""
    while True:
        title = " ".join(rng.choice(phrases.HEADS) + rng.choice(phrases.TAILS) for _ in range(2))
        if is_held_out(title):
            return title


def make_note(rng: Random, name: str, domain: Domain, kind: str, num_filler: int) -> Note:
    """A note with `num_filler` sentences that say nothing, before and after the one that matters."""
    fact = rng.choice(phrases.NOTES).format(name=name, kind=kind, noun=domain.noun, plural=domain.plural)
    return Note(name, domain, kind, _surround(rng, [fact], phrases.NOTE_FILLER, num_filler))


def make_page(rng: Random, domain: Domain, kind: str, title: str, num_filler: int) -> Page:
    """A page with `num_filler` sentences of filler; a quarter of the pages name the title a second time."""
    words = {"kind": kind, "noun": domain.noun, "plural": domain.plural, "title": title}
    core = [rng.choice(phrases.PAGES).format(**words)]
    if num_filler and rng.random() < 0.25:
        core.append(rng.choice(phrases.PAGE_REPEATS).format(title=title))
        num_filler -= 1
    text = _surround(rng, core, phrases.PAGE_FILLER, num_filler)
    return Page(domain, kind, title, f"{rng.choice(phrases.HEADLINES).format(**words)} {text}")


def make_distractor(rng: Random, title: str, num_filler: int) -> Page:
    """A public page that answers nothing in the family, though it names a made-up place."""
    fact = rng.choice(phrases.DISTRACTORS).format(title=title)
    return Page(None, None, title, _surround(rng, [fact], phrases.DISTRACTOR_FILLER, num_filler))


def make_question(rng: Random, name: str, domain: Domain, kind: str, title: str) -> Question:
    """A question with its exact answer."""
    text = rng.choice(phrases.QUESTIONS).format(name=name, noun=domain.noun, plural=domain.plural)
    answer = phrases.ANSWER.format(name=name, kind=kind, plural=domain.plural, title=title)
    return Question(name, domain, kind, title, text, answer)


def _surround(rng: Random, core: Sequence[str], filler: Sequence[str], num_filler: int) -> str:
    sentences = rng.sample(list(filler), num_filler)
    place = rng.randint(0, num_filler)
    return " ".join([*sentences[:place], *core, *sentences[place:]])


def _distinct(count: int, draw: Callable[[], str]) -> list[str]:
    drawn: dict[str, None] = {}
    while len(drawn) < count:
        drawn[draw()] = None
    return list(drawn)
