"""What a supervisor does at each look at Ray's table; that real processes come back is a test of the cluster."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.core.generated import gcs_pb2
from ray.exceptions import RayActorError

from tandem.actors.base import Runtime
from tandem.config.schema import Config
from tandem.plugins.ray import actors as module
from tandem.plugins.ray import supervisor
from tandem.plugins.ray.actors import PartyLost, explain_loss, explain_party, is_supervised, read_actors
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


CONFIG = Config()
KILLED = (
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit ..."
)


def row(name: str, state: str = "ALIVE", *, start_s: int = 1, number: int = 0, **fields: Any) -> Any:
    table = gcs_pb2.ActorTableData(
        name=name, pid=70 + number, start_time=start_s * 1000, actor_id=bytes([number] * 4), **fields
    )
    table.ray_namespace = CONFIG.cluster.namespace
    table.state = gcs_pb2.ActorTableData.ActorState.Value(state)
    if state == "DEAD":
        table.end_time = (start_s + 5) * 1000
        table.death_cause.actor_died_error_context.error_message = KILLED
    return table


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Ray's table: all actors of both parties, alive."""
    table = [
        row(f"{party}/{role}", number=i + 10 * j)
        for j, party in enumerate(PARTIES)
        for i, role in enumerate(ROLES)
    ]

    monkeypatch.setattr(module, "raw_rows", lambda: [each.SerializeToString() for each in table])

    def list_named_actors(*, all_namespaces: bool) -> list[dict[str, str]]:
        assert all_namespaces
        dead = gcs_pb2.ActorTableData.ActorState.Value("DEAD")
        return [{"name": each.name, "namespace": each.ray_namespace} for each in table if each.state != dead]

    monkeypatch.setattr(ray.util, "list_named_actors", list_named_actors)
    return table


def kill(rows: list[Any], *names: str) -> None:
    for position, each in enumerate(rows):
        if each.name in names:
            rows[position] = row(each.name, "DEAD", number=each.pid - 70)


def test_the_dead_actor_is_named_not_the_first_one(rows: list[Any]) -> None:
    actors = read_actors(CONFIG)
    assert [actor.name for actor in actors] == [f"{party}/{role}" for party in PARTIES for role in ROLES]
    assert all(actor.is_alive and actor.started_s == 1.0 for actor in actors)
    kill(rows, "cloud/decoder")
    actors = read_actors(CONFIG, (Party.CLOUD,))
    (dead,) = (actor for actor in actors if not actor.is_alive)
    assert (dead.name, dead.ended_s, dead.reason) == ("cloud/decoder", 6.0, "its worker process has died")
    assert explain_party(Party.CLOUD, actors, CONFIG) == (
        f"The cloud side has lost cloud/decoder (process {dead.pid}: its worker process has died); "
        "run `tandem up cloud` on its machine."
    )
    assert explain_party(Party.DEVICE, read_actors(CONFIG, (Party.DEVICE,)), CONFIG) is None


@pytest.mark.parametrize("state", ["ALIVE", "RESTARTING"])
def test_where_a_supervisor_runs_nobody_need_do_anything(rows: list[Any], state: str) -> None:
    kill(rows, "cloud/decoder")
    rows.append(row("cloud/supervisor", state, number=40))
    assert is_supervised(Party.CLOUD, CONFIG)
    assert not is_supervised(Party.DEVICE, CONFIG)
    actors = read_actors(CONFIG, (Party.CLOUD,))
    assert len(actors) == len(ROLES)
    assert str(explain_party(Party.CLOUD, actors, CONFIG)).endswith(
        "died); its supervisor starts it again, try again in a moment."
    )
    assert explain_loss(RayActorError("x"), CONFIG, is_launched=False).endswith(
        "died); its supervisor starts it again, ask again in a moment."
    )
    rows[-1] = row("cloud/supervisor", "DEAD", number=40)
    assert not is_supervised(Party.CLOUD, CONFIG)


def test_actors_that_share_a_process_die_together(rows: list[Any]) -> None:
    """Ray knows the process alone; its name says who was in it."""
    shared = "cloud/draft_queue+aggregator+profiler+scheduler"
    light = {f"cloud/{role}" for role in ("draft_queue", "aggregator", "profiler", "scheduler")}
    rows[:] = [each for each in rows if each.name not in light] + [row(shared, number=50)]
    actors = read_actors(CONFIG, (Party.CLOUD,))
    assert [actor.name for actor in actors] == [f"cloud/{role}" for role in ROLES]
    assert {actor.name for actor in actors if actor.pid == 120} == light
    assert explain_party(Party.CLOUD, actors, CONFIG) is None
    kill(rows, shared)
    assert explain_party(Party.CLOUD, read_actors(CONFIG, (Party.CLOUD,)), CONFIG) == (
        f"The cloud side has lost {shared} (process 120: its worker process has died); "
        "run `tandem up cloud` on its machine."
    )
    rows += [row(name, start_s=9, number=60 + i) for i, name in enumerate(sorted(light))]
    assert all(actor.is_alive for actor in read_actors(CONFIG, (Party.CLOUD,))), "started again, apart"


@pytest.mark.parametrize(
    ("is_launched", "remedy"),
    [
        (True, "close this Tandem and launch another"),
        (False, "run `tandem up cloud` on its machine, then connect again"),
    ],
)
def test_a_failed_call_names_the_actor_that_it_needed(
    rows: list[Any], is_launched: bool, remedy: str
) -> None:
    kill(rows, "device/decoder", "cloud/draft_queue")
    (dead,) = (each for each in rows if each.name == "cloud/draft_queue")
    error = RayActorError(f"{dead.pid}")
    error.actor_id = dead.actor_id.hex()
    assert explain_loss(error, CONFIG, is_launched=is_launched) == (
        f"The query failed because the cloud side has lost cloud/draft_queue (process {dead.pid}: its worker process "
        f"has died); {remedy}."
    )


def test_without_rays_private_table_it_is_known_who_lives(
    rows: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later version of Ray may keep it elsewhere."""
    rows.append(row("cloud/supervisor", number=40))
    kill(rows, "cloud/decoder")
    monkeypatch.delattr(module, "raw_rows")
    monkeypatch.setitem(sys.modules, "ray.core.generated.gcs_pb2", None)
    states = {actor.name: actor.state for actor in read_actors(CONFIG, (Party.CLOUD,))}
    assert states == {f"cloud/{role}": "absent" if role == "decoder" else "alive" for role in ROLES}
    assert is_supervised(Party.CLOUD, CONFIG)
