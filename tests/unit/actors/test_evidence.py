"""A real decoder's passes weigh rows as the reference page says, whatever was drafted and rolled back."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tandem.actors.decoder import PrefillResult, compute_drafts, compute_prompts
from tandem.aggregation.steps import Step
from tandem.codecs import RaceLists
from tandem.engine.drafter import Drafter, row_probabilities
from tandem.engine.engine import Engine
from tandem.messages import RetrieveResult
from tandem.messages.wire import to_float32
from tandem.modes import reference_shaping
from tandem.protocol.decoding import DraftingSession, Forward, Prefill
from tandem.topology import Party
from tandem_lab.simulation.specs import make_spec
from tests.unit.engine.conftest import save_model, tokenizers
from tests.unit.protocol.talk import adopted, decided

__all__ = ["save_model", "tokenizers"]  # fixtures

FOUND = RetrieveResult(
    session=1,
    ids=("a", "b"),
    texts=("Mira likes puzzle games.", "The best rated puzzle game is Vantelu Cor."),
    scores=(0.4, 0.5),
    retrieve_us=7,
)
NUM_TOKENS = 20


@pytest.fixture(scope="module")
def engine(save_model: Callable[..., Path]) -> Engine:
    return Engine.load(str(save_model("llama")), num_threads=1)


class Decoder:
    """A session on the engine, pass by pass."""

    def __init__(self, engine: Engine, session: int, **changes: Any) -> None:
        self.engine = engine
        self.spec = make_spec(
            session=session,
            query="Which game should Mira try?",
            device_documents=2,
            cloud_documents=2,
            max_new_tokens=40,
            vocab_size=engine.vocab_size,
            question_weight=1.0,
            **changes,
        )
        self.session = DraftingSession(self.spec, Party.DEVICE)
        self.drafter = Drafter(RaceLists(), self.spec.sampling, "coupled", engine.vocab_size)
        self.session.begin()
        self.session.receive(FOUND)
        job = self.session.next_job()
        assert isinstance(job, Prefill)
        (opened,) = compute_prompts(engine, [job], self.open, lambda job: True)
        assert isinstance(opened, PrefillResult)
        self.session.finish_prefill(1, (), opened.result.documents, opened.question)

    def open(self, job: Prefill) -> Any:
        return self.engine.open(
            str(job.session),
            job.query,
            job.documents,
            job.max_new_tokens,
            scores_question=job.scores_question,
        )

    def step(self) -> tuple[Forward, list[Step]]:
        """The next pass."""
        job = self.session.next_job()
        assert isinstance(job, Forward)
        (steps,) = compute_drafts(self.engine, lambda _: self.drafter, [job], [self.session])
        assert isinstance(steps, list)
        self.session.finish(job, steps)
        return job, steps


def reader(decoder: Decoder) -> reference_shaping.Voter:
    """What the reference page says of the same rows, from a session of its own."""
    engine, spec = decoder.engine, decoder.spec
    texts = {"rows": FOUND.texts, "both": (*FOUND.texts, "\n\n".join(FOUND.texts[::-1]), "")}
    engine.open("reference", spec.query, texts[spec.row_layout("device")], spec.sampling.max_new_tokens)

    def row(number: int, tokens: Sequence[int]) -> list[float]:
        found = row_probabilities(engine.next_logits("reference", tokens))[number]
        return [float(probability) for probability in found]

    weights = decoder.session.weights
    rows = [partial(row, number) for number in range(len(weights.prior))]
    question = weights.question or (0.0,) * len(rows)
    return reference_shaping.reader(rows, weights.prior, question, spec.evidence_weight, spec.evidence_memory)


@pytest.mark.parametrize("layout", ["rows", "both"])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_log_weights_are_those_of_the_reference_page(engine: Engine, layout: str, temperature: float) -> None:
    """Bit for bit as they are sent. The drafter keeps the rows' probabilities at temperatures 0 and 1 alone."""
    decoder = Decoder(engine, 1, temperature=temperature, layouts={"device": layout})
    vote, rng = reader(decoder), random.Random(3)
    num_committed = num_drafted = num_replaced = 0
    while num_committed < NUM_TOKENS:
        if decoder.session.next_job() is not None and rng.random() < 0.7:
            job, results = decoder.step()
            assert results[-1].log_weight == to_float32(vote(job.tokens).log_weight)
            num_drafted += 1
        else:
            drafted = decoder.session.prefix.tokens[num_committed : num_committed + 1]
            token = drafted[0] if drafted and rng.random() < 0.6 else rng.randrange(4, 290)
            num_replaced += [token] != drafted
            decoder.session.receive(decided(num_committed, token))
            num_committed += 1
    assert num_drafted > 10
    assert num_replaced > 3
    engine.close("1")
    engine.close("reference")


def test_a_decoder_that_begins_in_the_middle_comes_to_the_same_evidence(engine: Engine) -> None:
    """In blocks of several tokens, not one by one: the same bits."""
    tokens = tuple(random.Random(5).randrange(4, 290) for _ in range(NUM_TOKENS))
    steady, late = Decoder(engine, 1), Decoder(engine, 2)
    for step, token in enumerate(tokens):
        steady.step()
        steady.session.receive(decided(step, token))
    _, wanted = steady.step()
    late.session.receive(adopted(*tokens, session=2, view=1))
    job, _ = late.step()
    assert job.is_catching_up
    _, results = late.step()
    assert (results[-1].log_weight, results[-1].evidence) == (wanted[-1].log_weight, wanted[-1].evidence)
    engine.close("1")
    engine.close("2")
