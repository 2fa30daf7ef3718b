"""`tandem ask` against a scripted Tandem."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest

from tandem.config.schema import SamplingParams
from tandem.events import (
    DoneEvent,
    EstimateEvent,
    Event,
    PeerEvent,
    PlacementEvent,
    ProvisionalEvent,
    RetractEvent,
    Source,
    SourcesEvent,
    StopReason,
    TokenEvent,
)
from tandem.plugins.ray import registry
from tandem.plugins.ray.nodes import NodeInfo
from tandem.system.paths import state_folder
from tandem.topology import Party

from .conftest import FakeTandem, Run, Shown, answer_events, statistics, token

QUESTION = "Which game should Mira try?"
NAN = float("nan")
TOKENS = [event for event in answer_events() if isinstance(event, TokenEvent)]


Ask = Callable[..., Shown]


@pytest.fixture
def ask(tandem: FakeTandem, run: Run) -> Ask:
    """Asks QUESTION; `events` is the script of the answer, if another than the usual."""

    def ask(*options: str, events: Sequence[Event | BaseException] | None = None) -> Shown:
        if events is not None:
            tandem.script = events
        return run("ask", QUESTION, *options)

    return ask


def done(reason: StopReason = "eos", error: str | None = None, **changes: Any) -> DoneEvent:
    return DoneEvent(reason=reason, statistics=statistics(**changes), error=error)


def sources(*found: Source, party: Party = Party.DEVICE, **changes: Any) -> SourcesEvent:
    values: dict[str, Any] = {"retrieve_s": NAN, "prefill_s": NAN}
    return SourcesEvent(party=party, sources=found, **values | changes)


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


def test_an_answer_with_its_sources_and_statistics(ask: Ask, tandem: FakeTandem) -> None:
    shown = ask("--seed", "7")
    assert (shown.code, shown.out) == (0, SHOWN)
    assert [line.partition("] ")[2] for line in shown.err.splitlines()] == [
        "nodes      2 up (device, cloud)",
        "device     1 document in 0.02 s",
        "device     a note",
        "cloud      2 documents in 0.03 s",
    ]
    assert tandem.num_closed == 1
    assert ask("--quiet") == (0, "Mira likes puzzle games.\n", "")


def test_json_is_one_strict_object(ask: Ask) -> None:
    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is no JSON")

    value = json.loads(ask("--json", "--quiet", "--seed", "7").out, parse_constant=refuse)
    assert value["answer"] == "Mira likes puzzle games."
    assert (value["question"], value["seed"], value["reason"], value["error"]) == (QUESTION, 7, "eos", None)
    assert [source["text"] for source in value["sources"]] == ["Mira likes\npuzzle games.", None, None]
    assert value["tokens"][1]["cloud_accepted"] is False
    assert value["tokens"][1]["cloud_decode_s"] is None
    assert value["statistics"]["received_bytes"] == 450


# ---- which cluster ---------------------------------------------------------------------------------------------


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> NodeInfo:
    """A node that `tandem up` started here: this process; its cluster answers."""
    node = NodeInfo("device", "10.0.0.2:6379", os.getpid(), "", "", token="secret")
    state_folder().mkdir(parents=True)
    registry.register(node)
    monkeypatch.setattr("tandem.plugins.ray.registry.is_listening", lambda address: True)
    return node


@pytest.mark.parametrize(
    ("options", "address"),
    [
        ([], "10.0.0.2:6379"),
        (["--address", "10.0.0.1:6379"], "10.0.0.1:6379"),
        (["--fresh"], ""),
        (["--runtime", "inline"], ""),
        (["--runtime", "ray"], "10.0.0.2:6379"),
    ],
)
def test_which_cluster_counts(
    ask: Ask, tandem: FakeTandem, registered: NodeInfo, options: list[str], address: str
) -> None:
    shown = ask(*options)
    assert tandem.started[0][0] == address
    is_named = "cluster    10.0.0.2:6379 is running here (tandem up device)\n" in shown.err
    assert is_named == (address == "10.0.0.2:6379")


@pytest.mark.parametrize("case", ["its process has ended", "its head does not answer"])
def test_a_cluster_that_is_gone_stops_no_question(
    ask: Ask, tandem: FakeTandem, registered: NodeInfo, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case == "its process has ended":
        file = state_folder() / "device.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"started_s": 1.0}))
    else:
        monkeypatch.setattr("tandem.plugins.ray.registry.is_listening", lambda address: False)
    shown = ask()
    assert tandem.started[0][0] == ""
    assert (
        "cluster    10.0.0.2:6379, which `tandem up device` started here, no longer answers; `tandem down` forgets it\n"
        in shown.err
    )


# ---- options ---------------------------------------------------------------------------------------------------


def test_every_sampling_option_becomes_a_setting(ask: Ask, tandem: FakeTandem) -> None:
    """A new field of SamplingParams needs no edit of the command line."""
    names = [field.name for field in fields(SamplingParams)]
    words = [word for name in names for word in (f"--{name.replace('_', '-')}", "1")]
    ask(*words, "--stop", "two words")
    assert asdict(tandem.started[0][1].sampling) == {**dict.fromkeys(names, 1), "stop": ("1", "two words")}


def test_no_option_brings_a_cloud_to_notes_alone(ask: Ask, tandem: FakeTandem) -> None:
    settings = '[device]\nmodel = "a.gguf"\n[cloud]\nmodel = "a.gguf"\nnum_documents = 0\n'
    Path("tandem.toml").write_text(settings, "utf-8")
    ask("--num-documents", "3", "--device-model", "b.gguf")
    ask("--num-documents", "3", "--set", "cloud.num_documents=2")
    (_, alone), (_, both) = tandem.started
    assert (alone.device.num_documents, alone.cloud.num_documents, alone.is_alone) == (3, 0, True)
    assert (both.device.num_documents, both.cloud.num_documents) == (3, 3)


def test_filters(ask: Ask, tandem: FakeTandem) -> None:
    """What is typed may be a text or a number; a key that comes again widens."""
    deep = "[" * 60_000
    given = [
        "device:source=a=b.md",
        "cloud:year=2024",
        "cloud:year=2025",
        "cloud:kind=true",
        f"cloud:a={deep}",
    ]
    ask(*(word for each in given for word in ("--filter", each)))
    ((_, options),) = tandem.asked
    assert options["device_filter"] == {"source": ["a=b.md"]}
    years = ["2024", 2024, "2025", 2025]
    assert options["cloud_filter"] == {"year": years, "kind": ["true", True], "a": [deep]}


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["--placement", "clod"], 1, "--placement must be device, cloud, greedy, mirror, "),
        (["--config", "none.toml"], 1, "none.toml does not exist; check the path."),
        (["--fresh", "--address", "10.0.0.1:6379"], 2,
         "--fresh starts parties of its own; leave out --address; see `tandem ask --help`."),
        (["--join", "tandem://x", "--fresh"], 2,
         "--join runs the device here; leave out --address and --fresh; see `tandem ask --help`."),
        (["--runtime", "inline", "--address", "10.0.0.1:6379"], 1,
         "--address names a running Ray cluster (got '10.0.0.1:6379'), but the runtime is \"inline\"; leave out one "
         "of them."),
        *((["--filter", given], 2,
           f"--filter must be PARTY:KEY=VALUE, such as device:source=notes.md (got {given!r}); see")
          for given in ("source=a.md", "moon:source=a.md", "device:source", "device:=a.md")),
    ],
)  # fmt: skip
def test_mistakes_are_found_before_anything_is_started(
    ask: Ask, tandem: FakeTandem, options: list[str], code: int, sentence: str
) -> None:
    shown = ask(*options)
    assert (shown.code, shown.out, shown.err.count("\n")) == (code, "", 1)
    assert sentence in shown.err
    assert tandem.started == []


# ---- answers that go another way ---------------------------------------------------------------------------------


def test_control_c_in_mid_answer_closes_and_is_130(ask: Ask, tandem: FakeTandem) -> None:
    shown = ask("--quiet", events=[*answer_events()[:4], KeyboardInterrupt()])
    assert shown == (130, "Mira likes\n", "\ntandem: interrupted\n")
    assert tandem.num_closed == 1


@pytest.mark.parametrize("text", ["", " Mira"])
def test_a_failed_answer_shows_its_text_and_the_error_and_no_more(ask: Ask, text: str) -> None:
    failed = done("failed", "The cloud was lost.", num_tokens=1)
    shown = ask(events=[*([token(0, text)] if text else []), failed])
    assert (shown.code, shown.out) == (1, "Mira\n" if text else "")
    assert shown.err.splitlines()[1:] == ["tandem: The cloud was lost."]
    assert json.loads(ask("--json").out)["error"] == "The cloud was lost."


def test_an_answer_that_fell_silent_says_so(ask: Ask) -> None:
    sentence = "The answer ends after 5 tokens, since nothing came for 9 s."
    shown = ask(events=[*TOKENS, done("length", sentence)])
    assert shown.code == 4
    assert shown.err.splitlines()[-1] == f"tandem: {sentence}"
    assert json.loads(ask("--json").out)["notes"] == [sentence]


@pytest.mark.parametrize(
    ("reason", "degraded_from", "code"),
    [("eos", 2, 3), ("length", None, 4), ("length", 0, 4), ("cancelled", 0, 1), ("loop", None, 0)],
)
@pytest.mark.parametrize("options", ["", "--json", "--quiet"])
def test_scripts_know_an_answer_that_is_not_whole(
    ask: Ask, run: Run, tmp_path: Path, reason: StopReason, degraded_from: int | None, code: int, options: str
) -> None:
    assert ask(*options.split(), events=[*TOKENS, done(reason, degraded_from=degraded_from)]).code == code
    (file := tmp_path / "questions").write_text("Which?\nWhat?", "utf-8")
    assert run("ask", "--file", str(file), *options.split()).code == code


MANY_SWITCHES: list[Event] = [
    *(token(step, " yes") for step in range(7)),
    *(PlacementEvent(step=step, aggregator=(Party.CLOUD, Party.DEVICE)[step % 2]) for step in range(1, 7)),
    PlacementEvent(step=7, aggregator=Party.DEVICE),  # of no token
    done(),
]
LOST_AND_BACK: list[Event] = [
    *TOKENS[:2],
    PlacementEvent(step=2, aggregator=Party.CLOUD),
    PeerEvent(step=2, is_alone=True),
    *TOKENS[2:],
    PeerEvent(step=5, is_alone=False),
    done("length", degraded_from=2),
]
UNSCORED: list[Event] = [
    sources(*(Source(party=Party.CLOUD, id=f"c{n}") for n in range(5)), party=Party.CLOUD),
    sources(*(Source(party=Party.DEVICE, id=f"d{n}", title=f"note-{n}.md") for n in (2, 1))),
    token(0, "Yes"),
    done(),
]


@pytest.mark.parametrize(
    ("options", "events", "lines"),
    [
        ("", [done(num_tokens=0, first_token_s=NAN)],
         ["  none: the models answered from the question alone",
          "  time       first token after ?, then no other",
          "  accepted   device -, cloud -"]),
        ("", UNSCORED,
         ["Sources", "  device  note-2.md", "  device  note-1.md",
          "  cloud   5 documents that stay there: c0, c1, c2, and 2 more"]),
        ("--placement device", LOST_AND_BACK,
         ["cloud      lost at token 2, the device continues alone",
          "cloud      back at token 5",
          "  tokens     5 in 0.70 s, ended by its limit",
          "  placement  device, 1 handover",
          "  degraded   from token 2 on the device answered without the cloud"]),
        ("--set decoding.patience_s=0.2", [*TOKENS, done(num_late_votes=2)],
         ["  placement  device", "  patience   2 of 5 tokens without the cloud's vote, later than 0.2 s"]),
        ("--placement greedy", MANY_SWITCHES, ["  placement  greedy, 6 handovers", "  verdicts   device 7"]),
        ("--only device", answer_events(),
         ["  alone      the device answered by itself, nothing crossed the link"]),
        ("--mode speculative", [*answer_events()[:-1], done()],
         ["  accepted   100 % of the tokens as the device proposed them, the others are the cloud's"]),
        ("", [token(0, "Yes"), sources(party=Party.CLOUD, notes=("It has no document.",)), done()],
         ["cloud      It has no document."]),
        ("", [sources(Source(party=Party.DEVICE, id="d", title="a.jsonl", score=0.5, metadata={"line": 2})), done()],
         ["  device  0.50  a.jsonl, line 2"]),
        ("--show-sources",
         [sources(Source(party=Party.DEVICE, id="d", title="a.pdf", page=3, text="x\x1b[31mred")), done()],
         ["  device  a.pdf, page 3", "    x[31mred"]),
    ],
    ids=["no tokens", "no scores", "a peer lost", "late votes", "handovers", "alone", "speculative", "notes amid text",
         "a line", "a page"],
)  # fmt: skip
def test_what_is_said_of_an_answer(ask: Ask, options: str, events: list[Event], lines: list[str]) -> None:
    """lines: some of those on stderr, without their times, then of those on stdout, in their order."""
    shown = ask(*options.split(), events=events)
    assert shown.code == (4 if events is LOST_AND_BACK else 0)
    written = [line.partition("] ")[2] for line in shown.err.splitlines()] + shown.out.splitlines()
    assert [line for line in written if line in lines] == lines
    assert "nan" not in shown.out + shown.err
    assert ("accepted" in shown.out) == ("--only" not in options)


def estimate(step: int, **changes: Any) -> EstimateEvent:
    values: dict[str, Any] = {
        "aggregator": Party.DEVICE,
        "chosen": Party.CLOUD,
        "delta_z_s": 0.0123456789,
        "device_decode_s": 0.04,
        "cloud_decode_s": NAN,
        "device_acceptance": 0.5,
        "cloud_acceptance": 0.75,
        "rtt_s": 0.1,
        "rtt_average_s": 0.1,
        "bytes_per_s": float("inf"),
        "assumed": (),
    }
    return EstimateEvent(step=step, **values | changes)


def test_what_only_json_says(ask: Ask, tandem: FakeTandem) -> None:
    """Estimates, handovers, drafts that came to nothing, and who answered alone."""
    events = [
        ProvisionalEvent(step=0, token=100, text=" Mira", shown_at_s=0.1),
        ProvisionalEvent(step=1, token=7, text=" hates", shown_at_s=0.2),
        TOKENS[0],
        RetractEvent(step=1),
        estimate(0),
        TOKENS[1],
        PlacementEvent(step=2, aggregator=Party.CLOUD),
        *(replace(event, aggregator=Party.CLOUD) for event in TOKENS[2:]),
        sources(party=Party.CLOUD, notes=("A note.",)),
        estimate(4, assumed=("A sentence.",)),
        done(),
    ]
    shown = ask("--placement", "greedy", "--provisional", events=events)
    assert "  placement  greedy, 1 handover\n" in shown.out
    assert "  verdicts   device 2, cloud 3\n" in shown.out
    assert "stimate" not in shown.out + shown.err
    value = json.loads(ask("--json", "--quiet", "--provisional", "--only", "cloud").out)
    assert [options["show_drafts"] for _, options in tandem.asked] == [True, True]
    assert (value["answer"], value["alone"]) == ("Mira likes puzzle games.", "cloud")
    assert value["notes"] == ["cloud: A note."]
    assert value["placements"] == [{"step": 2, "aggregator": "cloud"}]
    told = {"token": 100, "text": " Mira", "shown_at_s": 0.1}
    assert value["provisional"][0] == {"event": "provisional", "committed": 0, "step": 0, **told}
    assert value["provisional"][2] == {"event": "retract", "committed": 1, "step": 1}
    first, second = value["estimates"]
    assert second["assumed"] == ["A sentence."]
    known = {"device_decode_s": 0.04, "device_acceptance": 0.5, "cloud_acceptance": 0.75, "rtt_s": 0.1}
    choice = {"step": 0, "aggregator": "device", "chosen": "cloud", "delta_z_s": 0.012346}
    assert first == choice | known | {"rtt_average_s": 0.1}
