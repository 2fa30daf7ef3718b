"""Shares and target distribution (Eq. 4, Appendix A.1)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.aggregation.distributions import Distribution
from tandem.aggregation.rules import shares, target_distribution
from tandem.errors import ProtocolError

log_weights = st.floats(allow_nan=False, allow_infinity=False, width=64) | st.just(-math.inf)


@given(log_weights, log_weights)
def test_a1_shares_sum_to_one_and_swap_with_the_parties(device: float, cloud: float) -> None:
    eta_device, eta_cloud = shares(device, cloud)
    assert eta_device + eta_cloud == 1.0
    assert eta_device == 1.0 - eta_cloud
    assert shares(cloud, device) == (eta_cloud, eta_device)
    assert eta_device >= eta_cloud if device >= cloud else eta_device <= eta_cloud


@given(st.floats(-30, 30), st.floats(-30, 30))
def test_a1_shares_are_the_ratio_of_the_weights(device: float, cloud: float) -> None:
    expected = math.exp(device) / (math.exp(device) + math.exp(cloud))
    assert shares(device, cloud)[0] == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    ("device", "cloud", "expected"),
    [
        (-math.inf, -math.inf, (0.5, 0.5)),
        (-math.inf, -1e6, (0.0, 1.0)),
        (1e6, -math.inf, (1.0, 0.0)),
        (1e308, -1e308, (1.0, 0.0)),
        (2000.0, 2000.0, (0.5, 0.5)),
    ],
)
def test_a1_extremes(device: float, cloud: float, expected: tuple[float, float]) -> None:
    assert shares(device, cloud) == expected


@given(st.lists(st.floats(-30, 30) | st.just(-math.inf), min_size=1, max_size=8))
def test_a1_shares_of_many_are_the_ratio_of_the_weights(many: list[float]) -> None:
    """Also of one and of two; without any weight all count the same."""
    weights = [math.exp(log_weight) for log_weight in many]
    total = sum(weights)
    expected = [weight / total for weight in weights] if total else [1 / len(many)] * len(many)
    assert shares(*many) == pytest.approx(expected, abs=1e-15)
    assert sum(shares(*many)) == pytest.approx(1.0, abs=1e-15)


def test_a1_a_party_that_leaves_leaves_the_others_in_their_proportion() -> None:
    before, after = shares(0.3, -0.2, 1.5), shares(0.3, 1.5)
    assert after[0] / after[1] == pytest.approx(before[0] / before[2], rel=1e-14)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_log_weight_that_no_party_may_send_is_refused(bad: float) -> None:
    with pytest.raises(ProtocolError, match=r"^A log weight must be finite or -inf, got (nan|inf); restart"):
        shares(0.0, bad)


def test_eq4_target_distribution() -> None:
    device = Distribution(np.array([1, 4]), np.array([0.5, 0.5]))
    cloud = Distribution(np.array([4, 9]), np.array([0.25, 0.75]))
    target = target_distribution(device, cloud, 0.25)
    assert target == Distribution(np.array([1, 4, 9]), np.array([0.125, 0.3125, 0.5625]))
    assert target_distribution(cloud, device, 0.75) == target
