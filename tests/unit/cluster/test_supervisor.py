"""What a supervisor does at each look at Ray's table; that real processes come back is a test of the cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tandem.actors.base import Runtime
from tandem.cluster import supervisor
from tandem.cluster.launch import PartyLost
from tandem.cluster.supervisor import MAX_PAUSE_S, WATCH_S, Run, Supervisor, Watch
from tandem.config.schema import Config, PartyConfig
from tandem.errors import ClusterError
from tandem.protocol.outbox import ROLES
from tandem.sites.status import State
from tandem.topology import PARTIES, Party

RUNTIME = Runtime(secret=b"secret", directory="", config=Config())
SEVERAL = Runtime(secret=b"secret", directory="", config=Config.load(None, ["cloud.num_decoders=3"]))


def at_once(work: Callable[[], None]) -> None:
    work()


class FakeCluster:
    """Two parties of actors, as Ray's table has them, and a record of what was done to them."""

    def __init__(self) -> None:
        self.states: dict[str, State] = {f"{party}/{role}": "alive" for party in PARTIES for role in ROLES}
        self.unprepared: set[str] = set()
        self.done: list[str] = []
        self.failures: list[Exception] = []  # of the next replacements

    def running_actors(self, config: Config) -> set[str]:
        return {name for name, state in self.states.items() if state == "alive"}

    def find_party(self, party: str, config: Config) -> dict[str, Any]:
        if party in self.unprepared or any(
            state != "alive" for name, state in self.states.items() if name.startswith(f"{party}/")
        ):
            raise PartyLost(f"The {party} side has lost an actor.")
        return {"draft_queue": party}

    def is_complete(self, party: str, config: Config) -> bool:
        self.done.append(f"check {party}")
        return party not in self.unprepared

    def replace_actors(self, party: Party, runtime: Runtime, lost: set[str] | None) -> None:
        assert runtime in (RUNTIME, SEVERAL), "the secret and the settings stay"
        self.done.append(
            f"replace {party}" if lost is None else f"replace {'+'.join(sorted(lost))} of {party}"
        )
        if self.failures:
            raise self.failures.pop(0)
        self.unprepared.discard(party)
        roles = lost or {*ROLES, *runtime.config.party(party).decoder_roles}
        self.states |= {f"{party}/{role}": "alive" for role in roles}

    async def connect_parties(self, parties: dict[str, Any], topology: Any) -> None:
        self.done.append(f"connect {'+'.join(parties)}")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    fake = FakeCluster()
    for name in ("running_actors", "find_party", "is_complete", "replace_actors", "connect_parties"):
        monkeypatch.setattr(supervisor, name, getattr(fake, name))
    return fake


def test_parties_that_are_up_meet_once_and_are_left_alone(cluster: FakeCluster) -> None:
    watch = Watch(Party.DEVICE, RUNTIME)
    assert [watch.look() for _ in range(3)] == [WATCH_S] * 3
    assert cluster.done == ["connect device+cloud"]
    assert watch.num_replaced == 0


@pytest.mark.parametrize("state", ["dead", "absent"])
def test_a_dead_actor_is_replaced_and_its_party_meets_the_other(cluster: FakeCluster, state: State) -> None:
    watch = Watch(Party.CLOUD, RUNTIME)
    watch.look()
    cluster.states["cloud/decoder"] = state
    watch.look()
    watch.look()
    assert cluster.done == ["connect device+cloud", "replace decoder of cloud", "connect device+cloud"]
    assert (watch.num_replaced, watch.problem) == (1, "")


def test_all_that_died_is_replaced_at_once(cluster: FakeCluster) -> None:
    watch = Watch(Party.CLOUD, RUNTIME)
    cluster.states |= dict.fromkeys(("cloud/scheduler", "cloud/draft_queue"), "dead")
    watch.look()
    assert cluster.done == ["replace draft_queue+scheduler of cloud", "connect device+cloud"]
    cluster.states |= dict.fromkeys((f"cloud/{role}" for role in ROLES), "dead")
    watch.look()
    assert cluster.done[2:] == ["replace cloud", "connect device+cloud"], "as `tandem up` does it"


def test_a_dead_actor_of_the_other_party_is_not_its_business(cluster: FakeCluster) -> None:
    watch = Watch(Party.CLOUD, RUNTIME)
    cluster.states["device/decoder"] = "dead"
    watch.look()
    assert cluster.done == [], "there is nobody to meet"
    cluster.states["device/decoder"] = "alive"
    watch.look()
    assert cluster.done == ["connect device+cloud"]


