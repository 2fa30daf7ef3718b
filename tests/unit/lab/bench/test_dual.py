"""Promises: each holds just up to its threshold, and is asked for only where its condition is met."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tandem_lab.bench.dual import LATENCY
from tandem_lab.bench.records import Cell
from tandem_lab.bench.suite import Check
from tandem_lab.bench.systems import DUAL
from tests.unit.lab.bench.cells import HALF, SETTING, cell

checks_of, text_of, values_of = LATENCY.checks_of, LATENCY.text_of, LATENCY.values_of


def named(one: Cell, part: str) -> Check:
    (found,) = [each for each in checks_of(one) if part in each.promise]
    return found


def changed(one: Cell, system: str, **changes: Any) -> Cell:
    records = (replace(each, **changes) if each.system == system else each for each in one.records)
    return replace(one, records=tuple(records))


def test_one_wrong_token_is_seen() -> None:
    assert named(cell(), "Tandem/mirror commits").holds is True
    wrong = replace(cell(), reference=((5, 6, 7, 8, 9), (5, 6, 7, 8, 1)))
    found = named(wrong, "Tandem/mirror commits")
    assert (found.holds, found.numbers) == (False, "3 of 30 wrong")


@pytest.mark.parametrize(
    ("rtt_s", "token_s", "holds"),
    [(0.0, 0.0659, True), (0.0, 0.0661, False), (0.1, 0.0749, True), (0.1, 0.0751, False)],
)
def test_against_the_device_alone(rtt_s: float, token_s: float, holds: bool) -> None:
    paces = {"CRCG/device": [0.06], "Tandem/mirror": [token_s]}
    one = cell(paces, setting=replace(SETTING, rtt_s=rtt_s))
    assert named(one, "x the device alone").holds is holds
    bare = cell(paces, setting=replace(SETTING, rtt_s=rtt_s, floors_s=None))
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
    one = cell({"DRDG/TW": [0.3], system: [token_s]})
    one = changed(one, system, num_accepted={"device": 3, "cloud": accepted})
    assert named(one, f"{system} is at least").holds is holds


def test_two_tokens_are_judged_by_the_first_alone() -> None:
    paces = {
        "CRCG/device": [0.06],
        "CRCG/cloud": [0.03],
        "DRDG/TW": [0.3],
        "DRCG/KV": [0.06],
        "Tandem/mirror": [0.4],
    }
    short, long = (cell(paces, setting=replace(SETTING, max_new_tokens=count)) for count in (2, 3))
    assert len(checks_of(long)) > len(checks_of(short)) == 4
    promises = " ".join(check.promise for check in checks_of(short))
    assert "first token within" in promises
    assert "first token before DRCG/KV" in promises
    assert "Tandem/mirror commits" in promises


def test_sequence_wise_synchronisation_stands_beside_it() -> None:
    one = cell({"DRDG/TW": [0.3], "DRDG/SW-dense": [0.2], "Tandem/mirror": [0.1]})
    assert "50.0% below DRDG/SW-dense" in named(one, "Tandem/mirror is at least").numbers


@pytest.mark.parametrize(("first_s", "holds"), [(0.534, True), (0.536, False)])
def test_time_to_first_token(first_s: float, holds: bool) -> None:
    one = cell({"CRCG/device": [0.06], "CRCG/cloud": [0.03], "Tandem/mirror": [0.1], "DRCG/KV": [0.06]})
    one = changed(one, "CRCG/device", committed_s=(0.4, 0.5, 0.6, 0.7, 0.8))
    one = changed(
        one, "CRCG/cloud", committed_s=(0.2, 0.3, 0.4, 0.5, 0.6)
    )  # + RTT = 0.5, x 1.05 + 0.01 = 0.535
    one = changed(one, "Tandem/mirror", committed_s=(first_s, 0.6, 0.7, 0.8, 0.9))
    assert named(one, "has its first token within").holds is holds
    assert named(one, "before DRCG/KV").holds is (first_s < 0.5)


def test_forwards_are_asked_for_where_acceptance_is_high() -> None:
    device, cloud = (
        named(cell({"Tandem/mirror": [0.1]}), f"Tandem/mirror, {party}:") for party in ("device", "cloud")
    )
    assert (device.holds, cloud.holds) == (None, True)
    assert device.numbers == "2.00 at 0.60, simulated 1.50"
    many = changed(cell({"Tandem/mirror": [0.1]}), "Tandem/mirror", num_forwards={"device": 5, "cloud": 11})
    assert named(many, "Tandem/mirror, cloud:").holds is False


def test_bytes_of_the_socket_plane() -> None:
    one = cell({"Tandem/mirror": [0.1]})
    assert named(one, "data connection from the device").holds is True
    assert named(one, "data connection from the cloud").holds is False, "400 a token"
    warm = replace(one, setting=replace(SETTING, temperature=1.0))
    assert named(warm, "data connection from the cloud").holds is None
    unseen = changed(one, "Tandem/mirror", wire_bytes={})
    assert not [each for each in checks_of(unseen) if "data connection" in each.promise]


@pytest.mark.parametrize(("token_s", "holds"), [(0.0839, True), (0.0841, False)])
def test_half_of_the_drafts_accepted_at_300_ms(token_s: float, holds: bool) -> None:
    one = cell({"CRCG/device": [0.06], "Tandem/mirror": [token_s]}, setting=HALF)
    found = named(one, "x the device alone")
    assert (found.holds, found.promise) == (holds, "Tandem/mirror takes at most 1.4 x the device alone")
    near = replace(one, setting=replace(HALF, rtt_s=0.1))
    assert not [each for each in checks_of(near) if "x the device" in each.promise]


@pytest.mark.parametrize(
    ("device", "cloud", "holds"), [(1, 3, True), (2, 3, True), (1, 2, False), (3, 4, False)]
)
def test_half_accepted_means_half_of_both_parties_drafts(device: int, cloud: int, holds: bool) -> None:
    one = changed(
        cell(setting=HALF), "Tandem/mirror", num_accepted={"device": device, "cloud": cloud}
    )  # of 5 tokens
    found = named(one, "of all drafts")
    assert found.holds is holds
    assert f"(device {device / 5:.2f}, cloud {cloud / 5:.2f})" in found.numbers
    assert not [each for each in checks_of(cell()) if "of all drafts" in each.promise]


def test_long_tails_are_not_held_to_the_bytes_of_short_ones() -> None:
    for check in checks_of(cell(setting=replace(HALF, temperature=0.0))):
        assert "bytes per token" not in check.promise or check.holds is None


def test_the_table_says_what_a_reader_needs() -> None:
    one = cell()
    text = text_of([one])
    assert (
        "decode floors 60 ms device, 25 ms cloud, RTT 300 ms, T 0, 3 runs of 2 questions, caches of documents disk/off"
        in text
    )
    assert "ping 300.0 ms (median of 3)" in text
    times, costs, explained = [each for each in text.splitlines() if each.startswith("Tandem/mirror")]
    assert times.split()[1:6] == ["80.0", "75.0-90.0", "75.0", "1.33", "-73%"]
    assert "0.60/0.80" in costs, "acceptance of every row"
    assert explained == "Tandem/mirror             both sides draft ahead and aggregate; no verdict crosses"
    assert max(map(len, text.splitlines())) <= 120
    (values,) = values_of([one])
    assert values["ping_median_s"] == 0.3
    assert {check["holds"] for check in values["checks"]} == {True, None, False}


def test_one_run_has_no_quartiles() -> None:
    (times, *_) = [
        line for line in text_of([cell({"DRDG/TW": [0.3]})]).splitlines() if line.startswith("DRDG/TW")
    ]
    assert times.split()[1:3] == ["300.0", "-"]


def test_the_widest_names_and_numbers_fit_120_columns() -> None:
    """Every system, a token of hundreds of ms and of tens of kilobytes."""
    wire = {party: {"data": 199_999, "ray": 199_999, "other": 0} for party in ("device", "cloud")}
    one = cell({system.name: [0.99] for system in DUAL})
    records = tuple(
        replace(each, wire_bytes=wire, frame_bytes=dict.fromkeys(wire, 149_999)) for each in one.records
    )
    assert max(map(len, text_of([replace(one, records=records)]).splitlines())) <= 120
