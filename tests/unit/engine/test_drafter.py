"""From logits to drafts: rows are mixed, shifted by penalties and biases, and a token is drawn from what is sent."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tandem.aggregation.distributions import restrict
from tandem.aggregation.rules import Step, draft_rule
from tandem.codecs import TopP
from tandem.codecs.votes import read_named_token
from tandem.config.schema import SamplingParams
from tandem.engine import drafter as module
from tandem.engine.drafter import (
    Drafter,
    DraftPlace,
    TokenDrafter,
    TokenVoter,
    mix_rows,
    row_probabilities,
    weigh_rows,
)
from tandem.engine.shaping import Shaper
from tandem.errors import GenerationError
from tandem.modes.reference_shaping import shift
from tandem.topology import PARTIES, Party

CODEC = TopP(0.95)
WEIGHTS = (0.3, -1.0)
OPTIONS = [{}, {"top_k": 5}, {"min_p": 0.2}, {"top_k": 4, "min_p": 0.3}]
Floats = NDArray[np.float64]


def logits_of(seed: int, vocab: int = 24) -> torch.Tensor:
    return 2 * torch.randn(2, vocab, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rule", ["coupled", "algorithm1"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("party", PARTIES)
def test_without_options_it_is_mix_encode_decode_draw(rule: str, temperature: float, party: Party) -> None:
    drafter = Drafter(CODEC, SamplingParams(temperature=temperature), rule)
    for seed in range(20):
        logits = logits_of(seed)
        dense = mix_rows(row_probabilities(logits, temperature), WEIGHTS)
        payload = CODEC.encode(dense)
        token = draft_rule(rule, temperature).draft(CODEC.decode(payload), seed=seed, step=3, party=party)
        draft = drafter.draft(logits, WEIGHTS, DraftPlace(seed=seed, step=3, party=party))
        assert (draft.token, draft.payload) == (token, payload)
        assert np.array_equal(drafter.dense, dense)


def sent_distribution(drafter: Drafter, logits: torch.Tensor) -> Floats:
    """What the peer decodes, [vocab]."""
    distribution = CODEC.decode(
        drafter.draft(logits, WEIGHTS, DraftPlace(seed=0, step=0, party=Party.DEVICE)).payload
    )
    dense = np.zeros(logits.shape[1])
    dense[distribution.ids] = distribution.probabilities
    return dense


def check_distribution(options: dict[str, float]) -> None:
    """The restricted distribution, through the codec, is what is sent; what is dropped is never sent at all."""
    sampling = SamplingParams(temperature=0.9, **options)  # type: ignore[arg-type]
    for seed in range(20):
        logits = logits_of(seed)
        exact = restrict(mix_rows(row_probabilities(logits, 0.9), WEIGHTS), sampling)
        sent = sent_distribution(Drafter(CODEC, sampling, "coupled"), logits)
        assert not sent[exact == 0].any()
        nucleus = np.where(sent > 0, exact, 0.0)
        np.testing.assert_allclose(sent, nucleus / nucleus.sum(), atol=1e-4)
        assert nucleus.sum() >= 0.95


@pytest.mark.parametrize("options", OPTIONS)
def test_the_bytes_hold_the_restricted_distribution(options: dict[str, float]) -> None:
    check_distribution(options)


@pytest.mark.parametrize("options", OPTIONS[1:])
def test_a_drafter_that_forgets_to_restrict_fails(
    options: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "restrict", lambda probabilities, sampling: probabilities)
    with pytest.raises(AssertionError):
        check_distribution(options)


@pytest.mark.parametrize("payload", [b"", b"\xff" * 9, CODEC.encode(np.eye(24)[5])])
def test_a_proposal_that_cannot_be_read_is_counted_and_counts_as_none(payload: bytes) -> None:
    """No bytes, other bytes, and a distribution that excludes the proposed token."""
    voters = [
        TokenVoter(CODEC, SamplingParams(temperature=1.0), "rejection", 24, sends_drafts=True)
        for _ in range(2)
    ]
    proposals = (Step(3, 7, payload), None)
    votes = [
        voter.draft(logits_of(1), WEIGHTS, DraftPlace(seed=2, step=3, party=Party.CLOUD, proposed=proposed))
        for voter, proposed in zip(voters, proposals, strict=True)
    ]
    assert [voter.num_malformed for voter in voters] == [1, 0]
    assert votes[0].token == votes[1].token


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_voter_names_its_whole_distribution_where_it_is_asked(temperature: float) -> None:
    """To the bit, and with the token that it gives without being asked."""
    sampling = SamplingParams(temperature=temperature, top_k=9)
    for kind in (TokenVoter, TokenDrafter):
        silent, asked = (
            kind(CODEC, sampling, "coupled", 24, sends_drafts=False, num_named=number)
            for number in (None, 24)
        )
        for seed in range(20):
            one, other = (
                each.draft(logits_of(seed), WEIGHTS, DraftPlace(seed=seed, step=3, party=Party.CLOUD))
                for each in (silent, asked)
            )
            assert read_named_token(one.payload, 24) == (one.token, None)
            token, known = read_named_token(other.payload, 24)
            assert token == one.token == other.token
            assert known is not None
            top = dict(zip(known.top_ids, known.top_logprobs, strict=True))
            assert asked.dense is not None
            assert top == {place: math.log(p) for place, p in enumerate(asked.dense) if p}
            assert known.logprob == top[token]
            assert len(top) == 9


# ---- The party's distribution and row weights against slow oracles in exact or plain arithmetic ------


def slow_law(logits: np.ndarray, log_weights: list[float], temperature: float) -> list[float]:
    """Oracle: Eq. (1) and (2) by the book, one number at a time."""
    shares = [math.exp(weight) for weight in log_weights]
    distribution = [0.0] * logits.shape[1]
    for share, row in zip(shares, logits, strict=True):
        masses = [math.exp(float(value) / temperature) for value in row]
        for token, mass in enumerate(masses):
            distribution[token] += share / sum(shares) * mass / sum(masses)
    return distribution


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_eq1_eq2_party_law(temperature: float) -> None:
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(4, 31)).astype(np.float32) * 3
    weights = [0.1, -2.0, 3.0, 1.0]
    distribution = mix_rows(row_probabilities(torch.tensor(logits), temperature), weights)
    assert distribution.dtype == np.float64
    np.testing.assert_allclose(distribution, slow_law(logits, weights, temperature), rtol=2e-5)
    assert abs(distribution.sum() - 1) < 1e-12


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_the_bits_are_those_of_one_operation_after_the_other(rows: int, temperature: float) -> None:
    """Weighted rows are added in float64 in their order, then divided by their sum: the definition of a vote's bits."""
    logits = 5.0 * torch.randn(rows, 4_000, generator=torch.Generator().manual_seed(rows))
    weights = [0.3 * row for row in range(rows)]
    shifted = (logits - logits.amax(dim=-1, keepdim=True)) / temperature
    expected = np.zeros(4_000)
    for weight, row in zip(weigh_rows(weights), torch.softmax(shifted, dim=-1).numpy(), strict=True):
        expected += weight * row.astype(np.float64)
    assert (
        mix_rows(row_probabilities(logits, temperature), weights).tobytes()
        == (expected / expected.sum()).tobytes()
    )


