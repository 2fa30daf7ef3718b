"""Promises of each suite: each holds just up to its threshold, and is asked for only where its condition is met."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tandem_lab.bench import dual, federated, speculative
from tandem_lab.bench.records import Cell
from tandem_lab.bench.suite import Check
from tests.unit.lab.bench.cells import (
    HALF,
    PACES_S,
    PROPOSING,
    SETTING,
    TOKENS,
    WORKERS_S,
    cell,
    proposed,
    proposing_cell,
    voted,
    voting_cell,
)


def named(one: Cell, part: str) -> Check:
    (found,) = [each for each in dual.LATENCY.checks_of(one) if part in each.promise]
    return found


def test_one_wrong_token_is_seen() -> None:
    assert named(cell(), "Tandem/mirror commits").holds is True
    wrong = replace(cell(), reference=((5, 6, 7, 8, 9), (5, 6, 7, 8, 1)))
    found = named(wrong, "Tandem/mirror commits")
    assert (found.holds, found.numbers) == (False, "3 of 30 wrong")
    other = proposed("pipelined", 0.045, token_ids=(*TOKENS[:-1], 1))
    assert not speculative.SUITE.checks_of(proposing_cell(PROPOSING, other))[0].holds
    free = proposed("pipelined/rejection", 0.045, token_ids=(1, 1, 1, 1, 1))
    assert not [
        c for c in speculative.SUITE.checks_of(proposing_cell(PROPOSING, free)) if "commits" in c.promise
    ]


@pytest.mark.parametrize(
    ("setting", "token_s", "holds"),
    [
        (replace(SETTING, rtt_s=0.0), 0.0659, True),
        (replace(SETTING, rtt_s=0.0), 0.0661, False),
        (replace(SETTING, rtt_s=0.1), 0.0749, True),
        (replace(SETTING, rtt_s=0.1), 0.0751, False),
        (HALF, 0.0839, True),
        (HALF, 0.0841, False),
    ],
)
def test_against_the_device_alone(setting: Any, token_s: float, holds: bool) -> None:
    paces = {"CRCG/device": [0.06], "Tandem/mirror": [token_s]}
    assert named(cell(paces, setting=setting), "x the device alone").holds is holds
    bare = cell(paces, setting=replace(setting, floors_s=None))
    assert named(bare, "x the device alone").holds is None, "reported only"


def test_promises_of_speculative_decoding() -> None:
    checks_of, speed = speculative.SUITE.checks_of, "pipelined is 2 x as fast as asking for each token"
    good = checks_of(proposing_cell())
    assert [check.holds for check in good] == [True] * (len(PACES_S) + 3)
    slow = [proposed(name, 0.2 if name == "cloud_goes_on" else pace_s) for name, pace_s in PACES_S.items()]
    broken = [str(check) for check in checks_of(proposing_cell(PROPOSING, *slow)) if not check.holds]
    assert len(broken) == 2
    assert "cloud_goes_on takes at most 1.05 x the streamed cloud" in broken[0]
    assert "furthest: cloud_goes_on, +700%" in broken[1]
    unlike = {check.promise: check.holds for check in checks_of(proposing_cell(acceptance=0.7))}
    assert [holds for promise, holds in unlike.items() if promise.startswith(speed)] == [None]
    slow_link = checks_of(proposing_cell(replace(PROPOSING, bits_per_s=1e4)))
    assert not [check for check in slow_link if check.promise.startswith(speed)]


def test_promises_of_federated_decoding() -> None:
    checks_of = federated.SUITE.checks_of
    assert [check.holds for check in checks_of(voting_cell())] == [True] * 7
    slow = [voted(name, pace_s * (2 if name == "pipelined" else 1)) for name, pace_s in WORKERS_S.items()]
    found = [check.holds for check in checks_of(voting_cell(records=tuple(slow)))]
    assert found == [True] * 4 + [False, True, False]
    wrong = replace(voted("pipelined", 0.025), token_ids=(5, 6, 7, 8, 0))
    assert not checks_of(voting_cell(records=(wrong,)))[0].holds
    assert [check.holds for check in checks_of(voting_cell(61.0))][5] is False
