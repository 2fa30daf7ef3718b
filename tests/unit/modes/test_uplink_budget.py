"""The uplink budget of a proposal: no frame holds more bits, and every round commits a token, with or without a draft.

Exact: under `rejection` the committed tokens follow the target whatever the budget, by enumeration of the drafts.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.aggregation.distributions import Distribution
from tandem.aggregation.rules import Step, acceptance, residual
from tandem.messages import LinkFrame, Local, Vote, encode
from tandem.modes import SessionSpec
from tandem.modes.speculative import UplinkBudget
from tandem.protocol.decoding import DraftingSession, Forward
from tandem.protocol.routes import Routes, Send
from tandem.topology import Party
from tandem_lab.simulation.specs import make_spec
from tests.unit.protocol.talk import decided

NUM_TOKENS = 40
VOCAB = 50_257
PACINGS = ("stop_and_wait", "pipelined", "cloud_goes_on")


def spec(**changes: Any) -> SessionSpec:
    values = {"mode": "speculative", "pacing": "stop_and_wait", "vocab_size": VOCAB, "temperature": 1.0}
    return make_spec(**{**values, "device_documents": 0, "max_new_tokens": NUM_TOKENS, **changes})


def begin(of: SessionSpec) -> tuple[DraftingSession, list[Send]]:
    """A drafter, and what it sends before it has drafted."""
    made = DraftingSession(of, Party.DEVICE)
    made.begin()
    return made, made.finish_prefill(11, ())


def proposals(sends: Sequence[Send]) -> list[Vote]:
    return [send.message.body for send in sends if isinstance(send.message, Local)]


def bits_on_the_link(of: SessionSpec, proposal: Vote) -> int:
    """What its tokens and distributions add to the frame."""
    public = Routes(of, Party.DEVICE).make_public(proposal)
    header = {"session": 1, "view": 0, "committed": 0, "committed_digest": bytes(8)}
    times = {"stamp": 1, "echo": 0, "held_us": 0}
    bodies = public, replace(public, tokens=(), payloads=())
    sizes = [len(encode(LinkFrame(**header, **times, body=body))) for body in bodies]  # type: ignore[arg-type]
    return 8 * (sizes[0] - sizes[1])


def play(of: SessionSpec, size: Callable[[int], int]) -> list[Vote]:
    """All proposals of a drafter that is always right. size: bytes of the distribution of a step."""
    made, sends = begin(of)
    seen, num_committed = proposals(sends), 0
    while num_committed < NUM_TOKENS:
        job = made.next_job()
        if isinstance(job, Forward):
            sends = made.finish(job, [Step(job.step, token_at(job.step), bytes(size(job.step)), 5)])
        else:
            sends = made.receive(
                decided(num_committed, token_at(num_committed), is_last=num_committed == NUM_TOKENS - 1)
            )
            num_committed += 1
        seen += proposals(sends)
    return seen


def token_at(step: int) -> int:
    """Small and large ids by turns."""
    return random.Random(f"token {step}").choice([3, 40, 200, 9_000, 20_000, VOCAB - 1])


def size_at(step: int) -> int:
    """Of distributions, in bytes: one token or many."""
    return random.Random(f"size {step}").choice([1, 20, 33, 130, 400])


def within_budget(draft_rule: str, budget: int, pacing: str) -> bool:
    """Whether all proposals are, and there is some that holds a token, if one has room."""
    kept = []
    for max_proposal in (1, 4, 16):
        of = spec(draft_rule=draft_rule, pacing=pacing, uplink_budget_bits=budget, max_proposal=max_proposal)
        seen = play(of, size_at)
        assert any(each.tokens for each in seen) or budget < 100
        kept += [bits_on_the_link(of, each) <= budget for each in seen]
    return all(kept)


@pytest.mark.parametrize("pacing", PACINGS)
@pytest.mark.parametrize("draft_rule", ["coupled", "rejection"])
def test_no_proposal_exceeds_the_budget(draft_rule: str, pacing: str) -> None:
    """That every answer is complete all the same, and right, is in `lab/simulation/test_chain`."""
    for budget in (1, 23, 24, 100, 300, 1200, 5000):
        assert within_budget(draft_rule, budget, pacing)


def test_mutant_that_sends_one_draft_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    count = UplinkBudget.count_fitting
    monkeypatch.setattr(UplinkBudget, "count_fitting", lambda self, payloads: max(1, count(self, payloads)))
    assert not within_budget("rejection", 100, "pipelined")


def test_mutant_that_counts_ids_as_the_papers_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at all: their distributions name the token."""

    def count(self: UplinkBudget, payloads: Sequence[bytes]) -> int:
        return sum(8 * size <= 300 for size in itertools.accumulate(len(each) + 1 for each in payloads))

    monkeypatch.setattr(UplinkBudget, "count_fitting", count)
    assert not within_budget("rejection", 300, "stop_and_wait")


