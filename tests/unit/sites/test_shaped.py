"""Answers with penalties, biases and grammars are exactly those of the loop without drafts."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("llguidance", reason="answers that follow a grammar need llguidance (extra [grammar])")

from tandem import Config, Tandem
from tandem.client.request import build_spec
from tandem.errors import QueryError
from tandem.plugins.grammars import following
from tandem.topology import PARTIES
from tandem_lab.bundled import read_bundled_questions
from tandem_lab.quality.local import LocalPair, answer_uncompressed
from tandem_lab.quality.memoized import local_pair
from tandem_lab.simulation.specs import change_spec

QUESTION = read_bundled_questions()[0].question
CONFIG = Config.load(None, ["link.on_peer_loss=wait"])
SCHEMA = {
    "type": "object",
    "properties": {"game": {"type": "string", "maxLength": 12}, "years": {"type": "integer", "maximum": 99}},
    "required": ["game", "years"],
    "additionalProperties": False,
}
DESCRIBED: dict[Any, dict[str, Any]] = {
    party: {"decode_line": [], "has_grammars": True, "eos_token_ids": [1], "vocab_size": 1636}
    for party in PARTIES
}


@pytest.fixture(scope="module")
def pair() -> LocalPair:
    return local_pair(CONFIG)


@pytest.mark.parametrize(
    "asked",
    [
        {"grammar": {"regex": "[A-Z][a-z]+( [a-z]+){1,3}"}, "draft_rule": "coupled"},
        {"grammar": {"json_schema": SCHEMA}, "temperature": 1.0},
        {
            "grammar": {"regex": "(ha|he|ho){9}"},
            "presence_penalty": 2.0,
            "frequency_penalty": 1.0,
            "temperature": 0.7,
        },
        {"logit_bias": {80: 5.0, 223: -100.0}, "top_p": 0.7, "temperature": 1.2, "draft_rule": "coupled"},
    ],
)
def test_answers_are_those_of_the_loop_without_drafts(
    rag: Tandem, pair: LocalPair, asked: dict[str, Any]
) -> None:
    """Masks and penalties are functions of the prefix at both parties, so drafts change nothing; without them the
    answer would be another one."""
    common: dict[str, Any] = {"mode": "dual", "max_new_tokens": 14, "seed": 11}
    answer = rag.query(QUESTION, **common, **asked)
    spec = build_spec(CONFIG, DESCRIBED, QUESTION, **common, **asked)
    spec = change_spec(spec, race_depth=CONFIG.codec.race_depth)
    assert list(answer.token_ids) == answer_uncompressed(spec, pair.engines, pair.retrievers)
    plain = {name: value for name, value in asked.items() if name in ("temperature", "draft_rule")}
    assert answer.token_ids != rag.query(QUESTION, **common, **plain).token_ids


def test_answers_stay_the_same_where_masks_come_late(
    rag: Tandem, pair: LocalPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass whose mask is not there in time is computed again."""
    poll, draw, late = following.FollowedGrammar.poll, random.Random(3), list[bool]()

    def poll_late(self: following.FollowedGrammar, left_s: Callable[[], float] = lambda: 0.0) -> bool:
        late.append(left_s() > 0 and draw.random() < 0.5)
        return not late[-1] and poll(self, left_s)

    monkeypatch.setattr(following.FollowedGrammar, "poll", poll_late)
    for mode in ("dual", "speculative"):
        common: dict[str, Any] = {"mode": mode, "max_new_tokens": 14, "seed": 11, "temperature": 1.0}
        asked: dict[str, Any] = {**common, "grammar": {"json_schema": SCHEMA}, "draft_rule": "coupled"}
        answer = rag.query(QUESTION, **asked)
        spec = change_spec(
            build_spec(CONFIG, DESCRIBED, QUESTION, **asked), race_depth=CONFIG.codec.race_depth
        )
        assert list(answer.token_ids) == answer_uncompressed(spec, pair.engines, pair.retrievers)
    assert sum(late) > 10


def test_a_party_without_llguidance() -> None:
    described = DESCRIBED | {"cloud": DESCRIBED["cloud"] | {"has_grammars": False}}
    with pytest.raises(
        QueryError, match="needs llguidance at every party, but the cloud does not have it; run"
    ):
        build_spec(CONFIG, described, QUESTION, grammar={"regex": "a"})
