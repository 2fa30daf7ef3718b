"""With coupled drafts a speculative answer is the synchronous one, token for token, whatever the link does.

The cluster adds a random delay to every frame between the sides, so that frames also overtake each other.
"""

from __future__ import annotations

import pytest

from tandem import Tandem
from tandem.lab.baselines.client import Baselines
from tandem.lab.baselines.experiments import Experiments, Treatment
from tandem.lab.training.bundle import read_bundled_questions
from tandem.topology import PARTIES

NUM_PAIRS = 50
PLACEMENTS = ("device", "cloud", "mirror", "greedy", "random")


@pytest.fixture(scope="module")
def overrides() -> tuple[str, ...]:
    """Short answers."""
    return ("sampling.max_new_tokens=24",)


@pytest.fixture(scope="module")
def experiments() -> Experiments:
    """Up to 40 ms at random, each way, on top of 5 ms."""
    return Experiments(extra_delay_s=0.005, extra_jitter_s=0.04)


def test_speculative_equals_synchronous(rag: Tandem) -> None:
    """Each question under three placements in turn; with `random` the aggregator moves at every other token."""
    questions = [question.question for question in read_bundled_questions()]
    baselines = Baselines(rag)
    num_rejected = num_handovers = 0
    for number in range(NUM_PAIRS):
        question, seed = questions[number % len(questions)], 1000 + number
        synchronous = rag.query(question, seed=seed, temperature=1.0, synchronous=True)
        for turn in range(3):
            placement = PLACEMENTS[(number + turn) % len(PLACEMENTS)]
            is_random = placement == "random"
            baselines.treat(dict.fromkeys(PARTIES, Treatment(random_placement=is_random)))
            placement = "greedy" if is_random else placement
            speculative = rag.query(question, seed=seed, temperature=1.0, placement=placement)
            assert speculative.token_ids == synchronous.token_ids, (question, seed, placement)
            num_rejected += speculative.statistics.num_tokens - speculative.statistics.num_device_accepted
            num_handovers += len(speculative.placements)
        baselines.treat({})
    assert num_rejected > NUM_PAIRS, "the test needs rollbacks to mean anything"
    assert num_handovers > 2 * NUM_PAIRS, "and handovers"


def test_different_seeds_give_different_answers(rag: Tandem) -> None:
    question = read_bundled_questions()[0].question
    assert len({rag.query(question, seed=seed, temperature=1.5).text for seed in range(8)}) > 1


def test_algorithm1_is_a_function_of_the_seed_too(rag: Tandem) -> None:
    question = read_bundled_questions()[1].question
    for seed in range(5):
        answers = {
            rag.query(question, seed=seed, temperature=1.0, draft_rule="algorithm1", **options).token_ids
            for options in (
                {"placement": "device", "synchronous": True},
                {"placement": "device"},
                {"placement": "cloud"},
                {"placement": "greedy"},
            )
        }
        assert len(answers) == 1
