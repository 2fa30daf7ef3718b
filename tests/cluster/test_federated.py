"""Federated decoding on a real cluster: a server drafts, workers with documents of their own vote."""

from __future__ import annotations

from threading import Timer
from typing import Any

import pytest

from tandem import Tandem
from tandem.events import Answer, DoneEvent, TokenEvent
from tandem_lab.bundled import read_bundled_questions
from tests.cluster.federation import Loop, Stopped, settings_of

pytestmark = pytest.mark.nightly("a cluster of its own: a server that drafts well, and two owners")

NUM_QUESTIONS = 3
MAX_NEW_TOKENS = 24
SILENCE_S = 2.5
"""Longer than it takes to count a worker as lost."""


@pytest.fixture(scope="module")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Two owners and a server that drafts well; documents say how much a worker counts."""
    return settings_of(tmp_path_factory.mktemp("federation"), "alice=device", "bob=cloud")


@pytest.fixture(scope="module")
def questions() -> list[str]:
    return [asked.question for asked in read_bundled_questions()][:NUM_QUESTIONS]


@pytest.fixture(scope="module")
def loop(rag: Tandem) -> Loop:
    return Loop(rag.config)


def ask(rag: Tandem, question: str, **options: Any) -> Answer:
    return rag.query(question, max_new_tokens=MAX_NEW_TOKENS, **options)


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


def test_documents_stay_with_their_owners(rag: Tandem, questions: list[str]) -> None:
    """The client at the server sees opaque ids; whoever asks a worker alone sees that worker's titles."""
    answer = ask(rag, questions[0], seed=0)
    assert {source.party for source in answer.sources} == {"alice", "bob"}
    assert all(source.title is None and source.text is None for source in answer.sources)
    alone = ask(rag, questions[0], seed=0, only="alice")
    assert {source.party for source in alone.sources} == {"alice"}
    assert all(source.title for source in alone.sources)
    assert alone.statistics.sent_bytes == 0
