"""`tandem status` of a scripted cluster: every actor in about ten lines, everything with --json."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tandem.plugins.setup.status import summary_lines
from tandem.protocol.routes import ROLES
from tandem.sites.port import ActorState
from tandem.topology import PARTIES, Party

from .conftest import Run

TOY = "bundled (a toy of 0.97 million parameters, trained on its own kind of sentences)"
STARTED_S, DIED_S = time.time() - 60, time.time() - 5
DESCRIBED = {
    "model": "bundled",
    "num_documents": 12,
    "factory": "Flat",
    "eos_token_ids": [2],
    "x": float("nan"),
}


def clock(moment_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(moment_s))


def actor(party: Party, number: int, **changes: Any) -> dict[str, Any]:
    name, pid = f"{party}/{ROLES[number]}", 100 + number + 10 * PARTIES.index(party)
    alive = {"state": "alive", "pid": pid, "started_s": STARTED_S, "ended_s": None, "reason": ""}
    return {"name": name, "process": name, "party": party.value, "cpu_s": 1.23456} | alive | changes


def state(*changed: dict[str, Any]) -> dict[str, Any]:
    actors = {each["name"]: each for party in PARTIES for each in (actor(party, i) for i in range(6))}
    actors |= {each["name"]: each for each in changed}
    return {
        "cluster": "10.0.0.1:6379",
        "nodes": [
            {"address": "10.0.0.1", "roles": ["device"], "alive": True},
            {"address": "10.0.0.2", "roles": ["cloud"], "alive": True},
            {"address": "10.0.0.2", "roles": ["cloud"], "alive": False},
        ],
        "parties": {party.value: DESCRIBED for party in PARTIES},
        "actors": list(actors.values()),
    }


def test_all_alive() -> None:
    device, cloud = (
        ", ".join(f"{kind} {100 + number + 10 * party}" for number, kind in enumerate(ROLES))
        for party in (0, 1)
    )
    assert list(summary_lines(state())) == [
        "cluster  10.0.0.1:6379, 2 nodes: device 10.0.0.1, cloud 10.0.0.2",
        f"device   model {TOY}, index Flat of 12 documents",
        f"         alive since {clock(STARTED_S)}, with process ids: {device}",
        f"cloud    model {TOY}, index Flat of 12 documents",
        f"         alive since {clock(STARTED_S)}, with process ids: {cloud}",
    ]


def test_a_dead_actor_is_named_with_its_remedy() -> None:
    dead = actor(Party.CLOUD, 1, state="dead", ended_s=DIED_S, reason="its worker process has died")
    lines = list(summary_lines(state(dead)))
    assert lines[-2:] == [
        f"         DEAD {dead['name']}, process 111 since {clock(DIED_S)}: its worker process has died",
        "         run `tandem up cloud` on its machine to replace this side's actors",
    ]
    assert f"{ROLES[1]} 111" not in lines[-3]
    assert len(lines) <= 10


@pytest.mark.parametrize(
    ("problem", "end"), [("", ""), ("There is no index.", "; the last attempt failed: There is no index.")]
)
def test_a_dead_actor_with_a_supervisor_needs_nobody(problem: str, end: str) -> None:
    shown = state(actor(Party.CLOUD, 1, state="dead", ended_s=DIED_S))
    shown["supervisors"] = {"cloud": {"pid": 9, "num_replaced": 0, "problem": problem}}
    assert list(summary_lines(shown))[-1] == f"         its supervisor starts it again{end}"


def test_engine_quantisation_and_pace() -> None:
    described = DESCRIBED | {"engine": "llama.cpp 0.3.36", "dtype": "Q4_1", "batching": ""}
    decoder = next(each for each in state()["actors"] if each["name"] == "device/decoder")
    asked = decoder | {"extra": {"num_forwards": 4, "decode_s": 0.05}}
    shown = state(asked) | {"parties": {"device": described, "cloud": described}}
    lines = list(summary_lines(shown))
    assert f"model {TOY} (llama.cpp 0.3.36, Q4_1, 12 ms per token) in batches, " in lines[1]
    assert f"model {TOY} (llama.cpp 0.3.36, Q4_1) in batches, " in lines[3], "asked nothing so far"


def test_the_engine_s_self_check() -> None:
    fallback = "The model 'x' computes one token of one query at a time, because its logits are off by 2."
    parties = {"device": DESCRIBED | {"batching": ""}, "cloud": DESCRIBED | {"batching": fallback}}
    lines = list(summary_lines(state() | {"parties": parties}))
    assert lines[1] == f"device   model {TOY} in batches, index Flat of 12 documents"
    assert lines[3] == f"cloud    model {TOY}, index Flat of 12 documents"
    assert lines[4] == f"         engine: {fallback}"


def test_actors_that_share_a_process_are_named_together() -> None:
    shared = "cloud/draft_queue+aggregator+profiler+scheduler"
    sharing = [actor(Party.CLOUD, number, process=shared, pid=55) for number in range(2, 6)]
    lines = list(summary_lines(state(*sharing)))
    assert lines[-1].endswith("retriever 110, decoder 111, draft_queue+aggregator+profiler+scheduler 55")
    died = {"state": "dead", "ended_s": DIED_S, "reason": "its worker process has died"}
    lines = list(summary_lines(state(*(each | died for each in sharing))))
    assert lines[-2:] == [
        f"         DEAD {shared}, process 55 since {clock(DIED_S)}: its worker process has died",
        "         run `tandem up cloud` on its machine to replace this side's actors",
    ]
    assert lines[-3].endswith("retriever 110, decoder 111")


def test_a_party_that_is_not_up() -> None:
    nothing = {"state": "absent", "pid": None, "started_s": None}
    shown = state(*(actor(Party.CLOUD, number, **nothing) for number in range(6)))
    shown["parties"]["cloud"] = {}
    assert list(summary_lines(shown))[-2:] == [
        "cloud    model unknown, index unknown",
        "         not up; run `tandem up cloud --join ADDRESS` on its machine",
    ]


def test_the_command(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    asked: list[str | None] = []
    shown = state()
    monkeypatch.setattr(
        "tandem.plugins.ray.actors.read_status", lambda address, *_: asked.append(address) or shown
    )
    assert run("status", "--address", "10.0.0.1:6379", code=0).out.splitlines() == list(summary_lines(shown))
    assert json.loads(run("status", "--json", code=0).out)["parties"]["device"]["x"] is None
    assert asked == ["10.0.0.1:6379", None]
    shown |= state(actor(Party.CLOUD, 0, state="dead", ended_s=DIED_S))
    for form in ([], ["--json"]):
        assert run("status", *form, code=1).err == "", "a dead actor can be told by the exit code"


def test_status_of_nothing(run: Run) -> None:
    assert run("status", code=1).err == (
        "tandem: No address of a cluster was given, and none that `tandem up` started runs on this machine; start one "
        "with `tandem up`, or name one as HOST:PORT.\n"
    )


def test_how_an_actor_s_end_is_described() -> None:
    died = ActorState(name="cloud/decoder", state="dead", pid=7, reason="its worker process has died")
    assert died.party == Party.CLOUD
    assert died.describe_end() == "cloud/decoder (process 7: its worker process has died)"
