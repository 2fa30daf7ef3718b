"""Replays take the time that can be counted by hand; strategies compare on equal sequences."""

from __future__ import annotations

from random import Random

import pytest

from tandem.aggregation.rules import draft_rule
from tandem.scheduler.greedy import token_s
from tandem.topology import PARTIES, Party
from tandem_lab.simulation import study
from tandem_lab.simulation.study import (
    CODEC,
    LAWS,
    STRATEGIES,
    Accepted,
    Summary,
    compare,
    draw_acceptance,
    link_of,
    phases,
    rates,
    replay,
)


@pytest.mark.parametrize("accepted", LAWS)
def test_four_pairs_of_laws_force_the_four_cases(accepted: Accepted) -> None:
    device, cloud = (CODEC.decode(LAWS[accepted][party]) for party in PARTIES)
    for temperature_rule in ("coupled", "algorithm1"):
        rule = draft_rule(temperature_rule, 0.0)
        found = rule.verify(device, cloud, eta_device=0.5, seed=7, step=3)
        assert (found.device_accepted, found.cloud_accepted) == accepted
        assert (found.acceptance_device, found.acceptance_cloud) == accepted  # 0/1 at temperature 0


EQUAL = {Party.DEVICE: 0.06, Party.CLOUD: 0.06}
RTT_S = 0.3


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_rejections_only_a_moving_aggregator_costs_time(strategy: study.Strategy) -> None:
    """Tokens come at the pace of decoding, unless verdicts must follow the aggregator from side to side."""
    run = replay([(True, True)] * 40, EQUAL, link_of(RTT_S), strategy)
    assert (run.num_switches > 10) == (strategy == "random")
    if strategy != "random":
        assert run.token_s == pytest.approx(0.06, abs=RTT_S / 39)  # one stall, before the round trip is known


def test_eq7_is_the_time_of_a_fixed_placement_with_equal_parties() -> None:
    accepted = draw_acceptance(100, 0.7, 0.8, Random(5))
    alpha = rates(accepted[:-1])  # nobody waits for the last one's consequences
    for party in Party:
        expected_s = token_s(0.06, 0.06, alpha[party.other], RTT_S)
        assert replay(accepted, EQUAL, link_of(RTT_S), party.value).token_s == pytest.approx(
            expected_s, rel=0.03
        )


def test_greedy_gains_in_phases_and_mirror_is_never_behind_it() -> None:
    sequences = [phases(100, 0.95, 0.5, 25, Random(n)) for n in range(3)]
    found = compare(sequences, EQUAL, link_of(RTT_S), ("device", "cloud", "greedy", "mirror"))
    mean_s = {strategy: Summary.of(run.token_s for run in runs).mean for strategy, runs in found.items()}
    assert mean_s["greedy"] < 0.95 * min(mean_s["device"], mean_s["cloud"])
    assert mean_s["mirror"] <= mean_s["greedy"]


def test_a_replay_of_another_sequence_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stubborn(study.ScriptedModel):
        def __init__(self, party: Party, accepted: list[Accepted]) -> None:
            super().__init__(party, [(True, True)] * len(accepted))

    monkeypatch.setattr(study, "ScriptedModel", Stubborn)
    with pytest.raises(RuntimeError, match="another sequence"):
        replay([(True, False)], EQUAL, link_of(0.0), "device")
