"""What a supervisor does at each look at Ray's table; that real processes come back is a test of the cluster."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tandem.actors.base import Runtime
from tandem.config.schema import Config
from tandem.plugins.ray import supervisor
from tandem.plugins.ray.actors import PartyLost
from tandem.plugins.ray.supervisor import WATCH_S, Supervisor
from tandem.protocol.routes import ROLES
from tandem.topology import PARTIES, Party

RUNTIME = Runtime(secret=b"secret", directory="", config=Config())
MEET = "connect device+cloud"


class FakeCluster:
    """Two parties of actors, as Ray lists them, and a record of what was done to them."""

    def __init__(self) -> None:
        self.alive = {f"{party}/{role}" for party in PARTIES for role in ROLES}
        self.wanted = set(self.alive)
        self.unprepared: set[str] = set()
        self.done: list[str] = []
        self.failures: list[Exception] = []  # of the next replacements

    def kill(self, *names: str) -> None:
        self.alive -= set(names)

    def running_actors(self, config: Config) -> set[str]:
        return self.alive

    def find_party(self, party: str, config: Config) -> dict[str, Any]:
        if party in self.unprepared or any(name.startswith(f"{party}/") for name in self.wanted - self.alive):
            raise PartyLost(f"The {party} side has lost an actor.")
        return {"draft_queue": party}

    def is_complete(self, party: str, config: Config) -> bool:
        self.done.append(f"check {party}")
        return party not in self.unprepared

    def replace_actors(self, party: Party, runtime: Runtime, lost: set[str] | None) -> None:
        assert runtime == RUNTIME, "the secret and the settings stay"
        self.done.append(
            f"replace {party}" if lost is None else f"replace {'+'.join(sorted(lost))} of {party}"
        )
        if self.failures:
            raise self.failures.pop(0)
        self.unprepared.discard(party)
        self.alive |= {f"{party}/{role}" for role in lost or ROLES}

    async def connect_parties(self, parties: dict[str, Any], topology: Any) -> None:
        self.done.append(f"connect {'+'.join(parties)}")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    fake = FakeCluster()
    for name in ("running_actors", "find_party", "is_complete", "replace_actors", "connect_parties"):
        monkeypatch.setattr(supervisor, name, getattr(fake, name))
    monkeypatch.setattr(supervisor, "ray", fake_ray(is_restarted=False))
    return fake


def fake_ray(*, is_restarted: bool) -> SimpleNamespace:
    context = SimpleNamespace(was_current_actor_reconstructed=is_restarted)
    return SimpleNamespace(get_runtime_context=lambda: context)


@pytest.mark.parametrize(
    ("lost", "done", "num_replaced"),
    [
        ([], [], 0),
        (["retriever"], ["replace retriever of cloud", MEET], 1),
        (["scheduler", "draft_queue"], ["replace draft_queue+scheduler of cloud", MEET], 1),
        (ROLES, ["replace cloud", MEET], 1),  # as `tandem up` does it
    ],
)
def test_what_is_lost_is_replaced_once(
    cluster: FakeCluster, lost: list[str], done: list[str], num_replaced: int
) -> None:
    watch = Supervisor(Party.CLOUD, RUNTIME)
    watch.look()
    cluster.done.clear()
    cluster.kill(*(f"cloud/{role}" for role in lost))
    assert [watch.look() for _ in range(3)] == [WATCH_S] * 3
    assert cluster.done == done
    assert (watch.num_replaced, watch.problem) == (num_replaced, "")


@pytest.mark.parametrize(
    ("is_prepared", "lost", "done"),
    [
        (False, [], ["check cloud", "replace cloud", MEET]),  # alive, but without their models
        (True, [], ["check cloud", MEET]),  # nothing was under way
        (True, ["cloud/aggregator"], ["check cloud", "replace aggregator of cloud", MEET]),
        (True, ["device/decoder"], ["check cloud"]),  # not its business, and there is nobody to meet
    ],
)
def test_one_that_was_restarted_finishes_what_it_was_at(
    cluster: FakeCluster, is_prepared: bool, lost: list[str], done: list[str]
) -> None:
    cluster.unprepared = set() if is_prepared else {Party.CLOUD}
    cluster.kill(*lost)
    watch = Supervisor(Party.CLOUD, RUNTIME)
    watch.is_whole = None
    for _ in range(2):
        watch.look()
    assert cluster.done == done


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("is_restarted", [False, True])
def test_it_looks_after_the_party_in_one_thread(monkeypatch: pytest.MonkeyPatch, is_restarted: bool) -> None:
    """One that Ray has restarted looks at once, and `tandem up` may tell it to all the same."""
    looks: list[str] = []

    class Watched(Supervisor):
        def look(self) -> float:
            looks.append("once")
            raise SystemExit  # ends the thread

    monkeypatch.setattr(supervisor, "ray", fake_ray(is_restarted=is_restarted))
    watched = Watched("device", RUNTIME)
    watched.watch()
    watched.watch()
    for thread in threading.enumerate():
        if thread.name == "watch":
            thread.join(10)
    assert looks == ["once"]


class FakeActor:
    """An actor on Ray whose calls are answered at once, or never."""

    def __init__(self, is_prepared: bool | None) -> None:
        self.is_prepared = is_prepared

    def start(self, method: str) -> tuple[str, int, Any]:
        assert method == "is_prepared"
        return method, id(self), self.is_prepared


@pytest.mark.parametrize(
    ("unready", "is_whole"),
    [
        ({}, True),
        ({"scheduler": False}, False),
        ({"scheduler": None}, False),
        ({"draft_queue": False}, False),
    ],
)
def test_what_a_dead_supervisor_left_half_done(
    monkeypatch: pytest.MonkeyPatch, unready: dict[str, bool | None], is_whole: bool
) -> None:
    """One that loads, or whose process is not there yet, is not waited for."""
    actors = {f"cloud/{role}": FakeActor(unready.get(role, True)) for role in ROLES}
    fake = SimpleNamespace(
        wait=lambda answers, num_returns, timeout: ([one for one in answers if one[2] is not None], []),
        get=lambda answer, timeout=None: answer[2],
    )
    monkeypatch.setattr(supervisor, "ray", fake)
    monkeypatch.setattr(
        supervisor, "running_actors", lambda _: {*actors, "device/decoder", "cloud/supervisor"}
    )
    monkeypatch.setattr(supervisor, "find_actor", lambda name, _: actors[name])
    assert supervisor.is_complete("cloud", Config()) is is_whole
