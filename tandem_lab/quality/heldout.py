"""Held-out worlds, whose names and titles were never seen in training, and indexes of their notes and pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

from tandem.retrieval.build import build_index
from tandem.retrieval.embedding import TextEmbedder
from tandem.retrieval.retriever import Retriever
from tandem.topology import PARTIES, Party
from tandem_lab.training.synthetic import Question, World, make_world


def worlds(num_questions: int, seed: int) -> Iterator[tuple[World, Sequence[Question]]]:
    """Held-out worlds with, together, `num_questions` questions."""
    rng = Random(seed)
    left = num_questions
    while left > 0:
        world = make_world(rng, "heldout")
        questions = world.questions[:left]
        left -= len(questions)
        yield world, questions


def retrievers_of(world: World, folder: Path, embedder: TextEmbedder) -> dict[Party, Retriever]:
    """Indexes of a world's notes and pages, one for each side, built in `folder`."""
    texts = {
        Party.DEVICE: [note.text for note in world.notes],
        Party.CLOUD: [page.text for page in world.pages],
    }
    return indexes_of(texts, folder, embedder)


def split_world(world: World, rng: Random) -> dict[Party, list[str]]:
    """A world's notes and pages together, dealt out to both sides: either may hold either fact of a question.

    The corpora are insufficient but complementary, as those of DRAGON section 7.2.
    """
    texts = [note.text for note in world.notes] + [page.text for page in world.pages]
    rng.shuffle(texts)
    return {party: texts[place :: len(PARTIES)] for place, party in enumerate(PARTIES)}


def indexes_of(
    texts: Mapping[Party, Sequence[str]], folder: Path, embedder: TextEmbedder
) -> dict[Party, Retriever]:
    """Indexes of each side's texts, built in `folder`."""
    retrievers = {}
    for party in PARTIES:
        corpus = folder / f"{party}-corpus"
        corpus.mkdir()
        for number, text in enumerate(texts[party]):
            (corpus / f"{number:03}.md").write_text(text + "\n", "utf-8")
        build_index(corpus, folder / party, embedder)
        retrievers[party] = Retriever.open(folder / party, embedder)
    return retrievers
