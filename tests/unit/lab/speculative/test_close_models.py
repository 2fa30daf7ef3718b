"""The two models that the benchmark runs with: a drafter whose tokens are mostly the cloud's, and long answers."""

from __future__ import annotations

from functools import partial

import pytest

from tandem.config.schema import Config
from tandem.topology import PARTIES
from tandem_lab.cli.bench_speculative import config_for
from tandem_lab.latency.half import VOCAB_SIZE, close_to_each_other
from tandem_lab.latency.memoized import local_pair
from tandem_lab.speculative.predictions import FORWARD_S, FRAME_S, SpeculativePredictor
from tandem_lab.speculative.systems import SYSTEMS
from tests.unit.lab.speculative.cells import SETTING


@pytest.mark.nightly("measures acceptance over many answers")
def test_most_of_the_devices_tokens_are_the_clouds() -> None:
    config = config_for(Config.load(None, ["retrieval.embedder=offline"]))
    with close_to_each_other(config) as close:
        assert {close.party(party).num_documents for party in PARTIES} == {0}
        predictor = SpeculativePredictor(partial(local_pair, close), close, ["Why?"])
        (tokens,) = predictor.reference(SETTING)
        assert len(tokens) == SETTING.max_new_tokens
        assert max(tokens) > 10_000, f"of {VOCAB_SIZE} tokens"
        by_name = {system.name: predictor.predict(system, SETTING) for system in SYSTEMS}
    assert 0.8 <= by_name["pipelined"].also["acceptance"] < 1
    assert by_name["pipelined"].token_s < by_name["stop_and_wait"].token_s < by_name["asked"].token_s
    assert by_name["asked"].token_s == pytest.approx(0.127 + FORWARD_S + 2 * FRAME_S)
