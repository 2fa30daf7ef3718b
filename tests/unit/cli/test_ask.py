"""`tandem ask` against a scripted Tandem."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

from tandem.cli import main
from tandem.cluster import registry
from tandem.cluster.registry import Entry
from tandem.config.sampling import SamplingParams
from tandem.errors import ClusterError
from tandem.events import (
    DoneEvent,
    EstimateEvent,
    PeerEvent,
    PlacementEvent,
    ProvisionalEvent,
    RetractEvent,
    RoundEvent,
    Source,
    SourcesEvent,
    TokenEvent,
)
from tandem.system.paths import state_folder
from tandem.topology import Party

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
  placement  mirror
  verdicts   each party decided all 5 itself
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
    overrides = ["--set", "decoding.placement=mirror", "--set", "sampling.stop=END"]
    assert main(["ask", QUESTION, "--max-new-tokens", "9", "--temperature", "0.5", *overrides]) == 0
    ((address, config),) = tandem.started
    assert address == ""
    assert config.sampling.max_new_tokens == 9
    assert config.sampling.temperature == 0.5
    assert config.decoding.placement == "mirror"
    assert config.sampling.stop == ("END",)
    ((question, options),) = tandem.asked
    assert question == QUESTION
    assert options.pop("seed") >= 0
    assert options == {"only": None, "show_drafts": False, "resumable": True}, "the settings say the rest"


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
    assert value["sources"][0] == {
        "party": "device",
        "id": "d1",
        "title": "notes/mira.txt",
        "score": 0.62,
        "text": "Mira likes\npuzzle games.",
        "page": None,
        "metadata": {"source": "notes/mira.txt", "year": 2024},
    }
    assert value["sources"][1]["text"] is None
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


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Entry:
    """A node that `tandem up` started here: this process; its cluster answers."""
    entry = Entry(party=Party.DEVICE, node={"address": "10.0.0.2:6379", "pid": os.getpid()}, token="secret")
    state_folder().mkdir(parents=True)
    registry.register(entry)
    monkeypatch.setattr("tandem.cluster.registry.is_listening", lambda address: True)
    return entry


def test_the_cluster_that_runs_here_is_asked_and_named(
    tandem: FakeTandem, registered: Entry, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", QUESTION]) == 0
    assert tandem.started[0][0] == registered.address
    assert "cluster    10.0.0.2:6379 is running here (tandem up device)\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "address"),
    [
        (["--address", "10.0.0.1:6379", "--set", "cluster.address=10.0.0.3:6379"], "10.0.0.1:6379"),
        (["--set", "cluster.address=10.0.0.3:6379"], "10.0.0.3:6379"),
        (["--fresh", "--set", "cluster.address=10.0.0.3:6379"], ""),
        (["--fresh"], ""),
    ],
)
def test_which_cluster_counts(tandem: FakeTandem, registered: Entry, option: list[str], address: str) -> None:
    assert main(["ask", QUESTION, *option]) == 0
    assert tandem.started[0][0] == address


def test_settings_that_count_for_nothing_there_are_named(
    tandem: FakeTandem, registered: Entry, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.register(replace(registered, settings={"codec.depth": "5", "device.dtype": '"bfloat16"'}))
    settings = ["--set", "device.index=./mine", "--set", "codec.depth=9", "--set", "device.dtype=bfloat16"]
    unknown_there = ["--set", "cloud.index=./pages", "--set", "device.num_documents=2"]
    assert main(["ask", QUESTION, *settings, *unknown_there]) == 0
    note = 'settings   what runs here was started with device.index = "bundled", codec.depth = 5; for yours, use '
    assert note in capsys.readouterr().err
    note = "settings   what runs here was started with codec.depth = 5; for yours"
    assert main(["ask", QUESTION, "--set", "codec.name=top_p", "--set", "codec.depth=9"]) == 0
    assert note in capsys.readouterr().err, "top_p is there with auto, that p is not"
    assert main(["ask", QUESTION]) == 0
    assert "settings" not in capsys.readouterr().err


@pytest.mark.parametrize("case", ["its process has ended", "its head does not answer"])
def test_a_cluster_that_is_gone_stops_no_question(
    tandem: FakeTandem,
    registered: Entry,
    case: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if case == "its process has ended":
        file = state_folder() / "device.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"started_s": 1.0}))
    else:
        monkeypatch.setattr("tandem.cluster.registry.is_listening", lambda address: False)
    assert main(["ask", QUESTION]) == 0
    assert tandem.started[0][0] == ""
    assert (
        "cluster    10.0.0.2:6379, which `tandem up device` started here, no longer answers; `tandem down` forgets it\n"
        in capsys.readouterr().err
    )


def test_fresh_and_an_address_exclude_each_other(
    tandem: FakeTandem, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", QUESTION, "--fresh", "--address", "10.0.0.1:6379"]) == 2
    assert (
        "--fresh starts a cluster for this question; leave out --address; see `tandem ask --help`."
        in capsys.readouterr().err
    )
    assert tandem.started == []


def test_the_settings_of_this_folder_are_used_and_named(
    tandem: FakeTandem, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("tandem.toml").write_text("[device]\nindex = 'mine'\n", "utf-8")
    assert main(["ask", QUESTION]) == 0
    assert tandem.started[0][1].device.index == str(Path("mine").absolute())
    assert "settings   tandem.toml" in capsys.readouterr().err


def test_a_federated_question_can_be_asked_at_a_worker(tandem: FakeTandem) -> None:
    workers = ["workers.alice.num_documents=0", "workers.bob.num_documents=0", "decoding.mode=federated"]
    settings = [part for setting in workers for part in ("--set", setting)]
    assert main(["ask", QUESTION, *settings, "--home", "alice"]) == 0
    ((_, config),) = tandem.started
    assert config.decoding.home == "alice"


def test_options_that_are_settings(tandem: FakeTandem) -> None:
    options = [
        "--placement",
        "cloud",
        "--stop",
        "books",
        "--stop",
        'a "b"\n\x7f',
        "--num-documents",
        "cloud:9",
    ]
    assert main(["ask", QUESTION, *options]) == 0
    assert main(["ask", QUESTION, "--num-documents", "3", "--num-documents", "device:0"]) == 0
    (_, config), (_, other) = tandem.started
    assert config.decoding.placement == "cloud"
    assert config.sampling.stop == ("books", 'a "b"\n\x7f')
    assert (config.device.num_documents, config.cloud.num_documents) == (4, 9)
    assert (other.device.num_documents, other.cloud.num_documents) == (0, 3)


def test_a_wrong_value_of_such_an_option(tandem: FakeTandem, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", QUESTION, "--placement", "clod"]) == 1
    assert capsys.readouterr().err == (
        "tandem: The setting decoding.placement must be one of device, cloud, greedy, mirror, "
        "MODULE:FUNCTION, but it is 'clod'; "
        'the nearest is "cloud".\n'
    )
    assert tandem.started == []


def test_every_sampling_option_becomes_a_setting(tandem: FakeTandem) -> None:
    """A new field of SamplingParams needs no edit of the command line."""
    names = [field.name for field in fields(SamplingParams)]
    words = [word for name in names for word in (f"--{name.replace('_', '-')}", "1")]
    assert main(["ask", QUESTION, *words, "--stop", "two words"]) == 0
    ((_, config),) = tandem.started
    assert asdict(config.sampling) == {**dict.fromkeys(names, 1), "stop": ("1", "two words")}


def test_filters(tandem: FakeTandem) -> None:
    """What is typed may be a text or a number; a key that comes again widens."""
    deep = "[" * 60_000
    given = [
        "device:source=a=b.md",
        "cloud:year=2024",
        "cloud:year=2025",
        "cloud:kind=true",
        f"cloud:a={deep}",
    ]
    assert main(["ask", QUESTION, *(word for each in given for word in ("--filter", each))]) == 0
    ((_, options),) = tandem.asked
    assert options["device_filter"] == {"source": ["a=b.md"]}
    assert options["cloud_filter"] == {
        "year": ["2024", 2024, "2025", 2025],
        "kind": ["true", True],
        "a": [deep],
    }


@pytest.mark.parametrize("given", ["source=a.md", "moon:source=a.md", "device:source", "device:=a.md"])
def test_what_is_no_filter(given: str, tandem: FakeTandem, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", QUESTION, "--filter", given]) == 2
    assert capsys.readouterr().err == (
        f"tandem: --filter must be PARTY:KEY=VALUE, such as device:source=notes.md (got {given!r}).\n"
    )
    assert tandem.started == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([" "], "The question is empty (got ' '); ask something."),
        ([""], "The question is empty (got ''); ask something."),
        (
            [QUESTION, "--temperature", "-1"],
            "sampling.temperature must be a number of at least 0, but it is -1;",
        ),
        (
            [QUESTION, "--max-new-tokens", "0"],
            "sampling.max_new_tokens must be a whole number of at least 1",
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


@pytest.mark.parametrize("text", ["", " Mira"])
def test_a_failed_answer_shows_its_text_and_the_error_and_no_more(
    tandem: FakeTandem, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    failed = DoneEvent(reason="failed", statistics=statistics(num_tokens=1), error="The cloud was lost.")
    tandem.script = [*([token(0, text)] if text else []), failed]
    assert main(["ask", QUESTION]) == 1
    shown = capsys.readouterr()
    assert shown.out == ("Mira\n" if text else "")
    assert shown.err.splitlines()[1:] == ["tandem: The cloud was lost."]


def test_a_failed_answer_in_json_has_its_error(
    tandem: FakeTandem, capsys: pytest.CaptureFixture[str]
) -> None:
    tandem.script = [DoneEvent(reason="failed", statistics=statistics(), error="The cloud was lost.")]
    assert main(["ask", QUESTION, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"] == "The cloud was lost."


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
    device = tuple(Source(party=Party.DEVICE, id=f"d{n}", title=f"note-{n}.md") for n in (2, 1))
    cloud = tuple(Source(party=Party.CLOUD, id=f"c{n}") for n in range(5))
    nan = float("nan")
    tandem.script = [
        SourcesEvent(party=Party.CLOUD, sources=cloud, retrieve_s=nan, prefill_s=nan),
        SourcesEvent(party=Party.DEVICE, sources=device, retrieve_s=0.01, prefill_s=nan),
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


def test_notes_that_come_amid_the_text_are_told_after_it(
    tandem: FakeTandem, capsys: pytest.CaptureFixture[str]
) -> None:
    nan, note = float("nan"), "The cloud has no document."
    tandem.script = [
        token(0, "Yes"),
        SourcesEvent(party=Party.CLOUD, sources=(), retrieve_s=nan, prefill_s=nan, notes=(note,)),
        DoneEvent(reason="eos", statistics=statistics()),
    ]
    assert main(["ask", QUESTION]) == 0
    assert note in capsys.readouterr().err
    assert main(["ask", QUESTION, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == [f"cloud: {note}"]


def test_a_lost_peer_and_a_switch_are_told(tandem: FakeTandem, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = [event for event in answer_events() if isinstance(event, TokenEvent)]
    tandem.script = [
        *tokens[:2],
        PlacementEvent(step=2, aggregator=Party.CLOUD),
        PeerEvent(step=2, is_alone=True),
        *tokens[2:],
        PeerEvent(step=5, is_alone=False),
        DoneEvent(reason="length", statistics=statistics(degraded_from=2)),
    ]
    assert main(["ask", QUESTION, "--set", "decoding.placement=device"]) == 0
    shown = capsys.readouterr()
    assert "cloud      lost at token 2, the device continues alone" in shown.err
    assert "cloud      back at token 5" in shown.err
    assert "placement  device, cloud from token 2" in shown.out
    assert "degraded   from token 2 on the device answered without the cloud" in shown.out
    assert "5 in 0.70 s, ended by its limit" in shown.out


def estimate(step: int, **changes: object) -> EstimateEvent:
    nan = float("nan")
    values: dict[str, object] = {
        "aggregator": Party.DEVICE,
        "chosen": Party.CLOUD,
        "delta_z_s": 0.0123456789,
        "device_decode_s": 0.04,
        "cloud_decode_s": nan,
        "device_acceptance": 0.5,
        "cloud_acceptance": 0.75,
        "rtt_s": 0.1,
        "rtt_average_s": 0.1,
        "bytes_per_s": float("inf"),
        "assumed": (),
    }
    return EstimateEvent(step=step, **values | changes)  # type: ignore[arg-type]


def test_estimates_and_handovers_in_json_and_no_word_of_estimates_to_a_person(
    tandem: FakeTandem, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = [event for event in answer_events() if isinstance(event, TokenEvent)]
    told = [tokens[0], estimate(0), tokens[1], PlacementEvent(step=2, aggregator=Party.CLOUD)]
    told += [replace(event, aggregator=Party.CLOUD) for event in tokens[2:]]
    tandem.script = [
        *told,
        estimate(4, assumed=("A sentence.",)),
        DoneEvent(reason="eos", statistics=statistics()),
    ]
    assert main(["ask", QUESTION, "--set", "decoding.placement=greedy"]) == 0
    shown = capsys.readouterr()
    assert "placement  greedy, cloud from token 2\n" in shown.out
    assert "verdicts   device 2, cloud 3; 1 handover\n" in shown.out
    assert "stimate" not in shown.out + shown.err
    assert main(["ask", QUESTION, "--json", "--quiet"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["placements"] == [{"step": 2, "aggregator": "cloud"}]
    first, second = value["estimates"]
    assert first == {
        "step": 0,
        "aggregator": "device",
        "chosen": "cloud",
        "delta_z_s": 0.012346,
        "device_decode_s": 0.04,
        "device_acceptance": 0.5,
        "cloud_acceptance": 0.75,
        "rtt_s": 0.1,
        "rtt_average_s": 0.1,
    }
    assert second["assumed"] == ["A sentence."]


def test_many_handovers_are_counted_rather_than_listed(
    tandem: FakeTandem, capsys: pytest.CaptureFixture[str]
) -> None:
    switches = [
        PlacementEvent(step=step, aggregator=(Party.CLOUD, Party.DEVICE)[step % 2]) for step in range(1, 7)
    ]
    tokens = [token(step, " yes") for step in range(7)]
    last = PlacementEvent(step=7, aggregator=Party.DEVICE)  # of no token
    tandem.script = [*tokens, *switches, last, DoneEvent(reason="eos", statistics=statistics())]
    assert main(["ask", QUESTION, "--set", "decoding.placement=greedy"]) == 0
    shown = capsys.readouterr().out
    assert "device from token 1, cloud from token 2, device from token 3, and 3 more\n" in shown
    assert "; 6 handovers\n" in shown


def test_under_mirror_nobody_aggregates_for_the_other(
    tandem: FakeTandem, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", QUESTION, "--set", "decoding.placement=mirror"]) == 0
    assert "verdicts   each party decided all 5 itself\n" in capsys.readouterr().out


def test_only_one_party(tandem: FakeTandem, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", QUESTION, "--only", "device", "--seed", "7"]) == 0
    ((_, options),) = tandem.asked
    assert options["only"] is Party.DEVICE
    shown = capsys.readouterr().out
    assert "  alone      the device answered by itself, nothing crossed the link\n" in shown
    assert "accepted" not in shown
    assert main(["ask", QUESTION, "--only", "cloud", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["alone"] == "cloud"


def provisional_events() -> list[object]:
    tokens = [event for event in answer_events() if isinstance(event, TokenEvent)]
    return [
        ProvisionalEvent(step=0, token=100, text=" Mira", shown_at_s=0.1),
        ProvisionalEvent(step=1, token=7, text=" hates", shown_at_s=0.2),
        tokens[0],
        RetractEvent(step=1),
        *tokens[1:],
        DoneEvent(reason="eos", statistics=statistics()),
    ]


def test_provisional_text_is_rewritten_on_a_terminal_only(
    tandem: FakeTandem, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tandem.script = provisional_events()  # type: ignore[assignment]
    assert main(["ask", QUESTION, "--provisional", "--quiet"]) == 0
    assert capsys.readouterr().out == "Mira likes puzzle games.\n", "no terminal: committed text alone"
    ((_, options),) = tandem.asked
    assert options["show_drafts"] is True
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["ask", QUESTION, "--provisional", "--quiet"]) == 0
    assert "\x1b[2mMira hates\x1b[0m" in capsys.readouterr().out
    assert main(["ask", QUESTION, "--quiet"]) == 0
    assert capsys.readouterr().out == "Mira likes puzzle games.\n"


def test_provisional_tokens_in_json(tandem: FakeTandem, capsys: pytest.CaptureFixture[str]) -> None:
    tandem.script = provisional_events()  # type: ignore[assignment]
    assert main(["ask", QUESTION, "--provisional", "--json", "--quiet"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["answer"] == "Mira likes puzzle games."
    told = {"token": 100, "text": " Mira", "shown_at_s": 0.1}
    assert value["provisional"][0] == {"event": "provisional", "committed": 0, "step": 0, **told}
    assert value["provisional"][2] == {"event": "retract", "committed": 1, "step": 1}


def test_the_passages_of_the_device_are_shown_when_asked_for(
    tandem: FakeTandem, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", QUESTION, "--quiet", "--show-sources"]) == 0
    assert capsys.readouterr().out == (
        "Mira likes puzzle games.\n\nSources\n  device  0.62  notes/mira.txt\n    Mira likes\n    puzzle games.\n"
        "  cloud   2 documents that stay there: c7, c8\n"
    )


def test_a_page_is_named(tandem: FakeTandem, capsys: pytest.CaptureFixture[str]) -> None:
    source = Source(party=Party.DEVICE, id="d1", title="a.pdf", page=3, text="x\x1b[31mred", score=0.5)
    tandem.script = [
        SourcesEvent(party=Party.DEVICE, sources=(source,), retrieve_s=0.0, prefill_s=0.0),
        token(0, "Yes"),
        DoneEvent(reason="eos", statistics=statistics()),
    ]
    assert main(["ask", QUESTION, "--show-sources"]) == 0
    shown = capsys.readouterr().out
    assert "  device  0.50  a.pdf, page 3\n    x[31mred\n" in shown, "nothing that moves the cursor"


def test_a_line_is_named(tandem: FakeTandem, capsys: pytest.CaptureFixture[str]) -> None:
    source = Source(party=Party.DEVICE, id="d1", title="a.jsonl", text="x", score=0.5, metadata={"line": 2})
    tandem.script = [
        SourcesEvent(party=Party.DEVICE, sources=(source,), retrieve_s=0.0, prefill_s=0.0),
        token(0, "Yes"),
        DoneEvent(reason="eos", statistics=statistics()),
    ]
    assert main(["ask", QUESTION]) == 0
    assert "  device  0.50  a.jsonl, line 2\n" in capsys.readouterr().out


def test_the_bundled_model_with_other_documents_is_noted_once(
    tandem: FakeTandem, capsys: pytest.CaptureFixture[str]
) -> None:
    note = (
        "tandem: The bundled model is a demonstration that can read the bundled documents only, but device.index names "
        "others; set device.model and cloud.model to a model of your own.\n"
    )
    assert main(["ask", QUESTION, "--set", "device.index=/mine"]) == 0
    assert capsys.readouterr().err.count(note) == 1
    own_models = ["--set", "device.model=./a", "--set", "cloud.model=./b"]
    assert main(["ask", QUESTION, "--set", "device.index=/mine", *own_models]) == 0
    assert main(["ask", QUESTION, "--set", "cloud.index=/mine", "--set", "cloud.num_documents=0"]) == 0
    assert "demonstration" not in capsys.readouterr().err


def test_in_mode_speculative_only_the_device_proposes(
    tandem: FakeTandem, capsys: pytest.CaptureFixture[str]
) -> None:
    *told, done = answer_events()
    rounds = [RoundEvent(step=step, length=step + 1, num_accepted=1, judged_s=0.1) for step in range(4)]
    tandem.script = [*told, *rounds, done]
    assert main(["ask", QUESTION, "--mode", "speculative", "--length-policy", "best"]) == 0
    shown = capsys.readouterr().out
    accepted = "100 % of the tokens as the device proposed them, the others are the cloud's"
    assert f"\n  accepted   {accepted}\n  proposals  4, of 2.5 tokens on average\n" in shown
    assert main(["ask", QUESTION, "--mode", "speculative", "--json", "--quiet"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["rounds"][1] == {"step": 1, "length": 2, "num_accepted": 1, "judged_s": 0.1}


def test_the_runtime_inline_starts_its_own_parties_whatever_runs_here(
    tandem: FakeTandem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tandem.cluster.registry.find_local", lambda *_: pytest.fail("a cluster was looked for")
    )
    assert main(["ask", QUESTION, "--runtime", "inline", "--quiet"]) == 0
    ((address, config),) = tandem.started
    assert (address, config.cluster.runtime) == ("", "inline")


def test_an_address_and_the_runtime_inline_are_one_sentence(
    tandem: FakeTandem, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", QUESTION, "--runtime", "inline", "--address", "10.0.0.1:6379"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "tandem: --address names a running Ray cluster (got '10.0.0.1:6379'), but the runtime is \"inline\"; leave out "
        "one of them."
    )
    assert tandem.started == []
