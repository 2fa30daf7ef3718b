"""Rejection between two live sites: the tokens of a plain loop. Budgets of proposals: `modes/test_uplink_budget`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest

from tandem import Config, Tandem
from tandem.actors.loading import load_engine
from tandem.aggregation.distributions import Distribution, restrict
from tandem.aggregation.rules import RejectionProposals
from tandem.codecs import codec_of
from tandem.codecs.base import CodecSession
from tandem.config.schema import SamplingParams
from tandem.engine.drafter import mix_rows, row_probabilities
from tandem.protocol import session
from tandem.topology import PARTIES, Party
from tandem_lab.bundled import read_bundled_questions

QUESTIONS = [asked.question for asked in read_bundled_questions()][:2]
NUM_TOKENS, MAX_PROPOSAL = 20, 4
CODECS: dict[str, tuple[str, ...]] = {
    "c_sqs": (
        "codec.name=c_sqs",
        "codec.parameters={alpha = 0.2, eta = 0.5, beta_1 = 0.02, beta_max = 0.5}",
    ),
    "lattice": ("codec.name=lattice",),
}
"""With and without a state; with these parameters the threshold of `c_sqs` moves within an answer."""


class Draft(NamedTuple):
    token: int
    payload: bytes


class Loop:
    """Draft, check the budget, verify, commit: stop-and-wait on one page, with the models of both parties."""

    def __init__(self, config: Config) -> None:
        self._engines = {party: load_engine(config.party(party), num_threads=1) for party in PARTIES}
        self._codec, self._rule = codec_of(config.codec), RejectionProposals()

    def answer(self, question: str, seed: int) -> tuple[int, ...]:
        for party, engine in self._engines.items():
            engine.open(party, question, [], NUM_TOKENS)
        self._seed = seed
        self._drafts: dict[tuple[int, ...], Draft] = {}
        self._states: dict[tuple[int, ...], CodecSession] = {}  # of the codec, after the draft on each prefix
        tokens: list[int] = []
        while not self._is_complete(tokens):
            self._commit_round(tokens, self._propose(tokens))
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

    def _propose(self, tokens: Sequence[int]) -> list[Draft]:
        line, drafts = list(tokens), list[Draft]()
        while len(drafts) < MAX_PROPOSAL and not self._is_complete(line):
            drafts.append(self._draft(tuple(line)))
            line.append(drafts[-1].token)
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
        dense = restrict(mix_rows(row_probabilities(logits, 1.0), [0.0]), SamplingParams(temperature=1.0))
        return Distribution(np.arange(dense.size), dense)

    def _is_complete(self, tokens: Sequence[int]) -> bool:
        has_ended = bool(tokens) and tokens[-1] in self._engines[Party.CLOUD].eos_token_ids
        return has_ended or len(tokens) == NUM_TOKENS


@pytest.mark.parametrize("settings", CODECS.values(), ids=CODECS)
def test_tokens_are_those_of_the_loop(settings: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """No party has documents; the cloud never votes on its own because the device is slow."""
    monkeypatch.setattr(session, "PROPOSAL_WAIT_S", 1e9)
    bare = ("device.model=bundled-drafter", "device.num_documents=0", "cloud.num_documents=0")
    config = Config.load(None, [*bare, "link.on_peer_loss=wait", *settings])
    loop = Loop(config)
    with Tandem.launch(config, runtime="inline") as rag:
        for seed, question in enumerate(QUESTIONS):
            answer = rag.query(
                question, mode="speculative", draft_rule="rejection", pacing="stop_and_wait", seed=seed,
                temperature=1.0, max_proposal=MAX_PROPOSAL, max_new_tokens=NUM_TOKENS,
            )  # fmt: skip
            assert answer.token_ids == loop.answer(question, seed)
            assert answer.statistics.num_device_accepted > 0
