"""With coupled drafts a speculative answer is the synchronous one, token for token, whatever the link does.

The cluster adds a random delay to every frame between the sides, so that frames also overtake each other.
"""

from __future__ import annotations

from typing import Any

import pytest

from tandem import Tandem
from tandem.events import Answer
from tandem.topology import PARTIES
from tandem_lab.baselines.client import Baselines
from tandem_lab.baselines.experiments import Experiments, Treatment
from tandem_lab.bundled import read_bundled_questions

from .conftest import ask_all

NUM_PAIRS = (15, pytest.param(50, marks=pytest.mark.nightly("as many as the README's table states")))
PLACEMENTS = ("device", "cloud", "mirror", "greedy", "random")
PLACEMENTS_EACH = 3
SHORT: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 24}


@pytest.fixture(scope="module")
def experiments() -> Experiments:
    """Up to 40 ms at random, each way, on top of 5 ms."""
    return Experiments(extra_delay_s=0.005, extra_jitter_s=0.04)


@pytest.mark.parametrize("num_pairs", NUM_PAIRS)
def test_speculative_equals_synchronous(rag: Tandem, num_pairs: int) -> None:
    """Each question under three placements; with `random` the aggregator moves at every other token."""
    questions = [question.question for question in read_bundled_questions()]
    pairs = [(questions[number % len(questions)], 1000 + number) for number in range(num_pairs)]
    baselines = Baselines(rag)

    def ask(numbers: list[int], **options: Any) -> list[Answer]:
        return ask_all(rag, [(pairs[n][0], {**SHORT, **options, "seed": pairs[n][1]}) for n in numbers])

    synchronous = ask(list(range(num_pairs)), max_window=1)
    num_rejected = num_handovers = 0
    for turn, placement in enumerate(PLACEMENTS):
        is_random = placement == "random"
        baselines.treat(dict.fromkeys(PARTIES, Treatment(random_placement=is_random)))
        numbers = [n for n in range(num_pairs) if (turn - n) % len(PLACEMENTS) < PLACEMENTS_EACH]
        answers = ask(numbers, placement="greedy" if is_random else placement)
        for number, speculative in zip(numbers, answers, strict=True):
            assert speculative.token_ids == synchronous[number].token_ids, (*pairs[number], placement)
            num_rejected += speculative.statistics.num_tokens - speculative.statistics.num_device_accepted
            num_handovers += len(speculative.placements)
    baselines.treat({})
    assert num_rejected > num_pairs, "the test needs rollbacks to mean anything"
    assert num_handovers > 2 * num_pairs, "and handovers"


def test_different_seeds_give_different_answers(rag: Tandem) -> None:
    question = read_bundled_questions()[0].question
    answers = ask_all(rag, [(question, SHORT | {"temperature": 1.5, "seed": seed}) for seed in range(8)])
    assert len({answer.text for answer in answers}) > 1


def test_algorithm1_is_a_function_of_the_seed_too(rag: Tandem) -> None:
    question = read_bundled_questions()[1].question
    ways = (
        {"placement": "device", "max_window": 1},
        {"placement": "device"},
        {"placement": "cloud"},
        {"placement": "greedy"},
    )
    for seed in range(5):
        basis = SHORT | {"draft_rule": "algorithm1", "seed": seed}
        answers = ask_all(rag, [(question, basis | way) for way in ways])
        assert len({answer.token_ids for answer in answers}) == 1
