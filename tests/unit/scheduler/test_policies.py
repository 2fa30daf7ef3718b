"""Who decides the next step under each placement policy; policies of one's own, of both kinds, named by settings."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tandem.errors import ConfigError
from tandem.scheduler import (
    LENGTH_POLICIES,
    PLACEMENTS,
    Fixed,
    Greedy,
    Loader,
    Policy,
    Situation,
    choose,
    load_length_policy,
    load_policy,
    make_length_policy,
    make_policy,
)
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


MODULE = """
class Stay:
    def __init__(self, first, patience=3):
        self.first, self.patience = first, patience

    def advise(self, situation, aggregator):
        return None

    def choose_next(self, step, aggregator, *, remote_accepted, advice):
        return aggregator


class Half:
    def __init__(self, max_length, share=0.5):
        self.length = int(share * max_length)

    def choose(self):
        return self.length

    def observe(self, length, num_accepted, draft_s):
        pass


def nothing(**given):
    return object()
"""


@pytest.fixture(autouse=True)
def _own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_policies.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_loaded_placement_is_made_by_its_address() -> None:
    shared = load_policy("own_policies:Stay", {"patience": 5}, "The cloud's aggregator")
    assert shared == "own_policies:Stay(patience=5)"
    policy: Any = make_policy("own_policies:Stay", first=Party.CLOUD)
    assert (policy.first, policy.patience) == (Party.CLOUD, 5)
    assert load_policy("greedy", {}, "This process") == ""


def test_a_loaded_length_policy_is_made_by_its_address() -> None:
    load_length_policy("own_policies:Half", {"share": 0.25}, "The device's decoder")
    policy = make_length_policy("own_policies:Half", 12)
    assert policy is not None
    assert policy.choose() == 3
    assert make_length_policy("fixed", 12) is None


@pytest.mark.parametrize(
    ("loader", "given", "members"),
    [
        (PLACEMENTS, {"first": Party.CLOUD}, "advise, choose_next"),
        (LENGTH_POLICIES, {"max_length": 4}, "choose, observe"),
    ],
)
def test_what_is_no_policy_is_one_sentence(loader: Loader[Any], given: dict[str, Any], members: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loader.load("own_policies:nothing", {}, "The cloud's scheduler", **given)
    assert str(caught.value).endswith(f"policy, but its object has no {members}.")


def test_what_cannot_be_imported_is_one_sentence() -> None:
    with pytest.raises(ConfigError) as caught:
        load_policy("own_policy:Stay", {}, "The cloud's scheduler")
    assert str(caught.value) == (
        "The cloud's scheduler cannot import own_policy of decoding.placement = 'own_policy:Stay' "
        "(ModuleNotFoundError: No module named 'own_policy'); install it there in the environment of tandem-rag, "
        "start in the folder that holds it, or add that folder to PYTHONPATH."
    )