def test_extreme_values_stay_finite() -> None:
    logits = torch.tensor([[1e4, 1e4 - 1, -1e4], [float("-inf"), 0.0, 0.0]])
    for temperature in (1e-30, 1.0, 1e6):
        distribution = mix_rows(row_probabilities(logits, temperature), [1000.0, -1000.0])
        assert np.isfinite(distribution).all()
        assert abs(distribution.sum() - 1) < 1e-12
    assert mix_rows(row_probabilities(logits, 1e-30), [1000.0, -1000.0])[0] == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("kind", [Drafter, TokenVoter, TokenDrafter])
@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=1.0, top_k=2, min_p=0.1)])
def test_logits_that_are_no_numbers_are_one_sentence_in_every_mode(
    bad: float, kind: type[Drafter], sampling: SamplingParams
) -> None:
    more: Any = {} if kind is Drafter else {"sends_drafts": False}
    drafter = kind(CODEC, sampling, "coupled", 3, **more)
    with pytest.raises(
        GenerationError, match=r"must be finite, .* got values from nan to nan; check the model"
    ):
        drafter.draft(torch.tensor([[0.0, bad, 1.0]]), [0.0], DraftPlace(seed=0, step=0, party=Party.DEVICE))


def check_shift(
    shape: Callable[[Floats, Sequence[int]], Floats], sampling: SamplingParams, biases: dict[int, float]
) -> None:
    """Against the definition on the reference page."""
    draw = random.Random(5)
    for size in (1, 2, 9):
        weights = [draw.choice([0.0, 1.0, 2.0, 5.0]) for _ in range(size)]
        weights[0] += 1
        dense = np.array(weights) / sum(weights)
        prefix = [draw.randrange(size) for _ in range(6)]
        expected = shift(
            dense.tolist(), prefix, biases, sampling.presence_penalty, sampling.frequency_penalty,
            sampling.temperature or 1.0,
        )  # fmt: skip
        with np.errstate(divide="ignore"):
            shaped = shape(np.log(dense), prefix)
        np.testing.assert_allclose(shaped, expected, rtol=1e-12, atol=1e-300)


