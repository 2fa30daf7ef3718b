"""Rules against slow obvious sums: shares, target, drafts, Algorithm 1 and acceptance. Laws as a whole: tests/laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.aggregation.coupling import coupled_draw
from tandem.aggregation.distributions import Distribution
from tandem.aggregation.document_weights import (
    MIN_PROBABILITY,
    DocumentWeights,
    Evidence,
    log_evidence,
    log_weight,
)
from tandem.aggregation.rules import (
    DRAFT_RULES,
    PROPOSAL_RULES,
    GreedyRule,
    coupled_acceptance,
    draft_rule,
    draw,
    keep_probability,
    limit_shares,
    proposal_rule,
    residual,
    result_distribution,
    shares,
    target_distribution,
)
from tandem.errors import ConfigError, GenerationError, ProtocolError
from tandem.modes import reference_shaping
from tandem.topology import Party
from tests.distributions import from_dense

# ---- shares and target distribution (Eq. 4, Appendix A.1) ----------------------------------------------------

log_weights = st.floats(allow_nan=False, allow_infinity=False, width=64) | st.just(-math.inf)


@given(log_weights, log_weights)
def test_a1_shares_sum_to_one_and_swap_with_the_parties(device: float, cloud: float) -> None:
    eta_device, eta_cloud = shares(device, cloud)
    assert eta_device + eta_cloud == 1.0
    assert eta_device == 1.0 - eta_cloud
    assert shares(cloud, device) == (eta_cloud, eta_device)
    assert eta_device >= eta_cloud if device >= cloud else eta_device <= eta_cloud


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


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_log_weight_that_no_party_may_send_is_refused(bad: float) -> None:
    with pytest.raises(ProtocolError, match=r"^A log weight must be finite or -inf, got (nan|inf); restart"):
        shares(0.0, bad)


# ---- algorithm 1 piece by piece. Its distribution as a whole: tests/laws -------------------------------------

OWN = Distribution(np.array([0, 1, 2]), np.array([0.5, 0.25, 0.25]))


def test_residual_without_mass_keeps_the_draft() -> None:
    """Also when rounding leaves q^s(x) above q^o(x) and nothing above q^s elsewhere."""
    lower = Distribution(np.array([0, 1]), np.array([0.5 - 2**-54, 0.5]))
    upper = Distribution(np.array([0, 1]), np.array([0.5, 0.5]))
    assert residual(upper, lower) is None
    assert keep_probability(0, upper, lower, 1.0) < 1.0
    assert result_distribution(0, upper, lower, 1.0) == Distribution(np.array([0]), np.ones(1))
    assert residual(OWN, OWN) is None


@pytest.mark.parametrize(("u", "token"), [(2**-53, 2), (0.49, 2), (0.51, 7), (1 - 2**-53, 7)])
def test_draw_takes_the_quantile_and_never_a_token_of_probability_zero(u: float, token: int) -> None:
    distribution = Distribution(np.array([1, 2, 5, 7, 9]), np.array([0.0, 0.5, 0.0, 0.5, 0.0]))
    assert draw(distribution, u) == token


# ---- acceptance formulas against slow obvious sums. Against draws: tests/laws -----------------------------------

VOCAB = 8
weights = st.lists(st.integers(0, 9), min_size=VOCAB, max_size=VOCAB).filter(any)
dense_distributions = weights.map(lambda w: np.array(w) / sum(w))


def slow_coupled(q: np.ndarray, p: np.ndarray) -> float:
    alive = [i for i in range(q.size) if q[i] > 0 and p[i] > 0]
    return sum(1 / np.maximum(q / q[i], p / p[i]).sum() for i in alive)


@given(dense_distributions, dense_distributions, st.floats(0, 1))
def test_coupled_formula_equals_the_double_sum(a: np.ndarray, b: np.ndarray, eta_device: float) -> None:
    device, cloud = from_dense(a), from_dense(b)
    assert coupled_acceptance(device, cloud) == pytest.approx(slow_coupled(a, b), abs=1e-12)
    target = target_distribution(device, cloud, eta_device)
    expected = slow_coupled(a, target.dense(VOCAB)), slow_coupled(b, target.dense(VOCAB))
    found = coupled_acceptance(device, target), coupled_acceptance(cloud, target)
    assert found == pytest.approx(expected, abs=1e-12)


# ---- draft rules: the decision, its names and its errors -----------------------------------------------------

DEVICE = Distribution(np.array([1, 4, 70_000]), np.array([0.5, 0.25, 0.25]))
CLOUD = Distribution(np.array([1, 9]), np.array([0.25, 0.75]))


@pytest.mark.parametrize("name", DRAFT_RULES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_verifier_sees_the_very_drafts_of_the_drafters(name: str, temperature: float) -> None:
    rule = draft_rule(name, temperature)
    assert rule.name == name
    for step in range(50):
        decision = rule.verify(DEVICE, CLOUD, eta_device=0.5, seed=3, step=step)
        assert decision.device_token == rule.draft(DEVICE, seed=3, step=step, party=Party.DEVICE)
        assert decision.cloud_token == rule.draft(CLOUD, seed=3, step=step, party=Party.CLOUD)
        assert decision.device_accepted == (decision.device_token == decision.target)
        assert decision.cloud_accepted == (decision.cloud_token == decision.target)
        assert decision == rule.verify(DEVICE, CLOUD, eta_device=0.5, seed=3, step=step)


# ---- rules of proposals. Rejection as a whole: tests/laws ------------------------------------------------------


def test_at_temperature_zero_ties_go_to_the_lowest_id_whatever_was_proposed() -> None:
    tied = from_dense(np.array([0.2, 0.4, 0.4]))
    for name in PROPOSAL_RULES:
        rule = proposal_rule(name, 0.0)
        assert isinstance(rule, GreedyRule)
        assert rule.name == name
        assert rule.draft(tied, seed=1, step=0) == 1
        assert [rule.choose(tied, proposed, tied, seed=1, step=0) for proposed in (1, 2, None)] == [1, 1, 1]


def test_with_coupled_noise_a_proposal_changes_nothing() -> None:
    rule = proposal_rule("coupled", 1.0)
    for step in range(50):
        tokens = {rule.choose(CLOUD, proposed, seed=3, step=step) for proposed in (1, 9, None)}
        assert tokens == {coupled_draw(CLOUD, seed=3, step=step)}


def test_rules_by_name() -> None:
    assert [proposal_rule(name, 1.0).needs_drafts for name in PROPOSAL_RULES] == [False, True]
    with pytest.raises(
        ConfigError, match=r"^The proposal rule 'couplde' is unknown; did you mean coupled\?$"
    ):
        proposal_rule("couplde", 1.0)


# ---- a limit to what a party's vote counts ---------------------------------------------------------------------

LIMITED = [
    ((0.25, 0.75), (1.0, 0.75), (0.25, 0.75)),
    ((0.25, 0.75), (1.0, 0.5), (0.5, 0.5)),
    ((0.0, 1.0), (1.0, 0.25), (0.75, 0.25)),
    ((0.5, 0.5), (1.0, 1.0), (0.5, 0.5)),
    ((0.9, 0.1), (1.0, 0.5), (0.9, 0.1)),
    ((0.9, 0.1), (0.25, 0.25), (0.5, 0.5)),
    ((1.0,), (0.25,), (1.0,)),
    ((0.0, 0.0, 1.0), (1.0, 1.0, 0.5), (0.25, 0.25, 0.5)),
    ((0.125, 0.25, 0.625), (1.0, 0.25, 0.25), (0.5, 0.25, 0.25)),
    ((0.25, 0.25, 0.5), (0.25, 0.25, 0.25), (1 / 3, 1 / 3, 1 / 3)),
    ((0.125, 0.125, 0.25, 0.5), (1.0, 1.0, 0.3125, 0.3125), (0.1875, 0.1875, 0.3125, 0.3125)),
]
"""Shares, limits, and the shares within them; binary fractions, so to the bit. In the last but one example all are
above; in the last what the fourth gives away lifts the third above its limit."""


@pytest.mark.parametrize(("before", "most", "after"), LIMITED)
def test_no_share_is_above_its_limit(
    before: tuple[float, ...], most: tuple[float, ...], after: tuple[float, ...]
) -> None:
    assert limit_shares(before, most) == after
    assert tuple(reference_shaping.limit(before, most)) == after


@given(
    st.lists(st.floats(-700.0, 700.0) | st.just(-math.inf), min_size=1, max_size=6),
    st.floats(0.01, 1.0),
    st.booleans(),
)
def test_the_limit_is_that_of_the_reference_page_to_the_bit(
    log_weights: list[float], limit: float, has_home: bool
) -> None:
    """What is left has sum 1, keeps its order, and only where all would be above is anybody above."""
    before = shares(*log_weights)
    most = [limit] * len(before)
    if has_home:
        most[0] = 1.0
    after = limit_shares(before, most)
    assert after == tuple(reference_shaping.limit(before, most))
    assert sum(after) == pytest.approx(1.0, abs=1e-12)
    if len(after) == 2:
        assert sum(after) == 1.0
    if sum(most) >= 1.0:
        assert all(share <= bound + 1e-12 for share, bound in zip(after, most, strict=True))
    if limit == 1.0:
        assert after == before


RNG = np.random.default_rng(3)
TOKENS = [log_evidence(row.tolist()) for row in RNG.uniform(0.01, 1.0, size=(12, 3))]
"""What each of 12 tokens says of 3 rows."""


def learn_all(weights: DocumentWeights, tokens: list[Evidence] = TOKENS) -> Evidence:
    evidence = weights.start
    for token in tokens:
        evidence = weights.learn(evidence, token)
    return evidence


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9, 1.0])
def test_evidence_is_the_sum_of_what_tokens_say_each_older_one_counting_less(memory: float) -> None:
    """e_d(t) = sum over i < t of memory^(t-1-i) log p_d(x_i)."""
    ages = memory ** np.arange(len(TOKENS))[::-1]
    expected = ages @ np.array(TOKENS)
    learned = learn_all(DocumentWeights((0.0, 1.0, -2.0), 1.0, memory))
    np.testing.assert_allclose(learned, expected, rtol=1e-13)


def test_the_log_weight_is_the_prior_and_the_evidence() -> None:
    weights = DocumentWeights((0.5, -1.0), 0.25, 0.5)
    assert weights.start == (0.0, 0.0)
    assert weights.weigh(weights.start) == (0.5, -1.0)
    first = weights.learn(weights.start, (-1.0, -2.0))
    assert first == (-1.0, -2.0)
    second = weights.learn(first, (-4.0, 0.0))
    assert second == (-4.5, -1.0)
    assert weights.weigh(second) == (0.5 - 0.25 * 4.5, -1.0 - 0.25)


def test_no_single_token_rules_a_row_out() -> None:
    assert log_evidence([0.0, MIN_PROBABILITY / 2, MIN_PROBABILITY, 1.0]) == (
        math.log(MIN_PROBABILITY),
        math.log(MIN_PROBABILITY),
        math.log(MIN_PROBABILITY),
        0.0,
    )


def test_log_weight_is_log_sum_exp() -> None:
    assert log_weight([]) == -math.inf
    assert log_weight([0.7]) == 0.7
    assert log_weight([-math.inf]) == -math.inf
    assert log_weight([-math.inf, -math.inf]) == -math.inf
    assert log_weight([-math.inf, 2.0]) == 2.0
    assert log_weight([-2000.0, 5.0]) == 5.0
    assert math.isclose(
        log_weight([1.0, 2.0, -1.0]), math.log(math.e + math.e**2 + 1 / math.e), rel_tol=1e-15
    )
    assert math.isclose(log_weight([1000.0, 1000.0]), 1000 + math.log(2))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_weight_that_is_no_number_below_infinity_is_one_sentence(bad: float) -> None:
    with pytest.raises(
        GenerationError,
        match=rf"^The log weight of a document .*they are \[{bad}, 1.0\]; check the scoring model\.$",
    ):
        log_weight([bad, 1.0])
