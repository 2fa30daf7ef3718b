"""Answers in virtual time take what can be counted by hand; strategies compare on equal sequences."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tandem.aggregation.rules import draft_rule
from tandem.protocol.link import QUEUED_FRAMES
from tandem.scheduler import token_s
from tandem.topology import PARTIES, SERVER, Party
from tandem_lab.bench.systems import FEDERATED
from tandem_lab.simulation import study, timed
from tandem_lab.simulation.study import CODEC, LAWS, Accepted, draw_acceptance, link_of, rates, replay
from tandem_lab.simulation.timed import Times, Timing, play_timed

SERVER_S, WORKER_S, RTT_S, NUM_TOKENS = 0.015, 0.027, 0.1, 40
OPTIONS = {system.name: system.options for system in FEDERATED}


def play(system: str, accepted: Any = True, *, slow: float = 1.0, num_workers: int = 2) -> Timing:
    names = [f"worker-{number}" for number in range(1, num_workers + 1)]
    passes_s = {SERVER: SERVER_S, **dict.fromkeys(names, WORKER_S), names[-1]: slow * WORKER_S}
    flags = [accepted] * NUM_TOKENS if isinstance(accepted, bool) else list(accepted)
    return play_timed(OPTIONS[system], Times(passes_s=passes_s, rtt_s=RTT_S), flags)


def pace_s(timing: Timing) -> float:
    return timed.pace_s([timing.committed_s])


@pytest.mark.parametrize("num_workers", [2, 4, 8])
def test_the_token_wise_loop_takes_a_round_trip_and_a_pass(num_workers: int) -> None:
    timing = play("token-wise", num_workers=num_workers)
    assert pace_s(timing) == pytest.approx(RTT_S + WORKER_S, abs=0.004)
    assert timing.num_accepted == 0
    assert timing.num_passes["worker-1"] == NUM_TOKENS


def test_a_round_brings_the_accepted_tokens_and_one_more() -> None:
    """Proposals of 4 that are all right: 5 tokens take 4 drafts, a round trip and a pass."""
    timing = play("stop_and_wait")
    assert pace_s(timing) == pytest.approx((RTT_S + WORKER_S + 4 * SERVER_S) / 5, rel=0.06)
    assert pace_s(play("pipelined")) < 0.6 * pace_s(timing)
    rejected = play("stop_and_wait", accepted=False)
    assert pace_s(rejected) == pytest.approx(RTT_S + WORKER_S + 4 * SERVER_S, rel=0.06)
    assert rejected.num_accepted == 0


# ---- a slow link -----------------------------------------------------------------------------------------------

PASS_S, FRAME_S = 0.027, 0.1  # of the cloud, and what a frame's headers take at 10 kbit/s


def play_slow(max_proposal: int, rtt_s: float, bits_per_s: float = 1e4) -> Timing:
    times = Times(
        passes_s={"device": 0.015, "cloud": PASS_S}, rtt_s=rtt_s, bits_per_s=bits_per_s, header_bytes=125
    )
    options = {"mode": "speculative", "pacing": "cloud_goes_on", "max_proposal": max_proposal}
    return play_timed(options, times, [step % 7 > 0 for step in range(48)])


@pytest.mark.parametrize("rtt_s", [0.0, 0.3])
def test_a_stream_over_a_full_link_takes_no_longer_than_its_passes(rtt_s: float) -> None:
    """Verdicts that wait share the headers of one frame; one frame for each would take 100 ms per token."""
    timing = play_slow(0, rtt_s)
    assert pace_s(timing) < 1.2 * PASS_S
    assert timing.num_frames["cloud"] < 20
    assert timing.committed_s[0] < 0.7 + rtt_s, (
        "the opening comes through at once, and nothing fills the link"
    )


@pytest.mark.parametrize("rtt_s", [0.0, 0.3])
def test_a_cloud_that_goes_on_is_as_fast_and_what_is_sent_beside_it_leaves_no_long_queue(
    rtt_s: float,
) -> None:
    """A question that follows would wait behind it. Without a window twice of what the link carries was sent."""
    timing = play_slow(4, rtt_s)
    assert pace_s(timing) <= 1.05 * pace_s(play_slow(0, rtt_s))
    sent_s = 8 * timing.num_bytes["device"] / 1e4
    assert sent_s < timing.committed_s[-1] + QUEUED_FRAMES * FRAME_S


@pytest.mark.parametrize("accepted", LAWS)
def test_four_pairs_of_laws_force_the_four_cases(accepted: Accepted) -> None:
    device, cloud = (CODEC.decode(LAWS[accepted][party]) for party in PARTIES)
    for temperature_rule in ("coupled", "algorithm1"):
        rule = draft_rule(temperature_rule, 0.0)
        found = rule.verify(device, cloud, eta_device=0.5, seed=7, step=3)
        assert (found.device_accepted, found.cloud_accepted) == accepted
        assert (found.acceptance_device, found.acceptance_cloud) == accepted  # 0/1 at temperature 0


EQUAL = {Party.DEVICE: 0.06, Party.CLOUD: 0.06}
ROUND_TRIP_S = 0.3


def test_eq7_is_the_time_of_a_fixed_placement_with_equal_parties() -> None:
    accepted = draw_acceptance(100, 0.7, 0.8, Random(5))
    alpha = rates(accepted[:-1])  # nobody waits for the last one's consequences
    for party in Party:
        expected_s = token_s(0.06, 0.06, alpha[party.other], ROUND_TRIP_S)
        assert replay(accepted, EQUAL, link_of(ROUND_TRIP_S), party.value).token_s == pytest.approx(
            expected_s, rel=0.03
        )


def test_a_replay_of_another_sequence_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stubborn(study.ScriptedModel):
        def __init__(self, party: Party, accepted: list[Accepted]) -> None:
            super().__init__(party, [(True, True)] * len(accepted))

    monkeypatch.setattr(study, "ScriptedModel", Stubborn)
    with pytest.raises(RuntimeError, match="another sequence"):
        replay([(True, False)], EQUAL, link_of(0.0), "device")
