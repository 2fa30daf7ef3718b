"""`tandem ask` against a scripted Tandem."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandem.cli import main
from tandem.errors import ClusterError
from tandem.events import DoneEvent, PeerEvent, PlacementEvent, Source, SourcesEvent, TokenEvent
from tandem.side import Side

from .conftest import FakeTandem, answer_events, statistics, token

QUESTION = "Which game should Mira try?"

SHOWN = """\
Mira likes puzzle games.

Sources
  device  0.62  notes/mira.txt
  cloud   2 documents that stay there: c7, c8

Statistics
  tokens     5 in 0.70 s
  time       first token after 0.50 s, then 40 ms each
  accepted   device 100 %, cloud 80 %
  link       100 bytes out and 90 in per token, RTT 1.2 ms
  placement  device
  seed       7
"""


def test_an_answer_with_its_sources_and_statistics(
    tandem: FakeTandem, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", QUESTION, "--seed", "7"]) == 0
    shown = capsys.readouterr()
    assert shown.out == SHOWN
    stages = [line.partition("] ")[2] for line in shown.err.splitlines()]
    assert stages == [
        "nodes      2 up (device, cloud)",
        "device     1 document in 0.02 s",
        "device     a note",
        "cloud      2 documents in 0.03 s",
    ]
    assert tandem.num_closed == 1


def test_what_is_asked(tandem: FakeTandem) -> None:
    overrides = ["--set", "generation.placement=mirror", "--set", "generation.stop=END"]
    assert main(["ask", QUESTION, "--max-new-tokens", "9", "--temperature", "0.5", *overrides]) == 0
    ((address, config),) = tandem.started
    assert address == ""
    assert config.generation.temperature == 0.5
    ((question, options),) = tandem.asked
    assert question == QUESTION
    assert options.pop("seed") >= 0
    assert options == {
        "max_new_tokens": 9,
        "temperature": 0.5,
        "placement": "mirror",
        "synchronous": False,
        "draft_rule": "coupled",
        "stop": ("END",),
        "timeout_s": 120.0,
    }


def test_a_fresh_seed_each_time_and_it_is_shown(
    tandem: FakeTandem, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", QUESTION]) == main(["ask", QUESTION]) == 0
    one, other = (options["seed"] for _, options in tandem.asked)
    assert one != other
    assert f"seed       {one}\n" in capsys.readouterr().out


def test_quiet_prints_the_answer_alone(tandem: FakeTandem, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", QUESTION, "--quiet"]) == 0
    assert capsys.readouterr() == ("Mira likes puzzle games.\n", "")


def test_json_is_one_strict_object(tandem: FakeTandem, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", QUESTION, "--json", "--quiet", "--seed", "7"]) == 0

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is no JSON")

    value = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert value["answer"] == "Mira likes puzzle games."
    assert (value["question"], value["seed"], value["reason"], value["error"]) == (QUESTION, 7, "eos", None)
    assert value["sources"][0] == {"side": "device", "id": "d1", "title": "notes/mira.txt", "score": 0.62}
    assert value["tokens"][1]["cloud_accepted"] is False
    assert value["tokens"][1]["cloud_decode_s"] is None
    assert value["statistics"]["received_bytes"] == 450


@pytest.mark.parametrize("given", ["option", "setting"])
def test_a_running_cluster(tandem: FakeTandem, given: str) -> None:
    option = (
        ["--address", "10.0.0.1:6379"] if given == "option" else ["--set", "cluster.address=10.0.0.1:6379"]
    )
    assert main(["ask", QUESTION, *option]) == 0
    assert tandem.started[0][0] == "10.0.0.1:6379"


def test_the_settings_of_this_folder_are_used_and_named(
    tandem: FakeTandem, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("tandem.toml").write_text("[device]\nindex = 'mine'\n", "utf-8")
    assert main(["ask", QUESTION]) == 0
    assert tandem.started[0][1].device.index == str(Path("mine").absolute())
    assert "settings   tandem.toml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([" "], "A question must hold a word, but it is ' '; ask something."),
        (
            [QUESTION, "--temperature", "-1"],
            "generation.temperature must be a number of at least 0, but it is -1.0",
        ),
        (
            [QUESTION, "--max-new-tokens", "0"],
            "generation.max_new_tokens must be a whole number of at least 1",
        ),
        ([QUESTION, "--config", "none.toml"], "none.toml does not exist; check the path."),
    ],
)
def test_mistakes_are_found_before_anything_is_started(
    tandem: FakeTandem, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", *arguments]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert sentence in shown.err
    assert tandem.started == []


def test_a_cluster_that_is_not_there(tandem: FakeTandem, capsys: pytest.CaptureFixture[str]) -> None:
    tandem.failure = ClusterError("No cluster answers.")
    assert main(["ask", QUESTION]) == 1
    assert capsys.readouterr().err == "tandem: No cluster answers.\n"


def test_control_c_in_mid_answer_closes_and_is_130(
    tandem: FakeTandem, capsys: pytest.CaptureFixture[str]
) -> None:
    tandem.script = [*answer_events()[:4], KeyboardInterrupt()]
    assert main(["ask", QUESTION, "--quiet"]) == 130
    assert capsys.readouterr() == ("Mira likes\n", "\ntandem: interrupted\n")
    assert tandem.num_closed == 1


def test_a_failed_answer_shows_what_there_is_and_says_why(
    tandem: FakeTandem, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = DoneEvent(reason="failed", statistics=statistics(num_tokens=1), error="The cloud was lost.")
    tandem.script = [token(0, " Mira"), failed]
    assert main(["ask", QUESTION]) == 1
    shown = capsys.readouterr()
    assert shown.out.startswith("Mira\n")
    assert "ended by a failure" in shown.out
    assert shown.err.endswith("tandem: The cloud was lost.\n")


def test_an_answer_that_just_ends(tandem: FakeTandem, capsys: pytest.CaptureFixture[str]) -> None:
    tandem.script = []
    assert main(["ask", QUESTION, "--quiet"]) == 1
    assert capsys.readouterr() == (
        "",
        "tandem: The answer ended without a result; see `tandem status`, then ask again.\n",
    )


def test_an_answer_of_no_tokens(tandem: FakeTandem, capsys: pytest.CaptureFixture[str]) -> None:
    tandem.script = [DoneEvent(reason="eos", statistics=statistics(num_tokens=0, first_token_s=float("nan")))]
    assert main(["ask", QUESTION]) == 0
    shown = capsys.readouterr().out
    assert "first token after ?, then no other" in shown
    assert "device -, cloud -" in shown
    assert "none: the models answered from the question alone" in shown


def test_sources_without_scores_and_many_ids(tandem: FakeTandem, capsys: pytest.CaptureFixture[str]) -> None:
    device = tuple(Source(side=Side.DEVICE, id=f"d{n}", title=f"note-{n}.md") for n in (2, 1))
    cloud = tuple(Source(side=Side.CLOUD, id=f"c{n}") for n in range(5))
    nan = float("nan")
    tandem.script = [
        SourcesEvent(side=Side.CLOUD, sources=cloud, retrieve_s=nan, prefill_s=nan),
        SourcesEvent(side=Side.DEVICE, sources=device, retrieve_s=0.01, prefill_s=nan),
        token(0, "Yes"),
        DoneEvent(reason="eos", statistics=statistics()),
    ]
    assert main(["ask", QUESTION]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[2:6] == [
        "Sources",
        "  device  note-2.md",
        "  device  note-1.md",
        "  cloud   5 documents that stay there: c0, c1, c2, and 2 more",
    ]
    assert "nan" not in shown.out + shown.err


def test_a_lost_peer_and_a_switch_are_told(tandem: FakeTandem, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = [event for event in answer_events() if isinstance(event, TokenEvent)]
    tandem.script = [
        *tokens[:2],
        PlacementEvent(step=2, aggregator=Side.CLOUD),
        PeerEvent(step=2, is_alone=True),
        *tokens[2:],
        PeerEvent(step=5, is_alone=False),
        DoneEvent(reason="length", statistics=statistics(degraded_from=2)),
    ]
    assert main(["ask", QUESTION]) == 0
    shown = capsys.readouterr()
    assert "cloud      lost at token 2, the device goes on alone" in shown.err
    assert "cloud      back at token 5" in shown.err
    assert "placement  device, cloud from token 2" in shown.out
    assert "degraded   from token 2 on the device answered without the cloud" in shown.out
    assert "5 in 0.70 s, ended by its limit" in shown.out
