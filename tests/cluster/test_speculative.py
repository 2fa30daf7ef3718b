"""Edge-cloud speculative decoding on a real cluster: the device drafts, and the answer is the cloud's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tandem import Tandem
from tandem.errors import ConfigError
from tandem.events import Answer
from tandem_lab.bundled import read_bundled_questions

NUM_QUESTIONS = 4
AskAlone = Callable[[str, int, float], Answer]
OPTIONS: dict[str, dict[str, Any]] = {
    "stop-and-wait": {"pacing": "stop_and_wait", "max_proposal": 4},
    "pipelined": {"pacing": "pipelined", "max_proposal": 3},
    "the cloud goes on": {"pacing": "cloud_goes_on", "max_proposal": 4},
    "the cloud streams": {"pacing": "cloud_goes_on", "max_proposal": 0},
    "token by token": {"pacing": "stop_and_wait", "max_proposal": 0},
}


def ask(rag: Tandem, question: str, **options: Any) -> Answer:
    return rag.query(question, mode="speculative", **options)


@pytest.fixture(scope="module")
def questions() -> list[str]:
    return [asked.question for asked in read_bundled_questions()][:NUM_QUESTIONS]


@pytest.fixture(scope="module")
def alone_answers(rag: Tandem) -> AskAlone:
    """What the cloud answers by itself; each once."""
    return cache(
        lambda question, seed, temperature: ask(
            rag, question, only="cloud", seed=seed, temperature=temperature
        )
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", OPTIONS)
def test_answers_are_those_of_the_cloud_alone(
    rag: Tandem, alone_answers: AskAlone, questions: list[str], name: str, temperature: float
) -> None:
    for seed, question in enumerate(questions):
        alone = alone_answers(question, seed, temperature)
        together = ask(rag, question, seed=seed, temperature=temperature, **OPTIONS[name])
        assert together.token_ids == alone.token_ids
        assert not together.is_degraded
        has_drafts = OPTIONS[name]["max_proposal"] > 0 and OPTIONS[name]["pacing"] != "cloud_goes_on"
        if has_drafts and temperature == 0.0:
            assert together.statistics.num_device_accepted > 0


def test_beside_a_cloud_that_goes_on_the_best_length_changes_no_token(
    rag: Tandem, questions: list[str]
) -> None:
    alone = ask(rag, questions[0], only="cloud", seed=4)
    adapting = ask(rag, questions[0], seed=4, length_policy="best", max_proposal=16)
    assert adapting.token_ids == alone.token_ids
    with pytest.raises(ConfigError, match=r"^The device has not loaded the length policy 'tandem\.papers"):
        ask(rag, questions[0], length_policy="last_accepted")
