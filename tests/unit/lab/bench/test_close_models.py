"""The two models that the benchmark runs with: a drafter whose tokens are mostly the cloud's, and long answers."""

from __future__ import annotations

from functools import partial

import pytest

from tandem.config.schema import Config
from tandem.topology import PARTIES
from tandem_lab.bench.models import VOCAB_SIZE, close_to_each_other
from tandem_lab.bench.speculative import FORWARD_S, HOP_S, Predictor, configure
from tandem_lab.bench.systems import SPECULATIVE
from tandem_lab.quality.memoized import local_pair
from tests.unit.lab.bench.cells import PROPOSING as SETTING


@pytest.mark.nightly("measures acceptance over many answers")
def test_most_of_the_devices_tokens_are_the_clouds() -> None:
    config = configure(Config.load(None, ["retrieval.embedder=offline"]))
    with close_to_each_other(config) as close:
        assert {close.party(party).num_documents for party in PARTIES} == {0}
        predictor = Predictor(partial(local_pair, close), close, ["Why?"])
        (tokens,) = predictor.reference(SETTING)
        assert len(tokens) == SETTING.max_new_tokens
        assert max(tokens) > 10_000, f"of {VOCAB_SIZE} tokens"
        by_name = {system.name: predictor.predict(system, SETTING) for system in SPECULATIVE}
    assert 0.8 <= by_name["pipelined"].also["acceptance"] < 1
    assert by_name["pipelined"].token_s < by_name["stop_and_wait"].token_s < by_name["asked"].token_s
    assert by_name["asked"].token_s == pytest.approx(0.127 + FORWARD_S + 6 * HOP_S, rel=0.01)
