"""Sites in one process answer as a Ray cluster does, token for token and flag for flag: both are held to one record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tandem import Config, Tandem
from tandem_lab.bundled import read_bundled_questions
from tests.cluster.federation import Loop, settings_of
from tests.cluster.recorded import CASES, TEMPERATURES, check_answers

PAIRS = range(2)
"""With all cases and temperatures 28 pairs of question and options; the cluster is asked the next ones."""
QUESTIONS = [asked.question for asked in read_bundled_questions()][:2]
SPECULATIVE: tuple[dict[str, Any], ...] = (
    {"pacing": "stop_and_wait", "max_proposal": 4},
    {"pacing": "pipelined", "max_proposal": 3},
    {"pacing": "cloud_goes_on", "max_proposal": 4},
    {"pacing": "stop_and_wait", "max_proposal": 0},
)


@pytest.mark.parametrize(("codec", "case"), CASES)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_dual_answers_are_those_recorded(rag: Tandem, codec: str, case: str, temperature: int) -> None:
    check_answers(rag, codec, case, temperature, PAIRS)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_speculative_answers_are_those_of_the_cloud_alone(rag: Tandem, temperature: float) -> None:
    for seed, question in enumerate(QUESTIONS):
        asked = {"mode": "speculative", "seed": seed, "temperature": temperature}
        alone = rag.query(question, only="cloud", **asked)
        assert alone.statistics.sent_bytes == 0
        for options in SPECULATIVE:
            together = rag.query(question, **asked, **options)
            assert together.token_ids == alone.token_ids, options
            assert not together.is_degraded


def test_answers_with_lengths_that_adapt_are_those_of_the_cloud_alone() -> None:
    config = Config.load(None, ["preset=flexspec", "link.on_peer_loss=wait"])
    with Tandem.launch(config, runtime="inline") as rag:
        asked: dict[str, Any] = {"seed": 0, "temperature": 0.0}
        alone, together = (rag.query(QUESTIONS[0], **asked, **only) for only in ({"only": "cloud"}, {}))
        assert together.token_ids == alone.token_ids
        assert together.statistics.num_device_accepted > 0


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tandem]:
    """Alice has the bundled notes and bob the pages; only both together can answer."""
    overrides = settings_of(tmp_path_factory.mktemp("owners"), "alice=device", "bob=cloud")
    config = Config.load(None, [*overrides, "link.on_peer_loss=wait"])
    with Tandem.launch(config, runtime="inline") as rag:
        yield rag


def test_an_answer_at_a_worker_or_at_the_server_is_that_of_the_draft_free_loop(owners: Tandem) -> None:
    loop = Loop(owners.config)
    assert set(owners.status()["parties"]) == {"server", "alice", "bob"}
    for seed, question in enumerate(QUESTIONS):
        at_server, at_alice, at_bob = (
            owners.query(question, seed=seed, temperature=1.0, max_new_tokens=12, home=home)
            for home in ("server", "alice", "bob")
        )
        assert list(at_alice.token_ids) == loop.answer(question, seed, 1.0, 12)
        assert at_server.token_ids == at_alice.token_ids == at_bob.token_ids
        assert {token.aggregator for token in at_alice.tokens} == {"server"}
        assert {token.last_voter for token in at_alice.tokens} <= {"alice", "bob"}
        # How many drafts are there in time differs from run to run; that some were accepted is known at home.
        assert all(answer.statistics.num_device_accepted > 0 for answer in (at_server, at_alice, at_bob))
        assert not at_alice.is_degraded


def test_a_worker_that_asks_sees_its_own_documents_and_gets_an_answer_that_needs_them(owners: Tandem) -> None:
    question, answer = "Which game should Mira try?", "Mira likes puzzle games, so try Pukan Vakun."
    asked: dict[str, Any] = {"seed": 0, "temperature": 0.0, "home": "alice"}
    given = owners.query(question, **asked)
    assert given.text == answer
    assert owners.query(question, num_documents={"alice": 0}, **asked).text != answer
    sources = {party: [each for each in given.sources if each.party == party] for party in ("alice", "bob")}
    assert all(sources.values())
    assert all(source.title and source.text for source in sources["alice"])
    assert not any(source.title or source.text or source.score for source in sources["bob"])
    at_server = owners.query(question, seed=0, max_new_tokens=1)
    assert {source.party for source in at_server.sources} == {"alice", "bob"}
    assert not any(source.title or source.text for source in at_server.sources)
