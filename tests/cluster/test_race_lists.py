"""Race lists and draws in a running cluster: the answers of the draft-free loop on uncompressed distributions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tandem import DoneEvent, Tandem, TokenEvent
from tandem.client.request import spec_of
from tandem.config.schema import Config
from tandem.corpora import WEIGHTS
from tandem.engine.engine import Engine
from tandem.retrieval.embedding import Embedder
from tandem.retrieval.factory import open_retriever
from tandem.topology import PARTIES
from tandem_lab.bundled import read_bundled_questions
from tandem_lab.quality.local import answer_uncompressed
from tandem_lab.simulation.specs import change_spec

pytestmark = pytest.mark.nightly("a cluster of its own: lists of depth 2")

NUM_QUESTIONS = 6
SETTINGS = ("codec.parameters={depth = 2}",)
"""Lists so short that some leave the winner open."""
QUESTIONS = [question.question for question in read_bundled_questions()][:NUM_QUESTIONS]

Expected = Callable[[str, int, float, str], list[int]]


@pytest.fixture(scope="module")
def overrides() -> tuple[str, ...]:
    return SETTINGS


@pytest.fixture(scope="module")
def expected() -> Expected:
    engine, embedder = Engine.load(str(WEIGHTS), num_threads=1), Embedder.load("offline", num_threads=1)
    config = Config.load(None, SETTINGS)
    retrievers = {party: open_retriever(party, config, embedder) for party in PARTIES}
    basis = spec_of(config)

    @cache  # each placement asks for the same
    def answer(question: str, seed: int, temperature: float, rule: str) -> list[int]:
        spec = change_spec(basis, query=question, seed=seed, temperature=temperature, draft_rule=rule)
        return answer_uncompressed(spec, dict.fromkeys(PARTIES, engine), retrievers)

    return answer


@pytest.mark.parametrize("placement", ["mirror", "device", "greedy"])
def test_live_answers_are_those_of_the_uncompressed_mixture(
    rag: Tandem, expected: Expected, placement: str
) -> None:
    num_requests = 0
    for temperature, rule in ((0.0, "coupled"), (1.0, "coupled"), (1.0, "lottery")):
        for seed, question in enumerate(QUESTIONS):
            options: Any = {"temperature": temperature, "draft_rule": rule, "placement": placement}
            events = list(rag.stream(question, seed=seed, **options))
            tokens = [event.token for event in events if isinstance(event, TokenEvent)]
            assert tokens == expected(question, seed, temperature, rule)
            assert isinstance(events[-1], DoneEvent)
            seen = events[-1].statistics
            num_requests += seen.num_list_requests
            if rule == "lottery":
                assert seen.num_certified == seen.num_list_requests == 0
                continue
            assert seen.num_escalated <= seen.num_list_requests
            if placement != "greedy":  # else the cloud decides some steps
                assert seen.num_certified + seen.num_escalated == len(tokens)
    assert num_requests or placement == "greedy"
