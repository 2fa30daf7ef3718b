"""Who decides the next step under each placement policy."""

from __future__ import annotations

from itertools import product

import pytest

from tandem.scheduler import Fixed, Greedy, Policy, Situation, choose, make_policy
from tandem.topology import PARTIES, Party
from tandem_lab.baselines.random_placement import Random

SITUATION = Situation(
    decode_s=dict.fromkeys(PARTIES, 0.06), acceptance={Party.DEVICE: 0.95, Party.CLOUD: 0.2}, rtt_s=0.3
)


@pytest.mark.parametrize(
    ("placement", "policy"),
    [("device", Fixed(Party.CLOUD)), ("mirror", Fixed(Party.CLOUD)), ("greedy", Greedy())],
)
def test_policies_by_name(placement: str, policy: Policy) -> None:
    assert make_policy(placement, first=Party.CLOUD) == policy


@pytest.mark.parametrize("party", PARTIES)
def test_fixed_stays_whatever_happens(party: Party) -> None:
    policy = Fixed(party)
    assert policy.advise(SITUATION, party) is None
    for accepted, advice in product((True, False), (None, *PARTIES)):
        assert policy.choose_next(3, party, remote_accepted=accepted, advice=advice) is party


def test_greedy_follows_the_advice_at_a_rejection() -> None:
    policy = Greedy()
    assert policy.advise(SITUATION, Party.DEVICE) is choose(SITUATION, Party.DEVICE) is Party.CLOUD
    here, there = Party.DEVICE, Party.CLOUD
    assert policy.choose_next(3, here, remote_accepted=True, advice=there) is here
    assert policy.choose_next(3, here, remote_accepted=False, advice=there) is there
    assert policy.choose_next(3, here, remote_accepted=False, advice=None) is here


def test_random_is_a_function_of_seed_and_step_and_even() -> None:
    """A fair coin leaves 400 to 600 of 1,000 with a probability of 2e-10; the seed is fixed."""

    def draw(seed: int) -> list[Party]:
        return [
            Random(seed).choose_next(step, Party.DEVICE, remote_accepted=True, advice=None)
            for step in range(1000)
        ]

    assert draw(1) == draw(1) != draw(2)
    assert 400 <= draw(1).count(Party.DEVICE) <= 600
    assert Random(1).advise(SITUATION, Party.DEVICE) is None
