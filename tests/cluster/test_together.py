"""Light actors in the draft queue's process give the answers of actors apart, token for token and flag for flag."""

from __future__ import annotations

import asyncio

import pytest

from tandem import Event, Tandem, WaitEvent
from tandem.errors import QueryError
from tandem.events import collect
from tandem.protocol.outbox import ROLES
from tandem.topology import Party
from tandem_lab.bundled import read_bundled_questions
from tests.cluster.conftest import process_of
from tests.cluster.recorded import check_answers

pytestmark = pytest.mark.nightly("a cluster of its own: light actors in one process")

NUM_PAIRS = 4
MAX_SESSIONS, NUM_AT_ONCE = 2, 7
CASES = [("auto", "coupled/mirror"), ("auto", "coupled/greedy"), ("top_p", "algorithm1/device")]
SHARED = "device/draft_queue+aggregator+profiler+scheduler"


@pytest.fixture(scope="module")
def overrides() -> tuple[str, ...]:
    return ("cluster.light_actors=together", f"cluster.max_sessions={MAX_SESSIONS}")


@pytest.mark.parametrize(("codec", "case"), CASES)
@pytest.mark.parametrize("temperature", [0, 1])
def test_answers_are_those_recorded_with_actors_apart(
    rag: Tandem, codec: str, case: str, temperature: int
) -> None:
    check_answers(rag, codec, case, temperature, NUM_PAIRS)


def test_more_queries_than_may_be_open_wait_and_answer_as_alone(rag: Tandem) -> None:
    questions = [question.question for question in read_bundled_questions()][:NUM_AT_ONCE]

    async def ask(question: str) -> list[Event]:
        return [event async for event in rag.astream(question, seed=7)]

    async def ask_all() -> list[list[Event]]:
        return list(await asyncio.gather(*map(ask, questions)))

    streams = asyncio.run(ask_all())
    waits = [event for events in streams for event in events if isinstance(event, WaitEvent)]
    assert sorted(event.num_ahead for event in waits) == list(range(NUM_AT_ONCE - MAX_SESSIONS))
    answers = [collect(events, 7) for events in streams]
    assert not any(answer.is_degraded for answer in answers)
    assert all({source.party for source in answer.sources} == set(Party) for answer in answers)
    assert [answer.token_ids for answer in answers] == [
        rag.query(question, seed=7).token_ids for question in questions
    ]


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
