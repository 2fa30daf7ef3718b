"""Write the bundled corpora: `python -m tandem_lab.training.bundle`, and say where they are.

One world of the held-out split: a device folder with one note a file, a cloud folder with one page a file, and
questions with their exact answers. Seeded, so that the files in the repository can be checked against this script.
Knows nothing of retrieval: both folders are ordinary corpora, which any loader of Markdown files reads.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tandem.corpora import BUNDLED
from tandem_lab.training.phrases import DOMAINS, Domain
from tandem_lab.training.synthetic import (
    Note,
    Page,
    World,
    make_distractor,
    make_name,
    make_note,
    make_page,
    make_question,
    make_title,
)

DEVICE_CORPUS = BUNDLED / "device"
CLOUD_CORPUS = BUNDLED / "cloud"
QUESTIONS = BUNDLED / "questions.jsonl"

_SEED = 2024
_NUM_DISTRACTORS = 12
_NUM_OTHER_PEOPLE = 4
_NOTES_PER_PERSON = 2


@dataclass(frozen=True, slots=True)
class BundledQuestion:
    """One line of questions.jsonl: what to ask and the one exact answer."""

    question: str
    answer: str


def bundled_world() -> World:
    """Ten notes on five people, 64 pages, 12 distractors. The first note says that Mira likes puzzle games."""
    rng = Random(_SEED)
    likes = _likes(rng)
    notes = tuple(make_note(rng, *like, rng.randint(1, 3)) for like in likes)
    titles = iter(_titles(rng, 8 * len(DOMAINS) + _NUM_DISTRACTORS))
    pages = [make_page(rng, d, kind, next(titles), rng.randint(1, 3)) for d in DOMAINS for kind in d.kinds]
    best = {(page.domain, page.kind): page.title for page in pages}
    asked = [(like, best[like[1:]]) for like in likes]
    questions = [make_question(rng, *asked[0][0], asked[0][1], "Which {noun} should {name} try?")]
    questions += [make_question(rng, *like, title) for like, title in asked for _ in range(2)]
    pages += [make_distractor(rng, title, rng.randint(1, 3)) for title in titles]
    return World(notes, tuple(pages), tuple(dict.fromkeys(questions)))


def write_bundle(directory: Path = BUNDLED) -> None:
    """Write device/, cloud/ and questions.jsonl below `directory`, in place of what was there under those names."""
    world = bundled_world()
    _write_folder(
        directory / "device", {_note_file(i, note): note.text for i, note in enumerate(world.notes)}
    )
    _write_folder(directory / "cloud", {_page_file(page): page.text for page in world.pages})
    lines = [json.dumps({"question": q.text, "answer": q.answer}) for q in world.questions]
    (directory / "questions.jsonl").write_text("\n".join(lines) + "\n")


def read_bundled_questions(path: Path = QUESTIONS) -> list[BundledQuestion]:
    """The bundled questions, the one of the documentation first."""
    return [BundledQuestion(**json.loads(line)) for line in path.read_text().splitlines()]


def _likes(rng: Random) -> list[tuple[str, Domain, str]]:
    """Who likes what: (name, domain, kind), Mira and puzzle games first; several people share a domain."""
    games = DOMAINS[0]
    names = ["Mira"]
    while len(names) <= _NUM_OTHER_PEOPLE:
        name = make_name(rng, "heldout")
        names += [name] * (name not in names)
    likes = [("Mira", games, games.kinds[0])]
    for i, name in enumerate(names):
        elsewhere = DOMAINS[1:] if name == "Mira" else DOMAINS
        for domain in rng.sample(elsewhere, _NOTES_PER_PERSON - (i == 0)):
            likes.append((name, domain, rng.choice(domain.kinds)))
    return likes


def _titles(rng: Random, count: int) -> list[str]:
    titles: dict[str, None] = {}
    while len(titles) < count:
        titles[make_title(rng, "heldout")] = None
    return list(titles)


def _note_file(number: int, note: Note) -> str:
    return f"note-{number + 1:02d}-{note.name.lower()}-{note.domain.plural}.md"


def _page_file(page: Page) -> str:
    if page.domain is None:
        return f"notice-{page.title.lower().replace(' ', '-')}.md"
    return f"{page.domain.plural}-{page.kind}.md"


def _write_folder(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.md"):
        old.unlink()
    for name, text in files.items():
        (folder / name).write_text(text + "\n")


def _main() -> None:
    parser = argparse.ArgumentParser(description="Write the bundled corpora.")
    parser.add_argument("--out", type=Path, default=BUNDLED, help="folder to write to")
    write_bundle(parser.parse_args().out)


if __name__ == "__main__":
    _main()
