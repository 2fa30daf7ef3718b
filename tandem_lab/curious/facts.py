"""The bundled questions over notes whose facts are reshuffled, so that nobody can know them but from the notes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from tandem.retrieval.build import build_index
from tandem.retrieval.embedding import TextEmbedder
from tandem_lab.training.bundle import bundled_world
from tandem_lab.training.synthetic import Note, Question


@dataclass(frozen=True, slots=True)
class Asked:
    """A bundled question, and the note that holds its private fact: which of the domain's kinds a person likes."""

    question: Question
    note: Note

    @property
    def fact(self) -> int:
        """Which of the domain's kinds; each is as likely as the others."""
        return self.note.domain.kinds.index(self.note.kind)


@dataclass(frozen=True, slots=True)
class Deal:
    """The device's notes, and every bundled question with the one that matters."""

    notes: tuple[Note, ...]
    asked: tuple[Asked, ...]

    def sample(self, random: Random, num_questions: int) -> list[Asked]:
        """Questions about different notes, at most as many as there are, so that no fact counts twice."""
        shuffled = random.sample(self.asked, len(self.asked))
        return list({(each.note.name, each.note.domain): each for each in shuffled}.values())[:num_questions]

    def write_index(self, folder: Path, embedder: TextEmbedder) -> Path:
        """The device's index of these notes."""
        (corpus := folder / "notes").mkdir(parents=True)
        for number, note in enumerate(self.notes):
            (corpus / f"{number:02}.md").write_text(note.text + "\n", "utf-8")
        build_index(corpus, folder / "index", embedder)
        return folder / "index"


def deal(random: Random) -> Deal:
    """The bundled notes, each with a kind drawn evenly from those of its domain."""
    world = bundled_world()
    notes = {
        (note.name, note.domain): _with_kind(note, random.choice(note.domain.kinds)) for note in world.notes
    }
    asked = [Asked(question, notes[question.name, question.domain]) for question in world.questions]
    return Deal(tuple(notes.values()), tuple(asked))


def _with_kind(note: Note, kind: str) -> Note:
    things = rf"(?= (?:{note.domain.plural}|{note.domain.noun})\b)"
    return replace(note, kind=kind, text=re.sub(rf"\b{note.kind}{things}", kind, note.text))
