"""Algorithm 1 commits exactly the mixture (Appendix A.2), through the codec, with no sampling in the test.

Both drafts and the decision are enumerated over a small vocabulary, so nothing here has a false alarm: a
correct implementation agrees to 1e-12, and each mutant is off by more than 1e-3 somewhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tandem.aggregation import rules
from tandem.aggregation import rules as speculative
from tandem.aggregation.coupling import Purpose
from tandem.aggregation.distributions import Distribution
from tandem.aggregation.rules import speculative_acceptance, target_distribution
from tandem.codecs.top_p import TopP
from tandem.plugins.papers.codecs import TopK
from tandem.topology import Party
from tests.distributions import from_dense

VOCAB = 7
ETAS = (0.0, 0.2, 0.5, 0.9, 1.0)
CODECS = (TopP(0.8), TopP(1.0), TopK(3, "residual"))
"""The last spreads the rest over all other tokens."""
DraftDistribution = Callable[[np.ndarray, Distribution], Distribution]


def pairs() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Dense distributions of both parties, [VOCAB] each: random, overlapping in part, equal, disjoint, with ties."""
    rng = np.random.default_rng(11)
    for concentration in (0.2, 1.0, 10.0):
        yield tuple(rng.dirichlet(np.full(VOCAB, concentration), size=2))
    flat = np.full(VOCAB, 1 / VOCAB)
    yield flat, flat
    yield np.array([0.5, 0.5, 0, 0, 0, 0, 0]), np.array([0, 0, 0.25, 0.25, 0.5, 0, 0])
    yield np.array([0.4, 0.4, 0.1, 0.1, 0, 0, 0]), np.array([0.1, 0.1, 0.4, 0.4, 0, 0, 0])


def check_committed_is_the_mixture(drawn: DraftDistribution = lambda dense, decoded: decoded) -> None:
    """Exactly. drawn: what a party draws from, by its distribution [VOCAB] and what is sent of it."""
    for (dense_device, dense_cloud), eta, codec in itertools.product(pairs(), ETAS, CODECS):
        device, cloud = (codec.decode(codec.encode(dense), VOCAB) for dense in (dense_device, dense_cloud))
        q, r = drawn(dense_device, device).dense(VOCAB), drawn(dense_cloud, cloud).dense(VOCAB)
        law = np.zeros(VOCAB)
        for a, b in itertools.product(np.flatnonzero(q).tolist(), np.flatnonzero(r).tolist()):
            law += q[a] * r[b] * speculative.target_given_drafts(a, b, device, cloud, eta).dense(VOCAB)
        mixture = eta * device.dense(VOCAB) + (1 - eta) * cloud.dense(VOCAB)
        target = target_distribution(device, cloud, eta).dense(VOCAB)
        np.testing.assert_allclose(law, mixture, rtol=0, atol=1e-12)
        np.testing.assert_allclose(target, mixture, rtol=0, atol=1e-15)


def test_a2_committed_law_is_the_mixture() -> None:
    check_committed_is_the_mixture()


def test_a2_mutant_truncated_after_sampling() -> None:
    """Section 12: a draft outside the sent support has q = 0 and is always accepted."""
    with pytest.raises(AssertionError):
        check_committed_is_the_mixture(lambda dense, decoded: from_dense(dense))


keep, residual = speculative.keep_probability, speculative.residual
MUTANTS = {
    "without share": ("keep_probability", lambda token, own, other, share: keep(token, own, other, 1.0)),
    "own share": ("keep_probability", lambda token, own, other, share: keep(token, own, other, 1.0 - share)),
    "upside down": ("keep_probability", lambda token, own, other, share: keep(token, other, own, share)),
    "residual swapped": ("residual", lambda own, other: residual(other, own)),
    "residual is the other distribution": ("residual", lambda own, other: other),
}


@pytest.mark.parametrize(("name", "mutant"), MUTANTS.values(), ids=MUTANTS.keys())
def test_a2_mutants(name: str, mutant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculative, name, mutant)
    with pytest.raises(AssertionError):
        check_committed_is_the_mixture()


def check_eq5_is_the_exact_acceptance(formula: Callable[[Distribution, Distribution, float], float]) -> None:
    for (dense_device, dense_cloud), eta in itertools.product(pairs(), ETAS):
        device, cloud = from_dense(dense_device), from_dense(dense_cloud)
        exact = 0.0
        for a, b in itertools.product(device.ids.tolist(), cloud.ids.tolist()):
            distribution = speculative.target_given_drafts(a, b, device, cloud, eta)
            exact += device.probability(a) * cloud.probability(b) * distribution.probability(a)
        assert formula(device, cloud, eta) == pytest.approx(exact, abs=1e-12)


def test_eq5_is_the_exact_acceptance() -> None:
    check_eq5_is_the_exact_acceptance(speculative_acceptance)


def test_eq5_mutant_share_of_the_wrong_party() -> None:
    with pytest.raises(AssertionError):
        check_eq5_is_the_exact_acceptance(
            lambda own, other, share: speculative_acceptance(own, other, 1 - share)
        )


def test_eq5_mutant_one_result_always_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Always taking the device's result commits the right law but moves acceptance from one party to the other."""
    monkeypatch.setattr(
        speculative,
        "target_given_drafts",
        lambda a, b, device, cloud, eta: speculative.result_distribution(a, device, cloud, 1 - eta),
    )
    check_committed_is_the_mixture()
    with pytest.raises(AssertionError):
        check_eq5_is_the_exact_acceptance(speculative_acceptance)


def quantiles(distribution: Distribution) -> list[tuple[float, float]]:
    """One uniform number inside each token's stretch of the unit interval, with its length."""
    ends = np.cumsum(distribution.probabilities)
    return [
        (float(end - q / 2), float(q))
        for end, q in zip(ends, distribution.probabilities, strict=True)
        if q > 0
    ]


def test_a2_verify_commits_the_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same enumeration through `verify` itself, its three uniform numbers scripted."""
    script: dict[Purpose, float] = {}
    monkeypatch.setattr(rules, "uniform", lambda seed, purpose, step: script[purpose])
    rule, eta = rules.Algorithm1(), 0.3
    for dense_device, dense_cloud in pairs():
        device, cloud = from_dense(dense_device), from_dense(dense_cloud)
        total = np.zeros(VOCAB)
        for (u, q_a), (v, q_b) in itertools.product(quantiles(device), quantiles(cloud)):
            script[Purpose.DRAFT_DEVICE], script[Purpose.DRAFT_CLOUD] = u, v
            a = rule.draft(device, seed=0, step=0, party=Party.DEVICE)
            b = rule.draft(cloud, seed=0, step=0, party=Party.CLOUD)
            decision_law = speculative.target_given_drafts(a, b, device, cloud, eta)
            for w, mass in quantiles(decision_law):
                script[Purpose.DECISION] = w
                decision = rule.verify(device, cloud, eta_device=eta, seed=0, step=0)
                assert (decision.device_token, decision.cloud_token) == (a, b)
                total[decision.target] += q_a * q_b * mass
        np.testing.assert_allclose(total, eta * dense_device + (1 - eta) * dense_cloud, rtol=0, atol=1e-12)
