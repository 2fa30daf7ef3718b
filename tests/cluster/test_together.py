"""Light actors in the draft queue's process give the answers of actors apart, token for token and flag for flag."""

from __future__ import annotations

import pytest

from tandem import Tandem
from tandem.errors import QueryError
from tandem.protocol.outbox import ROLES
from tests.cluster.conftest import process_of
from tests.cluster.recorded import check_answers

pytestmark = pytest.mark.nightly("a cluster of its own: light actors in one process")

NUM_PAIRS = 4
CASES = [("auto", "coupled/mirror"), ("auto", "coupled/greedy"), ("top_p", "algorithm1/device")]
SHARED = "device/draft_queue+aggregator+profiler+scheduler"


@pytest.fixture(scope="module")
def overrides() -> tuple[str, ...]:
    return ("cluster.light_actors=together",)


@pytest.mark.parametrize(("codec", "case"), CASES)
@pytest.mark.parametrize("temperature", [0, 1])
def test_answers_are_those_recorded_with_actors_apart(
    rag: Tandem, codec: str, case: str, temperature: int
) -> None:
    check_answers(rag, codec, case, temperature, NUM_PAIRS)


def test_three_processes_per_party_and_every_actor_reports(rag: Tandem) -> None:
    actors = {actor["name"]: actor for actor in rag.status()["actors"]}
    assert list(actors) == [f"{party}/{role}" for party in ("device", "cloud") for role in ROLES]
    assert all(actor["state"] == "alive" for actor in actors.values())
    pids = {name: actor["pid"] for name, actor in actors.items()}
    assert len(set(pids.values())) == 6
    assert (
        len({pids[f"device/{role}"] for role in ("draft_queue", "aggregator", "profiler", "scheduler")}) == 1
    )
    assert not actors["device/draft_queue"]["imports_torch"]
    links = actors["device/draft_queue"]["links"]
    assert "device/aggregator" not in links, "no frame goes to an actor of the same process"
    assert links["device/decoder"]["sent_frames"] > 0


@pytest.mark.usefixtures("killed")
def test_a_process_that_dies_is_named_with_all_its_actors(rag: Tandem) -> None:
    """The last test of this cluster."""
    queue = process_of(rag, "device/draft_queue")
    queue.kill()
    with pytest.raises(QueryError) as caught:
        rag.query("Which game should Mira try?")
    assert f"the device side has lost {SHARED} (process {queue.pid}: " in str(caught.value)
    states = {actor["name"]: actor["state"] for actor in rag.status()["actors"]}
    dead = [name for name, state in states.items() if state != "alive"]
    assert dead == ["device/draft_queue", "device/aggregator", "device/profiler", "device/scheduler"]
