"""Sites in one process answer as a Ray cluster does, token for token and flag for flag: both are held to one record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tandem import Config, Tandem
from tandem.lab.training.bundle import read_bundled_questions
from tests.cluster.federation import Loop, settings_of
from tests.cluster.recorded import CASES, TEMPERATURES, check_answers

NUM_PAIRS = 4
"""With all cases and temperatures 56 pairs of question and options."""
QUESTIONS = [asked.question for asked in read_bundled_questions()][:3]
SPECULATIVE: tuple[dict[str, Any], ...] = (
    {"pacing": "stop_and_wait", "max_proposal": 4},
    {"pacing": "pipelined", "max_proposal": 3},
    {"pacing": "cloud_goes_on", "max_proposal": 4},
    {"pacing": "stop_and_wait", "max_proposal": 0},
    {"pacing": "pipelined", "max_proposal": 12, "length_policy": "best"},
)


@pytest.mark.parametrize(("codec", "case"), CASES)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_dual_answers_are_those_recorded(rag: Tandem, codec: str, case: str, temperature: int) -> None:
    check_answers(rag, codec, case, temperature, NUM_PAIRS)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("options", SPECULATIVE, ids=lambda options: "-".join(map(str, options.values())))
def test_speculative_answers_are_those_of_the_cloud_alone(
    rag: Tandem, options: dict[str, Any], temperature: float
) -> None:
    for seed, question in enumerate(QUESTIONS):
        asked = {"mode": "speculative", "seed": seed, "temperature": temperature}
        alone = rag.query(question, only="cloud", **asked)
        together = rag.query(question, **asked, **options)
        assert together.token_ids == alone.token_ids
        assert not together.is_degraded
        assert alone.statistics.sent_bytes == 0


@pytest.mark.parametrize("placement", ["mirror", "device", "greedy"])
def test_the_synchronous_loop_answers_alike(rag: Tandem, placement: str) -> None:
    for seed, question in enumerate(QUESTIONS):
        answers = [
            rag.query(question, seed=seed, temperature=1.0, placement=placement, synchronous=synchronous)
            for synchronous in (False, True)
        ]
        assert answers[0].token_ids == answers[1].token_ids


def test_federated_answers_are_those_of_the_draft_free_loop(tmp_path: Path) -> None:
    overrides = (*settings_of(tmp_path, "alice=device", "bob=cloud"), "cluster.runtime=inline")
    config = Config.load(None, ["link.on_peer_loss=wait", *overrides])
    loop = Loop(config)
    with Tandem.launch(config) as rag:
        assert set(rag.status()["parties"]) == {"server", "alice", "bob"}
        for seed, question in enumerate(QUESTIONS[:2]):
            answer = rag.query(question, seed=seed, temperature=1.0, max_new_tokens=12)
            assert list(answer.token_ids) == loop.answer(question, seed, 1.0, 12)