def lengths(of: SessionSpec, size: int = 34) -> set[int]:
    """Of its proposals, if all distributions have one size."""
    seen = play(of, lambda step: size)
    return {
        len(proposal.tokens) for proposal in seen if proposal.step + len(proposal.tokens) < NUM_TOKENS - 1
    }


def test_as_many_tokens_as_fit() -> None:
    """The paper's budget of 5,000 bits, and its distributions of 268 and 857 bits: 18 and 5 tokens without the ids."""
    by_rejection = {"draft_rule": "rejection", "max_proposal": 16, "uplink_budget_bits": 5000}
    assert lengths(spec(**by_rejection), size=34) == {16}
    assert lengths(spec(**by_rejection), size=108) == {5}
    assert lengths(spec(max_proposal=16, uplink_budget_bits=100)) == {4}
    assert lengths(spec(max_proposal=3, uplink_budget_bits=100)) == {3}
    assert lengths(spec(max_proposal=16, uplink_budget_bits=100, vocab_size=128)) == {12}


def draw(made: DraftingSession, token: int, size: int = 1) -> list[Send]:
    job = made.next_job()
    assert isinstance(job, Forward)
    return made.finish(job, [Step(job.step, token, bytes(size), 5)])


def test_the_budget_is_for_speculative_mode() -> None:
    assert spec(uplink_budget_bits=1).rules.longest_proposal == 0
    assert spec(uplink_budget_bits=1, only=Party.DEVICE).rules.longest_proposal == 4
    assert spec(uplink_budget_bits=1, mode="federated", weights=(0.5, 0.5)).rules.longest_proposal == 4


# ---- exactness ---------------------------------------------------------------------------------------------------

SMALL, LARGE = 5, 200  # ids of one and of two bytes
TOKENS = (SMALL, LARGE)
DRAFT, TARGET = np.array([0.5, 0.5]), np.array([0.2, 0.8])  # of each step, on TOKENS
BUDGET = 8 * 11  # two drafts of an id of at most two bytes, a length and three bytes take twelve


def law(probabilities: np.ndarray) -> Distribution:
    return Distribution(np.array(TOKENS), probabilities)


def proposed_length(tokens: Sequence[int]) -> int:
    """Of the first proposal, if these are drafted."""
    made, _ = begin(spec(draft_rule="rejection", max_proposal=2, uplink_budget_bits=BUDGET, vocab_size=300))
    sends = [draw(made, token, 3) for token in tokens[:1]]
    sends += [draw(made, token, 3) for token in tokens[1:] if made.next_job() is not None]
    return len(proposals(list(itertools.chain.from_iterable(sends)))[0].tokens)


def second_token(drafts: Sequence[int]) -> np.ndarray:
    """Probabilities of the second committed token, given the drafts and that the first stands, [2]."""
    if proposed_length(drafts) < 2:
        return TARGET
    index = TOKENS.index(drafts[1])
    stands = acceptance(drafts[1], law(DRAFT), law(TARGET))
    return (
        stands * np.eye(2)[index]
        + (1.0 - stands) * residual(law(DRAFT), law(TARGET)).dense(LARGE + 1)[list(TOKENS)]
    )


def test_the_second_token_follows_the_target_whatever_fits() -> None:
    for first in TOKENS:
        found = sum(
            chance * second_token((first, second)) for chance, second in zip(DRAFT, TOKENS, strict=True)
        )
        np.testing.assert_allclose(found, TARGET, atol=1e-12)


def test_mutant_that_counts_an_id_by_its_own_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then a small token is proposed where a large one gives way to the verifier's: 0.3 instead of 0.2."""
    found = np.zeros(2)
    for chance, second in zip(DRAFT, TOKENS, strict=True):
        drafts = (LARGE, second)

        def count(self: UplinkBudget, payloads: Sequence[bytes], drafts: Sequence[int] = drafts) -> int:
            bytes_of = [4 + (1 if token == SMALL else 2) for token in drafts[: len(payloads)]]
            return sum(8 * size <= BUDGET for size in itertools.accumulate(bytes_of))

        monkeypatch.setattr(UplinkBudget, "count_fitting", count)
        found += chance * second_token(drafts)
    np.testing.assert_allclose(found, [0.3, 0.7], atol=1e-12)
