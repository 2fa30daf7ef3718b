"""Exact answers to held-out questions: both sides together, the device alone, the cloud alone.

Names and titles were never seen in training. A side that is alone is given the other without documents, whose
weight is then zero. Knows nothing of Ray.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from tandem.client.request import spec_of
from tandem.codecs import Codec
from tandem.config.schema import Config
from tandem.engine.engine import Engine
from tandem.modes.spec import SessionSpec
from tandem.retrieval.build import build_index
from tandem.retrieval.embedding import TextEmbedder
from tandem.retrieval.retriever import Retriever
from tandem.topology import PARTIES, Party
from tandem_lab.quality.local import LocalPair
from tandem_lab.simulation.specs import change_spec
from tandem_lab.training.synthetic import Question, World, make_world

ALONE = {"both": None, "device": Party.DEVICE, "cloud": Party.CLOUD}
"""Who has documents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldoutAnswer:
    """One question in one setting."""

    question: str
    wanted: str
    given: str
    setting: str  # a key of ALONE
    num_tokens: int
    device_acceptance: float  # share of drafts that were committed
    cloud_acceptance: float

    @property
    def is_exact(self) -> bool:
        """Letter for letter."""
        return self.given == self.wanted


def heldout_spec(config: Config) -> SessionSpec:
    """The token-wise loop with the settings of `config`; `query` and `session` are filled in per question.

    Who aggregates, which texts end an answer and what a lost peer means are fixed, so that runs with different
    settings compare.
    """
    return change_spec(spec_of(config), max_window=1, placement="device", stop=(), on_peer_loss="continue")


def worlds(num_questions: int, seed: int) -> Iterator[tuple[World, Sequence[Question]]]:
    """Held-out worlds with, together, `num_questions` questions."""
    rng = Random(seed)
    left = num_questions
    while left > 0:
        world = make_world(rng, "heldout")
        questions = world.questions[:left]
        left -= len(questions)
        yield world, questions


def ask_heldout(
    engine: Engine,
    embedder: TextEmbedder,
    codec: Codec,
    spec: SessionSpec,
    *,
    num_questions: int = 200,
    settings: Sequence[str] = tuple(ALONE),
    seed: int = 11,
) -> Iterator[HeldoutAnswer]:
    """Ask every question in every setting; `spec` gives all but the question."""
    for world, questions in worlds(num_questions, seed):
        with tempfile.TemporaryDirectory() as folder:
            pair = LocalPair(
                dict.fromkeys(PARTIES, engine), retrievers_of(world, Path(folder), embedder), codec
            )
            for question in questions:
                for setting in settings:
                    yield _ask(pair, _alone(spec, ALONE[setting]), question, setting)


def _ask(pair: LocalPair, spec: SessionSpec, question: Question, setting: str) -> HeldoutAnswer:
    text, outcome = pair.answer(replace(spec, query=question.text))
    assert outcome.done is not None
    counts = outcome.done.statistics
    return HeldoutAnswer(
        question=question.text,
        wanted=question.answer,
        given=text,
        setting=setting,
        num_tokens=counts.num_tokens,
        device_acceptance=counts.num_device_accepted / max(1, counts.num_tokens),
        cloud_acceptance=counts.num_cloud_accepted / max(1, counts.num_tokens),
    )


def _alone(spec: SessionSpec, party: Party | None) -> SessionSpec:
    return spec if party is None else change_spec(spec, **{f"{party.other}_documents": 0})


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
