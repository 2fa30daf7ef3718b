"""A replay's records, its summary, and the trace file of all its answers."""

from __future__ import annotations

import json
from math import isnan

import pytest

from tandem.config.schema import Config
from tandem_lab.replay.records import Replay
from tandem_lab.replay.report import as_dict, merged_trace, summary, table
from tests.unit.lab.replay.recorded import ROWS, replay, replay_of_proposals


def test_each_token_has_its_latency_its_drafter_and_the_link_of_its_moment() -> None:
    tokens = replay().tokens()
    assert [token.committed_s for token in tokens] == pytest.approx([0.5, 0.7, 2.2, 3.4, 3.5])
    assert [token.latency_s for token in tokens] == pytest.approx([0.5, 0.2, 1.5, 0.4, 0.1])
    assert [token.drafter for token in tokens] == ["both", "device", "alone", "cloud", "neither"]
    assert [token.injected_loss for token in tokens] == [0, 0, 1, 0, 0]
    assert [token.injected_rtt_s for token in tokens] == [0.1, 0.1, 0.3, 0.1, 0.1]
    assert [token.ping_rtt_s for token in tokens] == [0.1, 0.1, 0.12, 0.1, 0.1]
    assert [token.question for token in tokens] == [0, 0, 0, 1, 1]


def test_each_proposal_has_its_length_what_stood_of_it_and_the_link_of_its_verdict() -> None:
    seen = replay_of_proposals()
    rounds = seen.rounds()
    assert [(each.question, each.step, each.length, each.num_accepted) for each in rounds] == [
        (0, 0, 5, 5),
        (0, 6, 3, 1),
        (1, 0, 0, 0),
    ]
    assert [each.judged_s for each in rounds] == pytest.approx([0.5, 2.2, 3.4])
    assert [each.injected_rtt_s for each in rounds] == [0.1, 0.3, 0.1]
    assert [each.injected_bits_per_s for each in rounds] == [8e6, None, None]
    assert [each.ping_rtt_s for each in rounds] == [0.1, 0.12, 0.1]
    assert "  rounds     3 judged, 2.7 tokens proposed in the mean" in table(seen)
    found = as_dict(seen, Config())
    assert [len(asked["rounds"]) for asked in found["questions"]] == [2, 1]
    assert found["questions"][0]["rounds"][1]["length"] == 3
    assert not any(line.lstrip().startswith("rounds") for line in table(replay()))


def test_no_reply_yet_is_not_known() -> None:
    seen = replay()
    seen.replies = seen.replies[1:]
    assert isnan(seen.tokens()[0].ping_rtt_s)


def test_summary() -> None:
    found = summary(replay())
    assert found["median_latency_s"] == pytest.approx(0.2)
    assert found["p95_latency_s"] == pytest.approx(1.5)
    assert found["median_first_token_s"] == pytest.approx(0.45)
    assert found["tokens_per_s"] == pytest.approx(5 / 2.7)
    assert (found["device_acceptance"], found["cloud_acceptance"]) == (0.5, 0.5)
    assert (found["num_alone"], found["num_resyncs"], found["num_degraded"]) == (1, 1, 1)
    assert (found["frames_sent_bytes"], found["num_pings_lost"]) == (400, 1)


def test_table() -> None:
    lines = table(replay())
    assert lines[0] == "  questions  2 asked, 2 answered in 3.6 s"
    assert "  latency    median 200.0 ms, p95 1500.0 ms per token" in lines
    assert "  link       200 bytes out and 100 in per token with all of Ray's and ping's own" in lines
    assert "  lost       device 10.0 ms and cloud 0.0 ms per token for drafts that were thrown away" in lines
    assert lines[-1].startswith("  The trace by-hand ended at 3 s; its last value holds")


def test_of_nothing() -> None:
    lines = table(Replay(trace=replay().trace))
    assert "  ping       median unknown; 0 of 0 lost" in lines
    assert "  lost       not measured" in lines


def test_json_holds_what_was_applied_and_every_token() -> None:
    found = as_dict(replay(), Config())
    assert [row["time_s"] for row in found["trace"]["applied"]] == [row.time_s for row in ROWS]
    assert [len(asked["tokens"]) for asked in found["questions"]] == [3, 2]
    assert [asked["is_degraded"] for asked in found["questions"]] == [True, False]
    assert found["interfaces"]["device"]["sent_bytes"] == 1000
    assert found["settings"]["link"]["on_peer_loss"] == "continue"


def test_the_answers_stand_one_after_the_other_in_the_trace_file() -> None:
    merged = json.loads(merged_trace(replay(), "mirror"))
    commits = [event["ts"] for event in merged["traceEvents"] if event.get("ph") == "i"]
    assert {500_000, 700_000, 2_200_000, 3_400_000, 3_500_000} <= set(commits)
    names = [json.dumps(event) for event in merged["traceEvents"] if event["ph"] == "M"]
    assert len(names) == len(set(names))
    assert [each["opened_s"] for each in merged["tandem"]] == [0.0, 3.0]
