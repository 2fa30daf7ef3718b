"""Training of the policy of proposal lengths: its loss, its answers, and that it learns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tandem.papers.qs import LAYERS, NUM_CONFIDENCES, SHAPES, make_state, values
from tandem.scheduler.lengths import MAX_LENGTH, RoundCosts
from tandem_lab.training import lengths as training
from tandem_lab.training.lengths import Answers, Plan, double_dqn_loss, make_weights, train

TINY = Plan(num_steps=40, num_answers=8, num_tokens=20, batch=16)


def test_the_loss_is_that_of_double_q_learning() -> None:
    weights, copies = make_weights(1), make_weights(2)
    state, later = torch.rand(1, LAYERS[0]), torch.rand(1, LAYERS[0])
    for done in (0.0, 1.0):
        rounds = [state, torch.tensor([3]), torch.tensor([2.0]), torch.tensor([done]), later]
        choice = int(values(weights, later).argmax())
        target = 2.0 + 0.1 * (1 - done) * float(values(copies, later)[0, choice].detach())
        found = float(values(weights, state)[0, 2].detach())
        assert float(double_dqn_loss(weights, copies, rounds, 0.1).detach()) == pytest.approx(
            (found - target) ** 2
        )


def test_a_round_is_worth_its_expected_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """QS Eq. 13: 1 + a + a^2 tokens in ratio + 2, here with one rate and one link for all."""
    monkeypatch.setattr(training, "RATES", (0.5, 0.5))
    monkeypatch.setattr(training, "RATIOS", (4.0, 4.0))
    answers = Answers(replace(TINY, num_tokens=1000), np.random.default_rng(0))
    rewards, done = answers.play(np.full(8, 2))
    assert rewards == pytest.approx(0.5 * (1 + 0.5 + 0.25) / 6 * 5)
    assert not done.any()


def test_a_state_of_training_is_one_of_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "RATIOS", (4.0, 4.0))
    answers = Answers(replace(TINY, num_tokens=1000), np.random.default_rng(0))
    for _ in range(3):
        answers.play(np.full(8, 5))
    assert answers.states.shape == (8, LAYERS[0])
    for state in answers.states:
        confidences = [float(each) for each in state[:NUM_CONFIDENCES] if each > 0]
        costs = RoundCosts(fixed_s=0.4, token_s=0.1, alone_s=1.0)
        assert make_state(confidences, costs) == pytest.approx(state, rel=1e-5)


def test_a_complete_answer_is_followed_by_a_new_one() -> None:
    answers = Answers(replace(TINY, num_tokens=2), np.random.default_rng(0))
    done = np.zeros(8, bool)
    while not done.any():
        _, done = answers.play(np.full(8, MAX_LENGTH))
    assert not answers.states[done, :NUM_CONFIDENCES].any()


def test_training_is_seeded_and_learns() -> None:
    one, two = train(TINY), train(TINY)
    assert [each.shape for each in one] == list(SHAPES)
    assert all((left == right).all() for left, right in zip(one, two, strict=True))
    first = [each.detach().numpy() for each in make_weights(TINY.seed)]
    assert any((left != right).any() for left, right in zip(one, first, strict=True))
