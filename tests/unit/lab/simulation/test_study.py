"""Replays take the time that can be counted by hand; strategies compare on equal sequences."""

from __future__ import annotations

from random import Random

import pytest

from tandem.aggregation.rules import draft_rule
from tandem.scheduler import token_s
from tandem.topology import PARTIES, Party
from tandem_lab.simulation import study
from tandem_lab.simulation.study import CODEC, LAWS, Accepted, draw_acceptance, link_of, rates, replay


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


def test_eq7_is_the_time_of_a_fixed_placement_with_equal_parties() -> None:
    accepted = draw_acceptance(100, 0.7, 0.8, Random(5))
    alpha = rates(accepted[:-1])  # nobody waits for the last one's consequences
    for party in Party:
        expected_s = token_s(0.06, 0.06, alpha[party.other], RTT_S)
        assert replay(accepted, EQUAL, link_of(RTT_S), party.value).token_s == pytest.approx(
            expected_s, rel=0.03
        )


def test_a_replay_of_another_sequence_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stubborn(study.ScriptedModel):
        def __init__(self, party: Party, accepted: list[Accepted]) -> None:
            super().__init__(party, [(True, True)] * len(accepted))

    monkeypatch.setattr(study, "ScriptedModel", Stubborn)
    with pytest.raises(RuntimeError, match="another sequence"):
        replay([(True, False)], EQUAL, link_of(0.0), "device")
