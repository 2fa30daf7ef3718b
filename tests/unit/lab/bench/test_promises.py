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


def changed(one: Cell, system: str, **changes: Any) -> Cell:
    records = (replace(each, **changes) if each.system == system else each for each in one.records)
    return replace(one, records=tuple(records))


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


@pytest.mark.parametrize(
    ("system", "accepted", "token_s", "holds"),
    [
        ("Tandem/mirror", 3, 0.104, True),  # 65 % below 0.3 s
        ("Tandem/mirror", 3, 0.106, False),
        ("Tandem/device", 3, 0.172, True),  # the paper's 42.4 %
        ("Tandem/device", 3, 0.174, False),
        ("Tandem/device", 2, 0.174, None),  # the cloud's acceptance is 0.4
        ("Tandem/mirror", 2, 0.4, None),
    ],
)
def test_against_token_wise(system: str, accepted: int, token_s: float, holds: bool | None) -> None:
    one = cell({"DRDG/TW": [0.3], "DRDG/SW-dense": [0.2], system: [token_s]})
    one = changed(one, system, num_accepted={"device": 3, "cloud": accepted})
    found = named(one, f"{system} is at least")
    assert found.holds is holds
    assert "DRDG/SW-dense" in found.numbers


@pytest.mark.parametrize(("first_s", "holds"), [(0.534, True), (0.536, False)])
def test_time_to_first_token(first_s: float, holds: bool) -> None:
    """After 0.4 s on the device and 0.2 s + RTT in the cloud: x 1.05 + 0.01 = 0.535. All that two tokens tell."""
    paces = {"CRCG/device": [0.06], "CRCG/cloud": [0.03], "DRCG/Text": [0.06], "Tandem/mirror": [0.1]}
    one = cell(paces)
    for system, at_s in (("CRCG/device", 0.4), ("CRCG/cloud", 0.2), ("Tandem/mirror", first_s)):
        one = changed(one, system, committed_s=tuple(at_s + 0.1 * step for step in range(5)))
    short = replace(one, setting=replace(SETTING, max_new_tokens=2))
    for each in (one, short):
        assert named(each, "has its first token within").holds is holds
        assert named(each, "before DRCG/Text").holds is (first_s < 0.5)
    assert len(dual.LATENCY.checks_of(short)) == 3 < len(dual.LATENCY.checks_of(one))


def test_forwards_are_asked_for_where_acceptance_is_high() -> None:
    one = cell({"Tandem/mirror": [0.1]})
    device, cloud = (named(one, f"Tandem/mirror, {party}:") for party in ("device", "cloud"))
    assert (device.holds, cloud.holds) == (None, True)
    assert device.numbers == "2.00 at 0.60, simulated 1.50"
    many = changed(one, "Tandem/mirror", num_forwards={"device": 5, "cloud": 11})
    assert named(many, "Tandem/mirror, cloud:").holds is False


def test_bytes_of_the_socket_plane() -> None:
    one = cell({"Tandem/mirror": [0.1]})
    assert named(one, "data connection from the device").holds is True
    assert named(one, "data connection from the cloud").holds is False, "400 a token"
    for other in (replace(SETTING, temperature=1.0), replace(HALF, temperature=0.0)):
        assert named(replace(one, setting=other), "data connection from the cloud").holds is None
    unseen = changed(one, "Tandem/mirror", wire_bytes={})
    assert not [each for each in dual.LATENCY.checks_of(unseen) if "data connection" in each.promise]


@pytest.mark.parametrize(
    ("device", "cloud", "holds"), [(1, 3, True), (2, 3, True), (1, 2, False), (3, 4, False)]
)
def test_half_accepted_means_half_of_both_parties_drafts(device: int, cloud: int, holds: bool) -> None:
    """Of 5 tokens."""
    accepted = {"device": device, "cloud": cloud}
    one = changed(cell(setting=HALF), "Tandem/mirror", num_accepted=accepted)
    assert named(one, "of all drafts").holds is holds
    assert not [each for each in dual.LATENCY.checks_of(cell()) if "of all drafts" in each.promise]


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
