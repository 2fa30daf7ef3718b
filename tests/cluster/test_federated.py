"""Federated decoding on a real cluster: a server drafts, workers with documents of their own vote."""

from __future__ import annotations

from threading import Timer
from typing import Any

import pytest

from tandem import Tandem
from tandem.errors import ConfigError, QueryError
from tandem.events import Answer, DoneEvent, SourcesEvent, TokenEvent
from tandem.topology import SERVER
from tandem_lab.bundled import read_bundled_questions
from tests.cluster.federation import Loop, Stopped, settings_of, write_untrained

pytestmark = pytest.mark.nightly(
    "clusters of their own: a server that drafts well or garbage, and two owners"
)

NUM_QUESTIONS = 3
MAX_NEW_TOKENS = 24
SILENCE_S = 2.5
"""Longer than it takes to count a worker as lost."""
PACINGS: dict[str, dict[str, Any]] = {
    "stop-and-wait": {"pacing": "stop_and_wait", "max_proposal": 4},
    "pipelined": {"pacing": "pipelined", "max_proposal": 3},
    "as configured": {},
    "lengths that adapt": {"pacing": "pipelined", "length_policy": "best", "max_proposal": 16},
    "token by token": {"max_proposal": 0},
}


@pytest.fixture(scope="module", params=["bundled-drafter", "untrained"])
def overrides(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Two owners and a server that drafts well, or nothing but garbage. In the first cluster documents say how much a
    worker counts, re-estimated every few tokens; in the other one the second worker counts less."""
    folder = tmp_path_factory.mktemp("federation")
    server = request.param if request.param != "untrained" else str(write_untrained(folder / "untrained"))
    owners = settings_of(folder, "alice=device", "bob=cloud", server=server)
    return (*owners, "workers.bob.weight=0.75") if request.param == "untrained" else owners


@pytest.fixture(scope="module")
def questions() -> list[str]:
    return [asked.question for asked in read_bundled_questions()][:NUM_QUESTIONS]


@pytest.fixture(scope="module")
def loop(rag: Tandem) -> Loop:
    return Loop(rag.config)


def ask(rag: Tandem, question: str, **options: Any) -> Answer:
    return rag.query(question, max_new_tokens=MAX_NEW_TOKENS, **options)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_are_those_of_the_draft_free_loop(
    rag: Tandem, loop: Loop, questions: list[str], temperature: float
) -> None:
    """Whatever the server drafts, and however long its proposals are: the same tokens, to the last."""
    for seed, question in enumerate(questions):
        wanted = loop.answer(question, seed, temperature, MAX_NEW_TOKENS)
        for name, options in PACINGS.items():
            answer = ask(rag, question, seed=seed, temperature=temperature, **options)
            assert list(answer.token_ids) == wanted, name
            assert not answer.is_degraded
            assert {token.aggregator for token in answer.tokens} == {SERVER}


def test_a_vote_crosses_as_a_short_list(rag: Tandem, questions: list[str]) -> None:
    """Of two workers, with heartbeats and whatever is resent; two whole votes would take 13,000 bytes per token."""
    options = {"draft_rule": "coupled", "max_proposal": 0, "pacing": "stop_and_wait"}
    answer = ask(rag, questions[0], seed=0, temperature=1.0, **options)
    counted = answer.statistics
    assert counted.num_certified + counted.num_escalated >= len(answer.token_ids)
    assert counted.received_bytes / counted.num_tokens < 2 * 1000
    assert {token.last_voter for token in answer.tokens} <= {"alice", "bob"}


def test_an_answer_waits_for_a_worker_that_stands_still(
    rag: Tandem, loop: Loop, questions: list[str]
) -> None:
    """`on_peer_loss` is "wait" here: the worker is silent for longer than a lost one, and nothing changes."""
    wanted = loop.answer(questions[1], 5, 1.0, MAX_NEW_TOKENS)
    tokens: list[int] = []
    with Stopped(rag, "bob") as bob:
        stream = rag.stream(
            questions[1],
            seed=5,
            temperature=1.0,
            max_new_tokens=MAX_NEW_TOKENS,
            pacing="stop_and_wait",
            max_proposal=1,
        )
        for event in stream:
            if isinstance(event, TokenEvent):
                tokens.append(event.token)
                assert not event.is_alone
                if event.step == 2:
                    bob.stop()
                    Timer(SILENCE_S, bob.go_on).start()
            if isinstance(event, DoneEvent):
                assert event.statistics.total_s > SILENCE_S
    assert tokens == wanted


def test_who_is_asked_does_not_show_in_the_answer(rag: Tandem, loop: Loop, questions: list[str]) -> None:
    """The client at a worker sees that worker's titles, and opaque marks of the others."""
    wanted = loop.answer(questions[0], 4, 1.0, MAX_NEW_TOKENS)
    for home, other in (("alice", "bob"), ("bob", "alice")):
        answer = ask(rag, questions[0], seed=4, temperature=1.0, home=home)
        assert list(answer.token_ids) == wanted
        assert {token.aggregator for token in answer.tokens} == {SERVER}
        titles = {source.party: source.title for source in answer.sources}
        assert titles[home]
        assert titles[other] is None


def test_drafts_of_a_trained_server_are_accepted(rag: Tandem, questions: list[str]) -> None:
    answer = ask(rag, questions[0], seed=0, temperature=0.0)
    share = answer.statistics.num_device_accepted / answer.statistics.num_tokens
    assert (share > 0.3) is (rag.config.server.model == "bundled-drafter")


def test_documents_stay_with_their_owners(rag: Tandem, questions: list[str]) -> None:
    """The client at the server sees opaque ids; whoever asks a worker alone sees that worker's titles."""
    answer = ask(rag, questions[0], seed=0)
    assert {source.party for source in answer.sources} == {"alice", "bob"}
    assert all(source.title is None and source.text is None for source in answer.sources)
    alone = ask(rag, questions[0], seed=0, only="alice")
    assert {source.party for source in alone.sources} == {"alice"}
    assert all(source.title for source in alone.sources)
    assert alone.statistics.sent_bytes == 0


def test_a_stream_names_all_parties_and_ends(rag: Tandem, questions: list[str]) -> None:
    events = list(rag.stream(questions[0], seed=0, num_documents={"bob": 2}))
    found = {event.party: len(event.sources) for event in events if isinstance(event, SourcesEvent)}
    assert found == {SERVER: 0, "alice": 4, "bob": 2}
    assert isinstance(events[-1], DoneEvent)
    assert events[-1].reason in ("eos", "length")


def test_what_this_cluster_cannot_do_is_one_sentence(rag: Tandem) -> None:
    with pytest.raises(ConfigError, match=r'^Workers \(alice, bob\) answer in mode "federated"'):
        rag.query("Why?", mode="dual")
    with pytest.raises(ConfigError, match=r"^A party is server, alice or bob, not 'cloud'"):
        rag.query("Why?", only="cloud")
    with pytest.raises(QueryError, match=r"^cloud_filter is for documents of the cloud"):
        rag.query("Why?", cloud_filter={"source": "a"})


def test_status_shows_every_party(rag: Tandem) -> None:
    status = rag.status()
    assert set(status["parties"]) == {SERVER, "alice", "bob"}
    assert sorted(role for node in status["nodes"] for role in node["roles"]) == ["alice", "bob", SERVER]
    assert {actor["state"] for actor in status["actors"]} == {"alive"}
