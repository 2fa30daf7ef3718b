"""The virtual clock of pacings against closed forms, where there are some, and against what must hold everywhere."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tandem.scheduler.lengths import BestLength, expected_tokens
from tandem_lab.simulation.pacing import (
    ACK_BYTES,
    ID_BYTES,
    Conditions,
    Pacing,
    device_alone,
    draw_accepted,
    play_answer,
)

LINK = Conditions(rtt_s=0.1)
ALWAYS, NEVER = [True] * 5000, [False] * 5000


def ms(conditions: Conditions, pacing: Pacing, length: int, rate: float, num_tokens: int = 8_000) -> float:
    """Per token."""
    return 1e3 * play_answer(conditions, pacing, length, draw_accepted(rate, 1), num_tokens).token_s


def test_length_0_gives_the_baselines() -> None:
    """Asked: a round trip and a pass per token. Streaming: a pass, whatever the round trip."""
    for rtt_s in (0.0, 0.1, 0.3):
        link = replace(LINK, rtt_s=rtt_s)
        assert ms(link, "stop_and_wait", 0, 0.8, 500) == pytest.approx(1e3 * rtt_s + 27)
        assert ms(link, "cloud_goes_on", 0, 0.8, 500) == pytest.approx(27)
    assert 1e3 * device_alone(0.06, 10).token_s == pytest.approx(60)


def test_the_first_token_comes_after_a_round_trip_and_a_pass() -> None:
    assert play_answer(LINK, "cloud_goes_on", 0, ALWAYS, 5).first_s == pytest.approx(0.05 + 0.027 + 0.05)
    opened = replace(LINK, open_s=0.2)
    assert play_answer(opened, "cloud_goes_on", 0, ALWAYS, 5).first_s == pytest.approx(0.327)
    drafted = play_answer(LINK, "stop_and_wait", 2, ALWAYS, 5)
    assert drafted.first_s == pytest.approx(2 * 0.015 + 0.1 + 0.025 + 3 * 0.002)


@pytest.mark.parametrize("length", [1, 4, 16])
@pytest.mark.parametrize("rate", [0.5, 0.85])
def test_stop_and_wait_is_the_renewal_formula(length: int, rate: float) -> None:
    """FlexSpec Eq. 7 to 10, with a geometric number of tokens per round."""
    link = replace(LINK, bits_per_s=1e5)
    bits = 8 * (link.up_bytes + link.down_bytes + length * link.proposed_bytes)
    round_ms = 100 + 15 * length + 25 + 2 * (length + 1) + 1e3 * bits / 1e5
    assert ms(link, "stop_and_wait", length, rate) == pytest.approx(
        round_ms / expected_tokens([rate] * length)[-1], rel=0.03
    )


def test_pipelined_without_an_error_takes_the_drafters_time() -> None:
    assert 1e3 * play_answer(LINK, "pipelined", 1, ALWAYS, 3000).token_s == pytest.approx(15, rel=1e-3)


def test_the_cloud_that_goes_on_is_never_slower_than_streaming() -> None:
    """Up to the length of one pass over proposed tokens, at every round trip, rate and acceptance."""
    for rtt_s, bits_per_s, rate in product((0.0, 0.05, 0.3), (1e4, 1e5, 1e12), (0.0, 0.5, 0.9)):
        link = replace(LINK, rtt_s=rtt_s, bits_per_s=bits_per_s)
        streaming = ms(link, "cloud_goes_on", 0, rate, 1500)
        assert ms(link, "cloud_goes_on", 4, rate, 1500) <= 1.05 * streaming
    assert ms(replace(LINK, rtt_s=0.0), "cloud_goes_on", 1, 0.9, 1500) < 0.8 * 27


@pytest.mark.parametrize(("rtt_s", "expected_ms", "ratio"), [(0.1, 33.3, 3.8), (0.3, 63.3, 5.1)])
def test_pipelining_by_the_reference_model(rtt_s: float, expected_ms: float, ratio: float) -> None:
    """At acceptance 0.85, against another implementation of the same model, and against one request per token."""
    link = replace(LINK, rtt_s=rtt_s)
    pipelined = ms(link, "pipelined", 1, 0.85)
    assert pipelined == pytest.approx(expected_ms, rel=0.03)
    assert ms(link, "stop_and_wait", 0, 0.85, 500) / pipelined == pytest.approx(ratio, rel=0.03)
    assert pipelined < min(ms(link, "stop_and_wait", length, 0.85, 5000) for length in range(1, 17))


def test_bytes_are_those_of_the_frames() -> None:
    """And of acknowledgements: the device answers a verdict after 60 ms, too late for one to go along."""
    rounds = play_answer(LINK, "stop_and_wait", 4, ALWAYS, 100)
    assert (rounds.num_passes, rounds.num_proposed, rounds.num_accepted) == (20, 80, 80)
    assert rounds.up_bytes == 20 * (LINK.up_bytes + 4 * LINK.proposed_bytes) + 19 * ACK_BYTES
    assert rounds.down_bytes == 20 * (LINK.down_bytes + 4 * ID_BYTES)
    assert rounds.num_passes == 0.2 * rounds.num_tokens
    quick = play_answer(replace(LINK, draft_s=0.0099), "stop_and_wait", 4, ALWAYS, 100)
    assert quick.up_bytes == 20 * (LINK.up_bytes + 4 * LINK.proposed_bytes)


def test_a_streamed_answer_is_acknowledged() -> None:
    """By TCP for every second verdict, one each 27 ms, and in a frame of receipts for every fifth: after 108 ms."""
    streamed = play_answer(LINK, "cloud_goes_on", 0, ALWAYS, 1000)
    assert streamed.up_bytes / 1000 == pytest.approx(ACK_BYTES / 2 + LINK.up_bytes / 4, rel=0.1)


def test_verdicts_wait_for_a_slow_link_and_travel_together() -> None:
    """One of 92 bytes at 10 kbit/s takes 73.6 ms, longer than the pass that made it; asked for, none can wait."""
    slow = replace(LINK, bits_per_s=1e4)
    for rtt_s in (0.0, 0.1, 0.3):
        streamed = play_answer(replace(slow, rtt_s=rtt_s), "cloud_goes_on", 0, ALWAYS, 500)
        assert 1e3 * streamed.token_s == pytest.approx(27, rel=0.1)
        assert streamed.down_bytes < 500 * slow.down_bytes / 2, "two of them in a frame, and more"
    assert ms(slow, "stop_and_wait", 0, 0.5, 500) == pytest.approx(100 + 27 + 2 * 73.6)


def test_the_length_follows_the_link() -> None:
    """A round trip that grows from 20 to 300 ms: longer proposals, and the best rule beats a fixed one."""

    def link(now_s: float) -> Conditions:
        return replace(LINK, rtt_s=0.02 if now_s < 20 else 0.3)

    found = play_answer(link, "stop_and_wait", BestLength(), draw_accepted(0.85, 5), 1500)
    before = [length for at_s, length in found.lengths if 5 < at_s < 20]
    after = [length for at_s, length in found.lengths if at_s > 25]
    assert max(before) < min(after)
    fixed = play_answer(link, "stop_and_wait", 3, draw_accepted(0.85, 5), 1500)
    assert found.committed_s[-1] < fixed.committed_s[-1]
