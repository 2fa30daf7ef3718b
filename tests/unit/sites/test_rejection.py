"""Rejection between two live sites: the tokens of a plain loop, and no proposal beyond the budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tandem import Config, Tandem
from tandem.actors.loading import load_engine
from tandem.aggregation.distributions import Distribution, restrict
from tandem.aggregation.rules import RejectionProposals
from tandem.codecs import codec_of
from tandem.codecs.base import CodecSession
from tandem.config.schema import SamplingParams
from tandem.engine.drafter import mix_rows
from tandem.messages import LinkFrame, Vote
from tandem.protocol import session
from tandem.topology import PARTIES, Party
from tandem_lab.bundled import read_bundled_questions
from tandem_lab.tally import listening_queue

QUESTIONS = [asked.question for asked in read_bundled_questions()][:2]
NUM_TOKENS, ID_BYTES = 20, 2
CODECS: dict[str, tuple[str, ...]] = {
    "c_sqs": (
        "codec.name=c_sqs",
        "codec.parameters={alpha = 0.2, eta = 0.5, beta_1 = 0.02, beta_max = 0.5}",
    ),
    "lattice": ("codec.name=lattice",),
}
"""With and without a state; with these parameters the threshold of `c_sqs` moves within an answer."""
BUDGET_BITS = 150
"""It holds some proposals and not all."""


@dataclass(frozen=True)
class Draft:
    token: int
    payload: bytes

    @property
    def num_bits(self) -> int:
        return 8 * (ID_BYTES + (1 if len(self.payload) < 128 else 2) + len(self.payload))


def bits_of(proposals: Sequence[Vote]) -> list[int]:
    drafts = [map(Draft, proposal.tokens, proposal.payloads) for proposal in proposals]
    return [sum(draft.num_bits for draft in each) for each in drafts]


class Loop:
    """Draft, check the budget, verify, commit: stop-and-wait on one page, with the models of both parties."""

    def __init__(self, config: Config) -> None:
        self._engines = {party: load_engine(config.party(party), num_threads=1) for party in PARTIES}
        self._codec, self._rule = codec_of(config.codec), RejectionProposals()

    def answer(self, question: str, seed: int, max_proposal: int, budget_bits: int) -> tuple[int, ...]:
        for party, engine in self._engines.items():
            engine.open(party, question, [], NUM_TOKENS)
        self._seed, self._budget_bits = seed, budget_bits
        self._drafts: dict[tuple[int, ...], Draft] = {}
        self._states: dict[tuple[int, ...], CodecSession] = {}  # of the codec, after the draft on each prefix
        longest = min(max_proposal, budget_bits // (8 * ID_BYTES)) if budget_bits else max_proposal
        tokens: list[int] = []
        while not self._is_complete(tokens):
            self._commit_round(tokens, self._propose(tokens, longest))
        for party, engine in self._engines.items():
            engine.close(party)
        return tuple(tokens)

    def _commit_round(self, tokens: list[int], proposed: Sequence[Draft]) -> None:
        for draft in (*proposed, None):
            target = self._distribution(Party.CLOUD, tokens)
            step, vocab = len(tokens), target.ids.size
            drawn_from = None if draft is None else self._codec.decode(draft.payload, vocab)
            token = None if draft is None else draft.token
            tokens.append(self._rule.choose(target, token, drawn_from, seed=self._seed, step=step))
            if tokens[-1] != token or self._is_complete(tokens):
                return

    def _propose(self, tokens: Sequence[int], longest: int) -> list[Draft]:
        line, drafts = list(tokens), list[Draft]()
        while len(drafts) < longest and not self._is_complete(line):
            drafts.append(self._draft(tuple(line)))
            line.append(drafts[-1].token)
            num_bits = sum(draft.num_bits for draft in drafts)
            if self._budget_bits and num_bits > self._budget_bits:
                return drafts[:-1]
        return drafts

    def _draft(self, prefix: tuple[int, ...]) -> Draft:
        if prefix not in self._drafts:
            beginnings = (prefix[:length] for length in range(len(prefix) - 1, -1, -1))
            states = (self._states[one] for one in beginnings if one in self._states)
            dense = self._distribution(Party.DEVICE, prefix).probabilities
            payload, self._states[prefix] = next(states, self._codec.open()).encode(dense)
            drawn_from = self._codec.decode(payload, dense.size)
            token = self._rule.draft(drawn_from, seed=self._seed, step=len(prefix))
            self._drafts[prefix] = Draft(token, payload)
        return self._drafts[prefix]

    def _distribution(self, party: Party, tokens: Sequence[int]) -> Distribution:
        logits = self._engines[party].next_logits(party, tuple(tokens))
        dense = restrict(mix_rows(logits, [0.0], 1.0), SamplingParams(temperature=1.0))
        return Distribution(np.arange(dense.size), dense)

    def _is_complete(self, tokens: Sequence[int]) -> bool:
        has_ended = bool(tokens) and tokens[-1] in self._engines[Party.CLOUD].eos_token_ids
        return has_ended or len(tokens) == NUM_TOKENS


@pytest.mark.parametrize("settings", CODECS.values(), ids=CODECS)
def test_tokens_are_those_of_the_loop_and_every_round_keeps_to_its_budget(
    settings: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No party has documents; the cloud never votes on its own because the device is slow."""
    monkeypatch.setattr(session, "PROPOSAL_WAIT_S", 1e9)
    bare = ("device.model=bundled-drafter", "device.num_documents=0", "cloud.num_documents=0")
    config = Config.load(None, [*bare, "link.on_peer_loss=wait", *settings])
    proposals: list[Vote] = []

    def listen(frame: LinkFrame, encoded: bytes) -> None:
        if isinstance(frame.body, Vote):
            proposals.append(frame.body)

    classes: Any = {"draft_queue": listening_queue("device", listen)}
    loop = Loop(config)
    num_bits: dict[int, list[int]] = {0: [], 1: [], BUDGET_BITS: []}  # by budget; none is unlimited
    with Tandem.launch(config, runtime="inline", actor_classes=classes) as rag:
        for seed, question in enumerate(QUESTIONS):
            for budget_bits, sent in num_bits.items():
                proposals.clear()
                answer = rag.query(
                    question, mode="speculative", draft_rule="rejection", pacing="stop_and_wait", max_proposal=4,
                    temperature=1.0, seed=seed, max_new_tokens=NUM_TOKENS, uplink_budget_bits=budget_bits,
                )  # fmt: skip
                assert answer.token_ids == loop.answer(question, seed, 4, budget_bits)
                sent += bits_of(proposals)
    assert set(num_bits[1]) == {0}, "no id fits: the cloud decides every step"
    assert 0 < max(num_bits[BUDGET_BITS]) <= BUDGET_BITS < max(num_bits[0])
