"""A replay's records, its summary and its picture."""

from __future__ import annotations

from math import isnan
from pathlib import Path

import pytest

from tandem.config.schema import Config
from tandem_lab.netlab.schedule import LinkSchedule
from tandem_lab.replay.plot import plot_replay
from tandem_lab.replay.records import Replay
from tandem_lab.replay.report import as_dict, summary, table
from tests.unit.lab.replay.recorded import ROWS, replay, replay_of_proposals
from tests.unit.lab.test_timeline import words


def test_each_token_has_its_latency_its_drafter_and_the_link_of_its_moment() -> None:
    seen = replay()
    tokens = seen.tokens()
    assert [token.committed_s for token in tokens] == pytest.approx([0.5, 0.7, 2.2, 3.4, 3.5])
    assert [token.latency_s for token in tokens] == pytest.approx([0.5, 0.2, 1.5, 0.4, 0.1])
    assert [token.drafter for token in tokens] == ["both", "device", "alone", "cloud", "neither"]
    assert [token.injected_loss for token in tokens] == [0, 0, 1, 0, 0]
    assert [token.injected_rtt_s for token in tokens] == [0.1, 0.1, 0.3, 0.1, 0.1]
    assert [token.ping_rtt_s for token in tokens] == [0.1, 0.1, 0.12, 0.1, 0.1]
    assert [token.question for token in tokens] == [0, 0, 0, 1, 1]
    seen.replies = seen.replies[1:]
    assert isnan(seen.tokens()[0].ping_rtt_s), "no reply yet"


def test_each_proposal_has_its_length_what_stood_of_it_and_the_link_of_its_verdict() -> None:
    seen = replay_of_proposals()
    rounds = seen.rounds()
    found = [(each.question, each.step, each.length, each.num_accepted) for each in rounds]
    assert found == [(0, 0, 5, 5), (0, 6, 3, 1), (1, 0, 0, 0)]
    assert [each.judged_s for each in rounds] == pytest.approx([0.5, 2.2, 3.4])
    assert [each.injected_rtt_s for each in rounds] == [0.1, 0.3, 0.1]
    assert [each.injected_bits_per_s for each in rounds] == [8e6, None, None]
    assert [each.ping_rtt_s for each in rounds] == [0.1, 0.12, 0.1]
    assert "  rounds     3 judged, 2.7 tokens proposed in the mean" in table(seen)
    assert [len(asked["rounds"]) for asked in as_dict(seen, Config())["questions"]] == [2, 1]


def test_the_summary_for_scripts_and_for_people() -> None:
    seen = replay()
    found = summary(seen)
    assert found["median_latency_s"] == pytest.approx(0.2)
    assert found["p95_latency_s"] == pytest.approx(1.5)
    assert found["median_first_token_s"] == pytest.approx(0.45)
    assert found["tokens_per_s"] == pytest.approx(5 / 2.7)
    assert (found["device_acceptance"], found["cloud_acceptance"]) == (0.5, 0.5)
    assert (found["num_alone"], found["num_resyncs"], found["num_degraded"]) == (1, 1, 1)
    assert (found["frames_sent_bytes"], found["num_pings_lost"]) == (400, 1)
    lines = table(seen)
    assert lines[0] == "  questions  2 asked, 2 answered in 3.6 s"
    assert "  lost       device 10.0 ms and cloud 0.0 ms per token for drafts that were thrown away" in lines
    assert lines[-1].startswith("  The trace by-hand ended at 3 s; its last value holds")
    assert "  ping       median unknown; 0 of 0 lost" in table(Replay(trace=seen.trace))


def test_json_holds_what_was_applied_and_every_token() -> None:
    found = as_dict(replay(), Config())
    assert [row["time_s"] for row in found["trace"]["applied"]] == [row.time_s for row in ROWS]
    assert [len(asked["tokens"]) for asked in found["questions"]] == [3, 2]
    assert [asked["is_degraded"] for asked in found["questions"]] == [True, False]
    assert found["interfaces"]["device"]["sent_bytes"] == 1000
    assert found["settings"]["link"]["on_peer_loss"] == "continue"


def test_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot_replay(replay(), tmp_path / "dual.svg", title="by_hand")
    plot_replay(replay_of_proposals(), tmp_path / "lengths.svg", title="Lengths", mode="speculative")
    dual, lengths = (words(tmp_path / f"{name}.svg") for name in ("dual", "lengths"))
    for word in ("by the device alone (1)", "first token of an answer (2)", "100 % lost", "the trace ends"):
        assert word in dual
    for word in ("K, tokens of a proposal", "the cloud's own (1)", "rate (Mbit/s)"):
        assert word in lengths
        assert word not in dual
    plot_replay(Replay(trace=LinkSchedule("x", ROWS), took_s=0.0), tmp_path / "none.png", title="x")
    assert (tmp_path / "none.png").exists(), "of nothing, too"
