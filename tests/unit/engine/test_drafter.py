"""A draft follows exactly the distribution that its bytes say, restricted before the codec."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tandem.aggregation.distributions import restrict
from tandem.aggregation.rules import Proposed, draft_rule
from tandem.codecs import TopP
from tandem.codecs.token import read_named_token
from tandem.config.sampling import SamplingParams
from tandem.engine import drafter as module
from tandem.engine.drafter import Drafter, TokenDrafter, TokenVoter, mix_rows
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
        dense = mix_rows(logits, WEIGHTS, temperature)
        payload = CODEC.encode(dense)
        token = draft_rule(rule, temperature).draft(CODEC.decode(payload), seed=seed, step=3, party=party)
        draft = drafter.draft(logits, WEIGHTS, seed=seed, step=3, party=party)
        assert (draft.token, draft.payload) == (token, payload)
        assert np.array_equal(draft.dense, dense)


def sent_distribution(drafter: Drafter, logits: torch.Tensor) -> Floats:
    """What the peer decodes, [vocab]."""
    distribution = CODEC.decode(drafter.encode(logits, WEIGHTS)[0])
    dense = np.zeros(logits.shape[1])
    dense[distribution.ids] = distribution.probabilities
    return dense


def check_distribution(options: dict[str, float], apply: Callable[[Floats, SamplingParams], Floats]) -> None:
    """The restricted distribution, through the codec, is what is sent; what is dropped is never sent at all."""
    sampling = SamplingParams(temperature=0.9, **options)  # type: ignore[arg-type]
    for seed in range(20):
        logits = logits_of(seed)
        exact = apply(mix_rows(logits, WEIGHTS, 0.9), sampling)
        sent = sent_distribution(Drafter(CODEC, sampling, "coupled"), logits)
        assert not sent[exact == 0].any()
        nucleus = np.where(sent > 0, exact, 0.0)
        np.testing.assert_allclose(sent, nucleus / nucleus.sum(), atol=1e-4)
        assert nucleus.sum() >= 0.95


@pytest.mark.parametrize("options", OPTIONS)
def test_the_bytes_hold_the_restricted_distribution(options: dict[str, float]) -> None:
    check_distribution(options, restrict)


@pytest.mark.parametrize("options", OPTIONS[1:])
def test_a_drafter_that_forgets_to_restrict_fails(
    options: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "restrict", lambda probabilities, sampling: probabilities)
    with pytest.raises(AssertionError):
        check_distribution(options, restrict)


@pytest.mark.parametrize("options", OPTIONS)
def test_drafts_follow_the_decoded_distribution(options: dict[str, float]) -> None:
    """Chi-square over 4,000 independent seeds; a true drafter fails with probability below 1e-9."""
    drafter = Drafter(CODEC, SamplingParams(temperature=0.9, **options), "coupled")  # type: ignore[arg-type]
    logits, num_draws = logits_of(1), 4000
    payload, _ = drafter.encode(logits, WEIGHTS)
    wanted = num_draws * sent_distribution(drafter, logits)
    drawn = [drafter.draw(payload, seed=seed, step=0, party=Party.DEVICE) for seed in range(num_draws)]
    counts = np.bincount(drawn, minlength=wanted.size)
    assert not counts[wanted == 0].any()
    likely = wanted >= 5
    freedom = int(likely.sum())
    statistic = float(((counts - wanted)[likely] ** 2 / wanted[likely]).sum())
    assert statistic < freedom + 2 * math.sqrt(21 * freedom) + 42  # Laurent and Massart 2000, x = 21


@pytest.mark.parametrize("payload", [b"", b"\xff" * 9, CODEC.encode(np.eye(24)[5])])
def test_a_proposal_that_cannot_be_read_is_counted_and_counts_as_none(payload: bytes) -> None:
    """No bytes, other bytes, and a distribution that excludes the proposed token."""
    voters = [
        TokenVoter(CODEC, SamplingParams(temperature=1.0), "rejection", 24, sends_drafts=True)
        for _ in range(2)
    ]
    proposals = (Proposed(7, payload), None)
    votes = [
        voter.draft(logits_of(1), WEIGHTS, seed=2, step=3, party=Party.CLOUD, proposed=proposed)
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
            kind(CODEC, sampling, "coupled", 24, sends_drafts=False, num_logprobs=number)
            for number in (None, 24)
        )
        for seed in range(20):
            one, other = (
                each.draft(logits_of(seed), WEIGHTS, seed=seed, step=3, party=Party.CLOUD)
                for each in (silent, asked)
            )
            assert read_named_token(one.payload, 24) == (one.token, None)
            token, known = read_named_token(other.payload, 24)
            assert token == one.token == other.token
            assert known is not None
            assert dict(known.top) == {place: math.log(p) for place, p in enumerate(other.dense) if p}
            assert known.token == dict(known.top)[token]
            assert len(known.top) == 9
