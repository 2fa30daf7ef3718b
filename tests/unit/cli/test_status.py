"""`tandem status` of a scripted cluster: every actor in about ten lines, everything with --all and --json."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tandem.cli.status import summary_lines
from tandem.protocol.outbox import ROLES
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
    alive: dict[str, Any] = {
        "state": "alive",
        "pid": pid,
        "started_s": STARTED_S,
        "ended_s": None,
        "reason": "",
    }
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


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    asked: list[str | None] = []

    def read_status(address: str | None, config: Any, progress: Any) -> dict[str, Any]:
        asked.append(address)
        return state()

    monkeypatch.setattr("tandem.plugins.ray.table.read_status", read_status)
    return asked


def test_the_command(scripted: list[str | None], run: Run) -> None:
    assert run("status", "--address", "10.0.0.1:6379", code=0).out.splitlines() == list(
        summary_lines(state())
    )
    shown = run("status", "--all", code=0).out.splitlines()
    assert shown[:4] == ["cluster: 10.0.0.1:6379", "nodes", "  1", "    address: 10.0.0.1"]
    assert "    eos_token_ids: 2" in shown
    assert "    cpu_s: 1.235" in shown
    assert json.loads(run("status", "--json", code=0).out)["parties"]["device"]["x"] is None
    assert scripted == ["10.0.0.1:6379", None, None]
