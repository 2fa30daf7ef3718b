"""Answers recorded with version 0.1: no token and no acceptance flag has changed. `golden_answers.py` compares all."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from benchmarks.golden_answers import PATH, answers, pairs, read_answers
from tandem.corpora import WEIGHTS
from tandem.engine.engine import Engine
from tandem.retrieval.embedding import Embedder

NUM_PAIRS = 6
"""Bundled and held-out questions in turn; ten answers each."""


def test_the_first_answers_are_those_recorded(tmp_path: Path) -> None:
    recorded = read_answers(PATH)
    assert len(recorded) == 200
    engine, embedder = Engine.load(str(WEIGHTS), num_threads=1), Embedder.load("offline", num_threads=1)
    for number, (question, seed, retrievers) in enumerate(islice(pairs(tmp_path, embedder), NUM_PAIRS)):
        assert (recorded[number]["question"], recorded[number]["seed"]) == (question, seed)
        assert dict(answers(engine, question, seed, retrievers)) == recorded[number]["answers"]
