"""A cluster that `tandem up` started: found and entered without a token in hand, and repaired where an actor died."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tandem import Config, Tandem
from tandem.errors import ClusterError, QueryError
from tandem.events import DoneEvent, TokenEvent
from tandem.plugins.ray import registry
from tandem.plugins.ray.attach import attached
from tandem.plugins.ray.supervisor import stop_actors
from tandem.topology import Party
from tandem_lab.bundled import read_bundled_questions
from tests.waiting import wait_until

from .conftest import TOKEN_NAMES, alive, descendants, process_of, run

pytestmark = pytest.mark.nightly("a cluster of its own, started, killed and replaced by commands")
QUESTION = "Which game should Mira try?"
ANSWER = read_bundled_questions()[0].answer
PATIENT = Config.load(None, ("link.on_peer_loss=wait",))
"""On a busy machine the cloud may be silent for a while, and the answer must be that of both."""
KILLED_AT = 3
AT_ONCE_S = 15.0
"""Ray itself tries a bad token for 20 s."""


@pytest.fixture(scope="module")
def address(state: Path) -> Iterator[str]:
    """The device's node and the cloud's, both on this machine; afterwards nothing of them is left."""
    ups: list[subprocess.CompletedProcess[str]] = []
    try:
        ups.append(run("up", "device"))
        assert ups[0].returncode == 0, ups[0].stderr
        address = registry.running_nodes()[0].address
        ups.append(run("up", "cloud", "--join", address))
        assert ups[1].returncode == 0, ups[1].stderr
        assert f'ask "{QUESTION}"' in ups[1].stdout.splitlines()[-1]
        yield address
    finally:
        processes = descendants({entry.pid for entry in registry.running_nodes()})
        down = run("down")
    assert down.returncode == 0, down.stderr
    assert len(processes) > 14, "two Ray nodes with six actors each"
    assert not alive(processes), "a process outlived its cluster"


def test_connect_finds_the_token_and_leaves_none_behind(address: str) -> None:
    with Tandem.connect(address, PATIENT) as tandem:
        assert tandem.query(QUESTION, seed=7).text == ANSWER
    assert not [name for name in TOKEN_NAMES if name in os.environ]


def test_a_termination_leaves_time_to_clean_up(address: str) -> None:
    """Ray's own handler aborts a process 3 s after the signal."""
    script = f"""
import os, signal, sys, time
from tandem import Tandem
signal.signal(signal.SIGTERM, lambda *_: sys.exit(40))
Tandem.connect({address!r})
try:
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()
finally:
    time.sleep(4)
    print("cleaned up", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (40, "cleaned up\n"), done.stderr


@pytest.mark.parametrize(
    ("token", "sentence"),
    [
        (
            "wrong",
            "does not accept the token of this process (RAY_AUTH_TOKEN); unset RAY_AUTH_TOKEN to use the token that "
            "`tandem up` recorded here.",
        ),
        (
            None,
            "requires its token, and this process has none; set RAY_AUTH_TOKEN_PATH to the file that `tandem up` named "
            "when it started the cluster.",
        ),
    ],
)
def test_a_bad_token_is_one_sentence_at_once(
    address: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    token: str | None,
    sentence: str,
) -> None:
    if token is None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    else:
        monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    started_s = time.monotonic()
    with pytest.raises(ClusterError) as caught:
        Tandem.connect(address)
    assert time.monotonic() - started_s < AT_ONCE_S
    assert str(caught.value) == f"The cluster at {address} {sentence}"
    assert capfd.readouterr() == ("", ""), "Ray's own lines are held back"
    assert os.environ.get("RAY_AUTH_TOKEN") == token


def test_ask_uses_the_cluster_that_runs_here(address: str) -> None:
    asked = run("ask", QUESTION, "--seed", "7", "--set", "link.on_peer_loss=wait")
    assert asked.stdout.startswith(ANSWER), asked.stderr
    assert f"{address} is running here" in asked.stderr
    assert "2 up (device, cloud)" not in asked.stderr, "none was started"


LONG: dict[str, Any] = {"max_new_tokens": 200, "temperature": 1.0, "seed": 1, "timeout_s": 120.0}
WHOLE: dict[str, Any] = {"seed": 7, "timeout_s": 120.0}
RETURNS = "its supervisor starts it again, ask again|was replaced while this Tandem used it; ask again"
KILLS: list[tuple[str, str, dict[str, Any], str]] = [
    # who dies; when; how the question is asked; how its answer ends: whole, degraded, or with a sentence
    ("device/draft_queue", "before", WHOLE, RETURNS),
    ("device/retriever", "within", LONG, "The device's retriever has stopped; ask again in a moment"),
    ("device/aggregator", "within", LONG, "The device's aggregator has stopped; ask again in a moment"),
    ("device/scheduler", "within", WHOLE, ANSWER),
    ("cloud/profiler", "before", WHOLE, ANSWER),
    ("cloud/draft_queue", "before", WHOLE, ANSWER),
    ("cloud/draft_queue", "within", {**LONG, "on_peer_loss": "continue"}, "degraded"),
    ("cloud/decoder cloud/supervisor", "within", LONG, "gave the query up: The cloud's decoder has stopped"),
]


@pytest.mark.parametrize(("victims", "moment", "options", "end"), KILLS)
def test_whoever_is_killed_is_started_again_without_a_user(
    address: str, victims: str, moment: str, options: dict[str, Any], end: str
) -> None:
    """For a client that was there before and for one that comes now, whether or not the supervisor is killed, too."""
    (victim, *others), party = victims.split(), victims.partition("/")[0]
    with Tandem.connect(None, PATIENT) as tandem:
        supervisor = tandem.status()["supervisors"][party]
        old = process_of(tandem, victim)

        def kill() -> None:
            for process in [psutil.Process(supervisor["pid"]) for _ in others] + [old]:
                process.kill()

        assert re.search(end, ending(tandem, kill, moment, options))
        with Tandem.connect(None, PATIENT) as later:
            times = 1 if others else supervisor["num_replaced"] + 1
            wait_until(lambda: later.status()["supervisors"].get(party, {}).get("num_replaced") == times, 240)
            assert later.query(QUESTION, seed=7).text == ANSWER
            assert process_of(later, victim).pid != old.pid
            assert later.status()["supervisors"][party]["problem"] == ""
        assert tandem.query(QUESTION, seed=7).text == ANSWER
        # A client looks for a new retriever once it has missed the old one.
        again = tandem.query(QUESTION, seed=7)
        assert all(source.text for source in again.sources if source.party == Party.DEVICE)


def ending(tandem: Tandem, kill: Callable[[], None], moment: str, options: dict[str, Any]) -> str:
    """How an answer ends: its text, "degraded", or the sentence of what failed."""
    text = ""
    try:
        if moment == "before":
            kill()
        for event in tandem.stream(QUESTION, **options):
            text += event.text if isinstance(event, TokenEvent) else ""
            if moment == "within" and isinstance(event, TokenEvent) and event.step == KILLED_AT:
                kill()
    except QueryError as error:
        return str(error)
    assert isinstance(event, DoneEvent)
    return event.error or (text if event.statistics.degraded_from is None else "degraded")


def test_a_dead_actor_is_named_everywhere_and_replaced(address: str) -> None:
    with attached(address, PATIENT):
        stop_actors(Party.DEVICE, ["supervisor"], PATIENT)  # from now on nobody but a user replaces what dies
    with Tandem.connect() as tandem:
        victim = {actor["name"]: actor["pid"] for actor in tandem.status()["actors"]}["device/draft_queue"]
        psutil.Process(victim).kill()
        lost = rf"lost device/draft_queue \(process {victim}: .*died\); run `tandem up device` on its machine"
        with pytest.raises(QueryError, match=lost):
            tandem.query(QUESTION)
        states = {actor["name"]: actor["state"] for actor in tandem.status()["actors"]}
        assert [name for name, state in states.items() if state != "alive"] == ["device/draft_queue"]
        assert len(states) == 12
    with pytest.raises(ClusterError, match=lost):
        Tandem.connect()

    shown = run("status")
    assert shown.returncode == 1, shown.stderr
    assert len(shown.stdout.splitlines()) <= 10
    assert f"DEAD device/draft_queue, process {victim} since " in shown.stdout
    dead = {actor["name"]: actor for actor in json.loads(run("status", "--json").stdout)["actors"]}
    assert dead["device/draft_queue"]["ended_s"] > dead["device/draft_queue"]["started_s"]

    nodes = [entry.pid for entry in registry.running_nodes()]
    replaced = run("up", "device")
    assert replaced.returncode == 0, replaced.stderr
    assert "lost device/draft_queue" in replaced.stderr
    assert [entry.pid for entry in registry.running_nodes()] == nodes, "the cloud's node stays in its cluster"
    with Tandem.connect(None, PATIENT) as tandem:
        assert tandem.query(QUESTION, seed=7).text == ANSWER