def test_a_worker_meets_the_server_and_the_server_whoever_is_there(cluster: FakeCluster) -> None:
    """Workers have no link to each other, so one that is away does not keep the others from the server."""
    config = Config.load(
        None, ["decoding.mode=federated", "workers.ada.num_documents=0", "workers.ben.num_documents=0"]
    )
    cluster.states = {f"{party}/{role}": "alive" for party in ("server", "ada") for role in ROLES}
    cluster.states |= {f"ben/{role}": "absent" for role in ROLES}
    runtime = replace(RUNTIME, config=config)
    server, ada = Watch("server", runtime), Watch("ada", runtime)
    for _ in range(2):
        server.look()
        ada.look()
    assert cluster.done == ["connect server+ada"] * 3, "the server goes on looking for ben"
    cluster.states |= {f"ben/{role}": "alive" for role in ROLES}
    for _ in range(2):
        server.look()
        ada.look()
    assert cluster.done[3:] == ["connect server+ada+ben"]


def test_a_start_that_fails_is_tried_again_ever_more_rarely(cluster: FakeCluster) -> None:
    watch = Watch(Party.DEVICE, RUNTIME)
    cluster.states["device/retriever"] = "dead"
    cluster.failures = [ClusterError("There is no index."), *(OSError("full") for _ in range(9))]
    assert (watch.look(), watch.problem) == (2 * WATCH_S, "There is no index.")
    pauses = [watch.look() for _ in range(9)]
    assert pauses[:2] == [4 * WATCH_S, 8 * WATCH_S]
    assert pauses[-1] == MAX_PAUSE_S
    assert (watch.look(), watch.problem, watch.num_replaced) == (WATCH_S, "", 1)
    assert cluster.done[0] == "replace retriever of device"
    assert cluster.done[1:] == ["replace device"] * 10 + ["connect device+cloud"], "alone it did not work"


def test_one_that_was_restarted_finishes_what_it_was_at(cluster: FakeCluster) -> None:
    """All actors are alive, but they have not loaded their models."""
    cluster.unprepared.add(Party.CLOUD)
    watch = Watch(Party.CLOUD, RUNTIME)
    watch.is_whole = None
    watch.look()
    assert cluster.done == ["check cloud", "replace cloud", "connect device+cloud"]
    again = Watch(Party.CLOUD, RUNTIME)
    again.is_whole = None
    again.look()
    assert cluster.done[3:] == ["check cloud", "connect device+cloud"], "nothing was under way"
    cluster.states["cloud/aggregator"] = "dead"
    last = Watch(Party.CLOUD, RUNTIME)
    last.is_whole = None
    last.look()
    assert cluster.done[5:] == ["check cloud", "replace aggregator of cloud", "connect device+cloud"]


def watch_of_several(cluster: FakeCluster, run: Run = at_once) -> Watch:
    """Of a cloud with three decoders, all of which are up and have met the device."""
    cluster.states |= {f"cloud/{role}": "alive" for role in PartyConfig(num_decoders=3).decoder_roles}
    watch = Watch(Party.CLOUD, SEVERAL, run)
    watch.look()
    cluster.done.clear()
    return watch


def test_one_of_several_decoders_is_replaced_by_itself(cluster: FakeCluster) -> None:
    watch = watch_of_several(cluster)
    for role in ("decoder", "decoder-2"):
        cluster.states[f"cloud/{role}"] = "dead"
    assert watch.look() == WATCH_S
    assert cluster.done == ["replace decoder of cloud", "replace decoder-2 of cloud"]
    watch.look()
    assert (watch.num_replaced, watch.spares.num_replaced, len(cluster.done)) == (0, 2, 2)


def test_a_decoder_that_never_was_is_started(cluster: FakeCluster) -> None:
    watch = watch_of_several(cluster)
    del cluster.states["cloud/decoder-1"]
    watch.look()
    assert cluster.done == ["replace decoder-1 of cloud"]


@pytest.mark.parametrize(
    ("lost", "done"),
    [
        (
            PartyConfig(num_decoders=3).decoder_roles,
            ["replace decoder+decoder-1+decoder-2 of cloud", "connect device+cloud"],
        ),
        (
            ("decoder-1", "retriever"),
            ["replace retriever of cloud", "replace decoder-1 of cloud", "connect device+cloud"],
        ),
    ],
)
def test_what_a_party_needs_is_replaced_before_one_of_several_decoders(
    cluster: FakeCluster, lost: tuple[str, ...], done: list[str]
) -> None:
    watch = watch_of_several(cluster)
    cluster.states |= dict.fromkeys((f"cloud/{role}" for role in lost), "dead")
    watch.look()
    assert cluster.done == done


