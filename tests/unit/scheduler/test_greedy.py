"""DRAGON's greedy rule: Eq. (8) is the difference of Eq. (7), Eq. (9) its ratio, and a choice follows the gain."""

from __future__ import annotations

from itertools import product

import pytest

from tandem.scheduler import Situation, choose, delta_z, speedup, token_s
from tandem.topology import Party

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
