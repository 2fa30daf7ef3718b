"""DRAGON's greedy rule: Eq. (8) is the difference of Eq. (7), Eq. (9) its ratio, and a choice follows the gain.
Whatever was measured, it computes with finite numbers and states each assumption in one sentence."""

from __future__ import annotations

from itertools import product
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any

import pytest

from tandem.errors import ConfigError
from tandem.scheduler import (
    LENGTH_POLICIES,
    MAX_S,
    PLACEMENTS,
    Fixed,
    Greedy,
    Loader,
    Policy,
    Situation,
    choose,
    delta_z,
    fill_gaps,
    load_length_policy,
    load_policy,
    make_length_policy,
    make_policy,
    speedup,
    token_s,
)
from tandem.topology import PARTIES, Party
from tandem_lab.baselines.random_placement import Random

TIMES_S = (0.0, 0.02, 0.06, 0.08, 0.1, 0.16, 0.5)  # with c^r - rtt, c^r and c^r + rtt among them
ALPHAS = (0.0, 0.3, 0.8, 1.0)
RTTS_S = (0.0, 0.02, 0.1, 1.0)
GRID = list(product(TIMES_S, TIMES_S, ALPHAS, ALPHAS, RTTS_S))


def situation(device_s: float, cloud_s: float, device: float, cloud: float, rtt_s: float) -> Situation:
    return Situation(
        decode_s={Party.DEVICE: device_s, Party.CLOUD: cloud_s},
        acceptance={Party.DEVICE: device, Party.CLOUD: cloud},
        rtt_s=rtt_s,
    )


def test_eq8_is_the_difference_of_eq7_on_a_grid_with_the_boundaries() -> None:
    edges = [c_l - c_r in (-rtt, 0.0, rtt) for c_l, c_r, _, _, rtt in GRID]
    assert sum(edges) > 100
    for c_l, c_r, alpha_l, alpha_r, rtt in GRID:
        expected = token_s(c_l, c_r, alpha_r, rtt) - token_s(c_r, c_l, alpha_l, rtt)
        assert delta_z(c_l, c_r, alpha_l, alpha_r, rtt) == pytest.approx(expected, abs=1e-12)


def test_eq9_is_the_token_wise_loop_over_eq7() -> None:
    for c_l, c_r, _, alpha_r, rtt in GRID:
        if max(c_l, c_r + rtt) == 0 or token_s(c_l, c_r, alpha_r, rtt) == 0:
            continue
        expected = max(c_l, c_r + rtt) / token_s(c_l, c_r, alpha_r, rtt)
        assert speedup(c_l, c_r, alpha_r, rtt) == pytest.approx(expected)
        assert speedup(c_l, c_r, alpha_r, rtt) >= 1 - 1e-12


@pytest.mark.parametrize("aggregator", Party)
def test_a_clear_gain_moves_the_aggregator_and_a_clear_loss_keeps_it(aggregator: Party) -> None:
    rates = {aggregator: 0.95, aggregator.other: 0.3}  # the other side's drafts fail: aggregate there
    good = situation(0.06, 0.06, rates[Party.DEVICE], rates[Party.CLOUD], 0.3)
    assert choose(good, aggregator) is aggregator.other
    assert choose(good, aggregator.other) is aggregator.other


def test_exchanging_the_parties_exchanges_nothing_but_names() -> None:
    for c_l, c_r, alpha_l, alpha_r, rtt in GRID:
        here = choose(situation(c_l, c_r, alpha_l, alpha_r, rtt), Party.DEVICE)
        there = choose(situation(c_r, c_l, alpha_r, alpha_l, rtt), Party.CLOUD)
        assert here is there.other


BAD = (nan, 0.0, inf, -inf, -1.0, 1e-9, 0.05, 5.0, 1e300)


def fill(**changes: float) -> tuple[Situation, tuple[str, ...]]:
    """What is assumed where some of five good values are bad."""
    values = {
        "device_decode_s": 0.06, "cloud_decode_s": 0.02, "device_acceptance": 0.9, "cloud_acceptance": 0.7,
        "rtt_s": 0.3, **changes,
    }  # fmt: skip
    return fill_gaps(
        {party: values[f"{party}_decode_s"] for party in PARTIES},
        {party: values[f"{party}_acceptance"] for party in PARTIES},
        values["rtt_s"],
    )


@pytest.mark.parametrize(
    "name", ["device_decode_s", "cloud_decode_s", "device_acceptance", "cloud_acceptance", "rtt_s"]
)
@pytest.mark.parametrize("value", BAD)
def test_a_bad_value_stays_finite_and_takes_one_sentence_at_most(name: str, value: float) -> None:
    now, assumed = fill(**{name: value})
    assert isfinite(now.delta_z_s)
    assert {choose(now, party) for party in PARTIES} <= set(PARTIES)
    assert len(assumed) <= 1
    assert all(sentence.endswith("assumed.") and sentence.count(". ") == 0 for sentence in assumed)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"cloud_decode_s": nan}, "The decode time of the cloud is nan s; the other party's was assumed."),
        ({"device_decode_s": 0.0}, "The decode time of the device is 0 s; the other party's was assumed."),
        ({"device_decode_s": 1e2}, "The decode time of the device is 100 s; the other party's was assumed."),
        ({"device_acceptance": nan}, "The acceptance rate of the device is nan; 0.5 was assumed."),
        ({"rtt_s": nan}, "The round trip is nan s; 0 s was assumed."),
        ({"rtt_s": inf}, "The round trip is inf s; 60 s was assumed."),
        ({"rtt_s": -0.2}, "The round trip is -0.2 s; 0 s was assumed."),
    ],
)
def test_one_sentence_for_each_assumption(changes: dict[str, float], sentence: str) -> None:
    assert fill(**changes)[1] == (sentence,)


def test_rates_outside_0_to_1_and_long_round_trips_are_cut() -> None:
    now, assumed = fill(device_acceptance=7.0, cloud_acceptance=-3.0, rtt_s=100 * 0.3)
    assert now.acceptance == {Party.DEVICE: 1.0, Party.CLOUD: 0.0}
    assert (now.rtt_s, assumed) == (30.0, ())
    assert fill(rtt_s=1e9)[0].rtt_s == MAX_S


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