def test_a_decoder_that_is_being_started_is_left_alone(cluster: FakeCluster) -> None:
    under_way: list[Callable[[], None]] = []
    watch = watch_of_several(cluster, under_way.append)
    cluster.states["cloud/decoder-1"] = "dead"
    watch.look()
    watch.look()
    assert len(under_way) == 1, "loading may take minutes, the others are watched meanwhile"
    under_way.pop()()
    cluster.states["cloud/decoder-1"] = "dead"
    watch.look()
    assert len(under_way) == 1, "it died again"


def test_a_decoder_that_cannot_be_started_does_not_stop_the_watch(cluster: FakeCluster) -> None:
    watch = watch_of_several(cluster)
    cluster.states["cloud/decoder-1"] = "dead"
    cluster.failures = [ClusterError("There is no GPU left.")]
    assert watch.look() == WATCH_S
    watch.look()
    assert cluster.done == ["replace decoder-1 of cloud"], "it is tried again later"
    assert (watch.problem, watch.spares.problem) == ("", "There is no GPU left.")
    cluster.states["cloud/retriever"] = "dead"
    watch.look()
    assert cluster.done[1:] == ["replace retriever of cloud"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("is_restarted", [False, True])
def test_it_looks_after_the_party_in_one_thread(monkeypatch: pytest.MonkeyPatch, is_restarted: bool) -> None:
    """One that Ray has restarted looks at once, and `tandem up` may tell it to all the same."""
    looks: list[str] = []

    class FakeWatch(Watch):
        def look(self) -> float:
            looks.append("once")
            raise SystemExit  # ends the thread

    context = SimpleNamespace(was_current_actor_reconstructed=is_restarted)
    monkeypatch.setattr(supervisor, "ray", SimpleNamespace(get_runtime_context=lambda: context))
    monkeypatch.setattr(supervisor, "Watch", FakeWatch)
    watched = Supervisor("device", RUNTIME)
    watched.watch()
    watched.watch()
    for thread in threading.enumerate():
        if thread.name == "watch":
            thread.join(10)
    assert looks == ["once"]


class FakeActor:
    """An actor on Ray whose calls are answered at once, or never."""

    def __init__(self, is_prepared: bool | None, joined: tuple[str, ...] = ()) -> None:
        self.answers = {"is_prepared": is_prepared, "reached": set(joined)}

    def start(self, method: str) -> tuple[str, int, Any]:
        return method, id(self), self.answers[method]


@pytest.mark.parametrize(
    ("unready", "joined", "is_whole", "stopped"),
    [
        ({}, ("cloud/decoder", "cloud/decoder-1"), True, []),
        ({}, ("cloud/decoder",), True, ["cloud/decoder-1"]),
        ({"decoder-1": False}, ("cloud/decoder",), True, ["cloud/decoder-1"]),
        ({"decoder-1": None}, ("cloud/decoder",), True, ["cloud/decoder-1"]),
        ({"scheduler": False}, ("cloud/decoder", "cloud/decoder-1"), False, []),
        ({"scheduler": None}, ("cloud/decoder", "cloud/decoder-1"), False, []),
        ({"draft_queue": False, "decoder-1": False}, (), False, []),
    ],
)
def test_what_a_dead_supervisor_left_half_done(
    monkeypatch: pytest.MonkeyPatch,
    unready: dict[str, bool | None],
    joined: tuple[str, ...],
    is_whole: bool,
    stopped: list[str],
) -> None:
    """One that loads, or whose process is not there yet, is not waited for; a spare decoder is stopped."""
    roles = {*ROLES, "decoder-1"}
    actors = {f"cloud/{role}": FakeActor(unready.get(role, True), joined) for role in roles}
    killed: list[str] = []
    fake = SimpleNamespace(
        wait=lambda answers, num_returns, timeout: ([one for one in answers if one[2] is not None], []),
        get=lambda answer, timeout=None: answer[2],
    )
    monkeypatch.setattr(supervisor, "ray", fake)
    monkeypatch.setattr(
        supervisor, "running_actors", lambda _: {*actors, "device/decoder", "cloud/supervisor"}
    )
    monkeypatch.setattr(supervisor, "find_actor", lambda name, _: actors[name])
    monkeypatch.setattr(
        supervisor,
        "kill_actors",
        lambda handles: killed.extend(name for name, actor in actors.items() if actor in handles),
    )
    assert supervisor.is_complete("cloud", Config()) is is_whole
    assert killed == stopped
