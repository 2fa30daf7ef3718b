"""Temperature 0: drafts and target are argmaxes of the decoded distributions, ties to the lowest id.

Nothing is drawn, so nothing has a false alarm.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tandem.aggregation import rules
from tandem.aggregation.distributions import Distribution
from tandem.codecs.top_p import TopP
from tandem.topology import PARTIES, Party

by_rule = pytest.mark.parametrize("name", rules.DRAFT_RULES)


def check_drafts_are_the_argmax(rule: rules.DraftRule) -> None:
    distribution = Distribution(np.array([2, 5, 6]), np.array([0.2, 0.45, 0.35]))
    for party in PARTIES:
        for seed in range(20):
            assert rule.draft(distribution, seed=seed, step=seed, party=party) == 5


def check_ties_go_to_the_lowest_id(rule: rules.DraftRule) -> None:
    """Equal after quantisation counts as equal, since both parties see only what was sent."""
    codec = TopP(1.0)
    distribution = codec.decode(codec.encode(np.array([0.1, 0.3, 0.3 + 1e-9, 0.3])))
    decision = rule.verify(distribution, distribution, eta_device=0.5, seed=1, step=1)
    assert (decision.target, decision.device_token, decision.cloud_token) == (1, 1, 1)


def check_target_is_the_argmax_of_the_mixture(rule: rules.DraftRule) -> None:
    """It may differ from both drafts (DRAGON 4.2), so picking one of them would be wrong."""
    device = Distribution(np.array([0, 1, 2]), np.array([0.6, 0.4, 0.0]))
    cloud = Distribution(np.array([0, 1, 2]), np.array([0.0, 0.4, 0.6]))
    decision = rule.verify(device, cloud, eta_device=0.5, seed=1, step=1)
    assert (decision.target, decision.device_token, decision.cloud_token) == (1, 0, 2)
    assert (decision.acceptance_device, decision.acceptance_cloud) == (0.0, 0.0)
    assert not decision.device_accepted
    assert not decision.cloud_accepted


CHECKS = [
    check_drafts_are_the_argmax,
    check_ties_go_to_the_lowest_id,
    check_target_is_the_argmax_of_the_mixture,
]


@by_rule
@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_temperature_zero(name: str, check: Callable[[rules.DraftRule], None]) -> None:
    check(rules.draft_rule(name, 0.0))


@by_rule
def test_mutant_drafts_drawn_at_random_on_one_party(name: str) -> None:
    """Section 12: drafts are drawn at random by one party even when decoding greedily."""

    class Mutant(rules.GreedyRule):
        def draft(self, distribution: Distribution, *, seed: int, step: int, party: Party) -> int:
            if party is Party.DEVICE:
                return super().draft(distribution, seed=seed, step=step, party=party)
            return rules.draft_rule(name, 1.0).draft(distribution, seed=seed, step=step, party=party)

    with pytest.raises(AssertionError):
        check_drafts_are_the_argmax(Mutant(name))


def test_mutant_ties_go_to_the_highest_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Distribution,
        "argmax",
        lambda self: int(self.ids[len(self) - 1 - np.argmax(self.probabilities[::-1])]),
    )
    with pytest.raises(AssertionError):
        check_ties_go_to_the_lowest_id(rules.draft_rule("coupled", 0.0))


def test_mutant_target_is_one_of_the_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "target_distribution", lambda device, cloud, eta_device: device)
    with pytest.raises(AssertionError):
        check_target_is_the_argmax_of_the_mixture(rules.draft_rule("coupled", 0.0))
