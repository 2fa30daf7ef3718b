"""`tandem up` for a server and workers: each a node that outlives the command, asked from other processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem import Tandem
from tandem.config.schema import Config
from tandem.events import PeerEvent, TokenEvent
from tandem.plugins.ray import registry
from tests.cluster.conftest import alive, descendants, run
from tests.cluster.federation import Loop, settings_of

pytestmark = pytest.mark.nightly("clusters of its own: a node for each owner, started by commands")

QUESTION, SEED, MAX_NEW_TOKENS = "Which game should Mira try?", 7, 24


@pytest.fixture(scope="module")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    return settings_of(tmp_path_factory.mktemp("owners"), "ada=device", "ben=cloud")


@pytest.fixture(scope="module")
def config(overrides: tuple[str, ...]) -> Config:
    return Config.load(None, overrides)


@pytest.fixture(scope="module")
def options(overrides: tuple[str, ...]) -> list[str]:
    return [part for override in overrides for part in ("--set", override)]


@pytest.fixture(scope="module")
def address(state: Path, options: list[str]) -> Iterator[str]:
    """The server's node and ada's; ben comes later. Afterwards nothing of them is left."""
    try:
        first = run("up", "server", *options)
        assert first.returncode == 0, first.stderr
        assert "up ada" in first.stdout
        assert "up ben" in first.stdout
        second = run("up", "ada", *options)
        assert second.returncode == 0, second.stderr
        assert "joining the server of this machine" in second.stderr
        yield registry.running_nodes()[0].address
    finally:
        processes = descendants({entry.pid for entry in registry.running_nodes()})
        down = run("down")
    assert down.returncode == 0, down.stderr
    assert len(processes) > 14
    assert not alive(processes), "a process outlived its cluster"


@pytest.fixture(scope="module")
def wanted(config: Config) -> list[int]:
    """What both owners answer together by the draft-free loop."""
    return Loop(config).answer(QUESTION, SEED, 1.0, MAX_NEW_TOKENS)


def test_an_owner_who_is_not_up_is_left_out(address: str, config: Config) -> None:
    lines: list[str] = []
    with Tandem.connect(address, config, progress=lines.append) as tandem:
        answer = tandem.query(QUESTION, seed=SEED, temperature=1.0, max_new_tokens=MAX_NEW_TOKENS)
    assert "ben: not up, the others answer without it" in lines
    assert answer.is_degraded
    assert answer.tokens


def test_all_owners_answer_and_a_dead_one_comes_back(
    address: str, config: Config, options: list[str], wanted: list[int]
) -> None:
    third = run("up", "ben", *options)
    assert third.returncode == 0, third.stderr
    shown = run("status", *options)
    assert shown.returncode == 0, shown.stderr
    assert [line.split()[0] for line in shown.stdout.splitlines() if line[0] != " "] == [
        "cluster",
        "server",
        "ada",
        "ben",
    ]
    with Tandem.connect(None, config) as tandem:
        answer = tandem.query(QUESTION, seed=SEED, temperature=1.0, max_new_tokens=MAX_NEW_TOKENS)
        assert (list(answer.token_ids), answer.is_degraded) == (wanted, False)
        actors = {actor["name"]: actor["pid"] for actor in tandem.status()["actors"]}
    os.kill(actors["ben/decoder"], signal.SIGKILL)
    with Tandem.connect(None, config) as tandem:  # waits for the supervisor
        events = list(tandem.stream(QUESTION, seed=SEED, temperature=1.0, max_new_tokens=MAX_NEW_TOKENS))
    lost = [event for event in events if isinstance(event, PeerEvent)]
    tokens = [event.token for event in events if isinstance(event, TokenEvent)]
    assert tokens == wanted or lost, (
        "either ben was back before the first step, or the answer says that he was not"
    )
