"""What is predicted: the cloud's own answer, and times that follow from how the device would have drafted along it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from tandem.config.schema import Config
from tandem.topology import PARTIES, Party
from tandem_lab.bench.speculative import (
    FORWARD_S,
    FRAME_S,
    PROPOSAL_BYTES,
    VERDICT_BYTES,
    Predictor,
    configure,
)
from tandem_lab.bench.systems import SPECULATIVE
from tests.unit.lab.bench.cells import PROPOSING as SETTING

VOCAB, EOS = 32, 31
BY_NAME = {system.name: system for system in SPECULATIVE}


class Model:
    """Logits that depend on the tokens so far, and a little on the party."""

    eos_token_ids = (EOS,)

    def __init__(self, difference: float, party: int) -> None:
        self._difference, self._party = difference, party

    def open(self, session: str, query: str, documents: Sequence[str], max_new_tokens: int) -> Any:
        return type("Opened", (), {"documents": ()})

    def next_logits(self, session: str, tokens: Sequence[int]) -> torch.Tensor:
        shared, own = (
            np.random.default_rng([party, *tokens]).normal(size=VOCAB) for party in (9, self._party)
        )
        logits = shared + self._difference * own
        logits[EOS] = -1.0
        return torch.tensor(logits[None], dtype=torch.float32)


class Index:
    def search(self, query: str, k: int) -> list[Any]:
        return []


def predictor(difference: float) -> Predictor:
    models = {party: Model(difference, number) for number, party in enumerate(PARTIES)}
    pair = type("Pair", (), {"engines": models, "retrievers": dict.fromkeys(PARTIES, Index())})
    return Predictor(cache(lambda: pair), configure(Config()), ["Why?", "Who?", "When?"])  # type: ignore[arg-type, return-value]


def test_the_reference_is_the_clouds_own_answer() -> None:
    """Whatever the drafter, and another one for each seed."""
    close, far = (predictor(difference) for difference in (0.1, 3.0))
    own = predictor(0.0).reference(SETTING)
    assert own != far.reference(SETTING)
    assert [len(tokens) for tokens in close.reference(SETTING)] != []
    assert len(set(own)) == 3
    assert all(tokens[-1] == EOS or len(tokens) == SETTING.max_new_tokens for tokens in own)
    greedy = replace(SETTING, temperature=0.0)
    assert len(set(predictor(0.0).reference(greedy))) == 1, "greedy answers do not depend on the seed"


def test_a_better_drafter_makes_it_faster() -> None:
    pipelined = BY_NAME["pipelined"]
    good, bad = (predictor(difference).predict(pipelined, SETTING) for difference in (0.0, 3.0))
    assert good.also["acceptance"] == 1.0 > 0.6 > bad.also["acceptance"]
    assert good.token_s < bad.token_s
    assert good.forwards["cloud"] < 0.5 < bad.forwards["cloud"]


def test_baselines_take_what_the_link_and_the_models_take() -> None:
    """And what Tandem itself takes: a forward, and two frames where the cloud is asked for each token."""
    own = predictor(0.5)
    asked_s = 0.027 + FORWARD_S + 2 * FRAME_S
    assert own.predict(BY_NAME["device"], SETTING).token_s == pytest.approx(0.015)
    assert own.predict(BY_NAME["asked"], SETTING).token_s == pytest.approx(0.1 + asked_s)
    assert own.predict(BY_NAME["streamed"], SETTING).token_s == pytest.approx(0.027 + FORWARD_S)
    slow = own.predict(BY_NAME["asked"], replace(SETTING, bits_per_s=1e4))
    assert slow.token_s == pytest.approx(0.1 + asked_s + 8 * (PROPOSAL_BYTES + VERDICT_BYTES) / 1e4)
    assert np.isnan(own.predict(BY_NAME["asked"], replace(SETTING, floors_s=None)).token_s)


def test_distributions_take_more_of_the_link() -> None:
    own = predictor(0.5)
    ids, whole = (own.predict(BY_NAME[name], SETTING) for name in ("pipelined", "pipelined/rejection"))
    per_draft = [each.also["up_bytes"] / each.forwards["device"] for each in (ids, whole)]
    assert per_draft[1] > per_draft[0]
    assert 0 < whole.also["acceptance"] < 1


def test_the_system_of_a_party_that_is_alone() -> None:
    assert BY_NAME["device"].options["only"] is Party.DEVICE
