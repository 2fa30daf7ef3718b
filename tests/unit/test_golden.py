"""Recorded answers, with top_p those of version 0.1: no token and no acceptance flag has changed.

`golden_answers.py` compares all.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from benchmarks.golden_answers import NUM_PAIRS, PATHS, answers, pairs, read_answers
from tandem.corpora import WEIGHTS
from tandem.engine.engine import Engine
from tandem.plugins.embedders import Embedder

NUM_ASKED = 6
"""Bundled and held-out questions in turn; ten answers each with top_p, six with race lists."""


@pytest.mark.nightly("30 s of processor time; sites and clusters are held to the same record at every change")
@pytest.mark.parametrize("codec", PATHS)
def test_the_first_answers_are_those_recorded(tmp_path: Path, codec: str) -> None:
    recorded = read_answers(PATHS[codec])
    assert len(recorded) == NUM_PAIRS[codec]
    engine, embedder = Engine.load(str(WEIGHTS), num_threads=1), Embedder.load("offline", num_threads=1)
    for number, (question, seed, retrievers) in enumerate(islice(pairs(tmp_path, embedder), NUM_ASKED)):
        assert (recorded[number]["question"], recorded[number]["seed"]) == (question, seed)
        assert dict(answers(engine, question, seed, retrievers, codec)) == recorded[number]["answers"]


def test_race_lists_answer_otherwise_than_nuclei() -> None:
    """Else the second file would show nothing."""
    nuclei, lists = (read_answers(path) for path in PATHS.values())
    case = "coupled/mirror/1"
    assert any(nuclei[number]["answers"][case] != row["answers"][case] for number, row in lists.items())
