"""Evidence for rows in a decoder: who hears of it, what it costs and how much is kept.

That it follows the tokens of the line, rolls back with them and weighs as the reference page says is in the fuzz
property (`lab/simulation/test_mutants`); what is told of documents in `lab/simulation/test_citations`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from tandem.aggregation.document_weights import Evidence, Weights, log_evidence
from tandem.aggregation.rules import Step
from tandem.messages import Attribution, Local, RetrieveResult
from tandem.modes import SessionSpec
from tandem.protocol.decoding import (
    MAX_BLOCK,
    DecodingSession,
    DraftingSession,
    Forward,
    Prefill,
    compute_steps,
)
from tandem.protocol.routes import Send
from tandem.topology import Party
from tandem_lab.simulation.specs import make_spec
from tests.unit.protocol.talk import adopted, decided

EOS = 3
FOUND = RetrieveResult(
    session=1, ids=("a", "b", "c"), texts=("x", "y", "z"), scores=(0.5, 0.2, 0.4), retrieve_us=7
)
QUESTION = (-3.0, -1.5, -2.0)


def probability(row: int, tokens: Sequence[int], token: int) -> float:
    """How probable a row finds a token."""
    return 0.01 + 0.98 * random.Random(f"{row} {list(tokens)} {token}").random()


class Model:
    """Draws what it is told to, and remembers the weights that it was given and what was asked of it."""

    def __init__(self, job: Forward, token: int = 7) -> None:
        self.job, self.token = job, token
        self.weights: dict[int, Weights] = {}  # by step
        self.learned: list[tuple[int, int]] = []

    def draw(self, step: int, weights: Weights) -> Step:
        self.weights[step] = weights
        return Step(step, self.token, b"law")

    def learn(self, step: int, token: int) -> Evidence:
        self.learned.append((step, token))
        rows = range(len(self.job.weights.prior))
        return log_evidence([probability(row, self.job.tokens[:step], token) for row in rows])


def spec(**changes: Any) -> SessionSpec:
    values = {
        "session": 1, "query": "Why?", "seed": 0, "eos_token_ids": (EOS,),
        "question_weight": 1.0, "evidence_memory": 0.5,
        "max_new_tokens": 200, "device_documents": 3, "cloud_documents": 3,
    }  # fmt: skip
    return make_spec(**{**values, **changes})


def started(made: DecodingSession, found: RetrieveResult = FOUND) -> DecodingSession:
    """The session with its documents, prefilled."""
    made.begin()
    made.receive(found)
    job = made.next_job()
    assert isinstance(job, Prefill)
    question = QUESTION[: len(job.documents)] if job.scores_question else ()
    made.finish_prefill(11, (), None, question)
    return made


def drafting(found: RetrieveResult = FOUND, **changes: Any) -> DraftingSession:
    made = started(DraftingSession(spec(**changes), Party.DEVICE), found)
    assert isinstance(made, DraftingSession)
    return made


def compute(made: DecodingSession, token: int = 7) -> tuple[Model, list[Send]]:
    """The next pass."""
    job = made.next_job()
    assert isinstance(job, Forward)
    model = Model(job, token)
    return model, made.finish(job, compute_steps(job, model))


# ---- what the home's coordinator hears -----------------------------------------------------------------------------


def said(sends: Sequence[Send]) -> list[Attribution]:
    return [each for send in sends if isinstance(send.message, Local) for each in send.message.attributions]


def test_nobody_but_the_home_hears_it_and_nobody_of_private_votes() -> None:
    away = started(DraftingSession(spec(), Party.CLOUD))
    assert said(compute(away)[1]) == []
    private = DraftingSession(spec(), Party.DEVICE, is_private=True)
    private.begin()
    private.receive(FOUND)
    private.finish_prefill(11, (), None, (*QUESTION, -1.0))
    assert private.weights.moves
    assert said(compute(private)[1]) == []


# ---- where it begins --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "cloud", "num_found", "matters"),
    [(4, 0, 1, False), (4, 0, 2, True), (4, 16, 1, True), (4, 16, 0, False)],
)
def test_the_only_row_of_both_parties_learns_nothing(
    device: int, cloud: int, num_found: int, matters: bool
) -> None:
    """Its share is 1, and its party's is 1, whatever its weight: nothing is learned, no question scored."""
    found = RetrieveResult(
        session=1,
        ids=FOUND.ids[:num_found],
        texts=FOUND.texts[:num_found],
        scores=FOUND.scores[:num_found],
        retrieve_us=7,
    )
    made = DraftingSession(spec(device_documents=device, cloud_documents=cloud), Party.DEVICE)
    made.begin()
    made.receive(found)
    job = made.next_job()
    assert isinstance(job, Prefill)
    assert job.scores_question == matters
    made.finish_prefill(11, (), None, QUESTION[:num_found] if matters else ())
    assert made.weights.moves == matters
    for step in range(3):
        model, _ = compute(made)
        assert model.learned == ([(step, 7)] if matters else [])
        assert made.line.prefix.tokens == [7] * (step + 1)


# ---- it follows the line ----------------------------------------------------------------------------------------


def test_a_token_that_was_drafted_costs_no_pass() -> None:
    made = drafting()
    for _ in range(4):
        job = made.next_job()
        assert isinstance(job, Forward)
        assert job.num_earlier == 0
        compute(made)
    made.receive(decided(0, 7))
    job = made.next_job()
    assert isinstance(job, Forward)
    assert job.num_earlier == 0


@pytest.mark.parametrize("num_tokens", [1, MAX_BLOCK, MAX_BLOCK + 1, 3 * MAX_BLOCK + 5])
def test_a_restarted_decoder_catches_up_in_blocks_and_reaches_the_same_weights(num_tokens: int) -> None:
    rng = random.Random(num_tokens)
    tokens = tuple(rng.randrange(4, 40) for _ in range(num_tokens))
    steady = drafting(max_window=1)
    for step, token in enumerate(tokens):
        compute(steady, token)
        steady.receive(decided(step, token))
    wanted, _ = compute(steady)
    restarted = drafting(max_window=1)
    restarted.receive(adopted(*tokens, view=1))
    passes = []
    while not passes or passes[-1].job.is_catching_up:
        model, sends = compute(restarted)
        passes.append(model)
        assert bool(sends) != model.job.is_catching_up, "what is caught up is not proposed"
    assert [len(model.learned) for model in passes[:-1]] == [MAX_BLOCK] * ((num_tokens - 1) // MAX_BLOCK)
    assert passes[-1].weights == wanted.weights
    assert wanted.weights.keys() == {num_tokens}
    assert all(not model.weights for model in passes[:-1])


def test_memory_is_bounded() -> None:
    made = drafting(max_new_tokens=600)
    for step in range(500):
        while made.next_job() is not None:
            compute(made)
        made.receive(decided(step, 7 + step % 2))  # half of the drafts are rejected
    assert made.num_steps < 128
    assert made.num_evidence < 500 + 128, (
        "that of the answer, for a rollback may go far back, and of a few drafts"
    )
