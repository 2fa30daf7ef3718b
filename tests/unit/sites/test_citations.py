"""Citations of real models in one process: against rows that are computed anew, by placement, run and mode."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tandem import Answer, Config, Tandem
from tandem.actors.loading import load_engine
from tandem.aggregation.document_weights import MIN_PROBABILITY
from tandem.engine.drafter import row_probabilities
from tandem_lab.bundled import read_bundled_questions

QUESTIONS = [asked.question for asked in read_bundled_questions()][:3]


def recompute(answer: Answer, question: str, config: Config) -> list[list[float]]:
    """The shares of the device's documents among themselves, of each token: one pass from nothing for each step."""
    engine, weights = load_engine(config.device, num_threads=1), config.weights
    own = answer.own_sources
    evidence, shares = np.zeros(len(own)), []
    for step, token in enumerate(answer.token_ids):
        engine.open("anew", question, [source.text or "" for source in own], 64)
        rows = row_probabilities(engine.next_logits("anew", answer.token_ids[:step]))[:, token].astype(
            np.float64
        )
        engine.close("anew")
        probabilities = np.maximum(rows, MIN_PROBABILITY)
        log_weights = (
            np.array([config.score_scale * (source.score or 0.0) for source in own])
            + weights.evidence * evidence
        )
        masses = np.exp(log_weights - log_weights.max()) * probabilities
        shares.append((masses / masses.sum()).tolist())
        evidence = weights.memory * evidence + np.log(probabilities)
    return shares


@pytest.mark.parametrize("asked", [{"only": "device"}, {"temperature": 1.0}], ids=["solo", "lottery"])
def test_shares_are_those_of_passes_from_nothing(rag: Tandem, asked: dict[str, Any]) -> None:
    answer = rag.query(QUESTIONS[0], seed=3, **asked)
    expected, num_checked = recompute(answer, QUESTIONS[0], rag.config), 0
    for token, shares in zip(answer.tokens, expected, strict=True):
        citation = token.citation
        if citation is None or not citation.documents:
            assert asked, "at temperature 0 the votes of both decide"
            continue
        own = 1.0 - citation.others
        assert citation.documents == pytest.approx([own * share for share in shares], abs=1e-5)
        assert math.isclose(sum(citation.documents) + citation.others, 1.0, abs_tol=1e-6), (
            "no row is without document"
        )
        num_checked += 1
    assert num_checked > (len(answer.tokens) - 2 if asked.get("temperature") is None else 0)
    if asked.get("only"):
        assert {token.citation.others for token in answer.tokens if token.citation} == {0.0}


def test_the_cited_note_is_the_one_that_says_it(rag: Tandem) -> None:
    answer = rag.query("Which game should Mira try?", temperature=0.0)
    assert answer.text == "Mira likes puzzle games, so try Pukan Vakun."
    (span,) = answer.citations
    assert answer.text[span.start : span.end].startswith("puzzle")
    assert answer.own_sources[span.document].title == "note-01-mira-games.md"
    told = answer.text.index("Pukan")
    assert not any(span.start <= told < span.end for span in answer.citations), "a page of the cloud told it"
