"""Draft rules: the decision, its names and its errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tandem.aggregation.distributions import Distribution
from tandem.aggregation.rules import DRAFT_RULES, draft_rule
from tandem.errors import ConfigError
from tandem.topology import Party

DEVICE = Distribution(np.array([1, 4, 70_000]), np.array([0.5, 0.25, 0.25]))
CLOUD = Distribution(np.array([1, 9]), np.array([0.25, 0.75]))


@pytest.mark.parametrize("name", DRAFT_RULES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_verifier_sees_the_very_drafts_of_the_drafters(name: str, temperature: float) -> None:
    rule = draft_rule(name, temperature)
    assert rule.name == name
    for step in range(50):
        decision = rule.verify(DEVICE, CLOUD, eta_device=0.5, seed=3, step=step)
        assert decision.device_token == rule.draft(DEVICE, seed=3, step=step, party=Party.DEVICE)
        assert decision.cloud_token == rule.draft(CLOUD, seed=3, step=step, party=Party.CLOUD)
        assert decision.device_accepted == (decision.device_token == decision.target)
        assert decision.cloud_accepted == (decision.cloud_token == decision.target)
        assert decision == rule.verify(DEVICE, CLOUD, eta_device=0.5, seed=3, step=step)


@pytest.mark.parametrize("name", DRAFT_RULES)
def test_the_share_of_zero_leaves_the_other_distribution_alone(name: str) -> None:
    rule = draft_rule(name, 1.0)
    targets = {rule.verify(DEVICE, CLOUD, eta_device=0.0, seed=3, step=s).target for s in range(200)}
    assert targets == {1, 9}


@pytest.mark.parametrize("name", DRAFT_RULES)
def test_temperature_zero_takes_the_argmax_of_the_mixture(name: str) -> None:
    decision = draft_rule(name, 0.0).verify(DEVICE, CLOUD, eta_device=0.6, seed=1, step=0)
    assert (decision.target, decision.device_token, decision.cloud_token) == (1, 1, 9)
    assert (decision.acceptance_device, decision.acceptance_cloud) == (1.0, 0.0)


def test_unknown_rule() -> None:
    with pytest.raises(ConfigError, match=r"^The draft rule 'cupled' is unknown; did you mean coupled\?$"):
        draft_rule("cupled", 1.0)
    with pytest.raises(ConfigError, match=r"choose one of coupled, algorithm1\.$"):
        draft_rule("x", 1.0)


@pytest.mark.parametrize("temperature", [-1.0, math.nan, math.inf])
def test_bad_temperature(temperature: float) -> None:
    with pytest.raises(
        ConfigError, match=r"^The temperature must be finite and >= 0, got .*; set 0 to be greedy"
    ):
        draft_rule("coupled", temperature)