SAMPLINGS = [
    SamplingParams(temperature=temperature, presence_penalty=presence, frequency_penalty=frequency)
    for temperature in (0.0, 0.5, 1.0)
    for presence, frequency in ((0.0, 0.0), (2.0, 0.0), (0.0, -1.5), (0.7, 0.3))
]


@pytest.mark.parametrize("biases", [{}, {0: -100.0}, {1: 3.0, 8: -2.0, 500: 100.0}])
def test_logits_are_shifted_as_the_reference_page_says(biases: dict[int, float]) -> None:
    for sampling in SAMPLINGS:
        check_shift(Shaper(sampling, biases).shape, sampling, biases)


class CountsOnce(Shaper):
    """A mutant that takes the frequency penalty once, however often a token came."""

    def shape(self, logits: Floats, prefix: Sequence[int]) -> Floats:
        return super().shape(logits, list(dict.fromkeys(prefix)))


class IgnoresTheTemperature(Shaper):
    """A mutant that shifts probabilities as if they were taken at temperature 1."""

    def __init__(self, sampling: SamplingParams, biases: dict[int, float]) -> None:
        super().__init__(sampling, biases)
        self._temperature = 1.0


@pytest.mark.parametrize("mutant", [CountsOnce, IgnoresTheTemperature])
def test_mutants_are_found(mutant: Any) -> None:
    def check() -> None:
        for sampling in SAMPLINGS:
            check_shift(mutant(sampling, {1: 3.0}).shape, sampling, {1: 3.0})

    with pytest.raises(AssertionError):
        check()


def test_a_tiny_temperature_and_a_great_bias_leave_a_distribution() -> None:
    logits = np.array([-np.inf, np.log(1e-300), 0.0])
    for temperature in (1e-3, 1e-37, 1e-320):
        shaped = Shaper(SamplingParams(temperature=temperature), {1: 100.0, 0: 100.0}).shape(logits, ())
        assert shaped.tolist() == [0.0, 1.0, 0.0]


class Lowest:
    """A grammar that allows the least likely tokens alone."""

    def __init__(self, is_allowed: NDArray[np.bool_]) -> None:
        self._bits = np.packbits(is_allowed, bitorder="little").tobytes()

    def allowed(self, prefix: Sequence[int]) -> bytes:
        return self._bits


class ShapesProbabilities(Drafter):
    """A mutant that shapes what float32 has left of the probabilities."""

    def _restrict(
        self, mixed: Floats, logits: Any, log_weights: Sequence[float], prefix: Sequence[int]
    ) -> Floats:
        with np.errstate(divide="ignore"):
            return self._shaper.shape(np.log(mixed), prefix)  # type: ignore[union-attr]


def likeliest_when_cold(drafter: type[Drafter], asked: str) -> list[tuple[int, int]]:
    """The likeliest token at temperature 0, and at 0.01, where all that is asked for is improbable."""
    draw, found = np.random.default_rng(11), []
    for _ in range(20):
        logits = draw.normal(0, 4, (1, 50)).astype(np.float32)
        is_allowed = np.argsort(logits[0]).argsort() < 12
        biases = dict.fromkeys(np.flatnonzero(is_allowed).tolist(), 100.0) if asked == "biases" else {}
        penalty = -2.0 if asked == "penalties" else 0.0
        prefix = np.flatnonzero(is_allowed).tolist() * 50 if asked == "penalties" else []
        grammar: Any = Lowest(is_allowed) if asked == "grammar" else None
        tokens = []
        for temperature in (0.0, 0.01):
            sampling = SamplingParams(temperature=temperature, frequency_penalty=penalty)
            shaper = Shaper(sampling, biases, grammar)
            drawn = drafter(TopP(), sampling, "coupled", 50, shaper=shaper)
            dense = drawn.distribution(logits, [0.0], prefix)
            assert is_allowed[dense.argmax()]
            tokens.append(int(dense.argmax()))
        found.append((tokens[0], tokens[1]))
    return found


@pytest.mark.parametrize("asked", ["grammar", "biases", "penalties"])
def test_near_temperature_0_the_likeliest_token_that_is_asked_for_is_drawn(asked: str) -> None:
    def check(drafter: type[Drafter]) -> None:
        assert [greedy for greedy, _ in likeliest_when_cold(drafter, asked)] == [
            cold for _, cold in likeliest_when_cold(drafter, asked)
        ]

    check(Drafter)
    with pytest.raises((AssertionError, GenerationError)):
        check(ShapesProbabilities)
