"""Four workers with other settings than two. One stands still and comes back; then one dies, and the others go on."""

from __future__ import annotations

import contextlib
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from tandem import Tandem
from tandem.config.schema import Config
from tandem.events import PeerEvent, TokenEvent
from tandem.topology import SERVER
from tandem_lab.bundled import read_bundled_questions
from tests.cluster.conftest import process_of
from tests.cluster.federation import Loop, Stopped, settings_of

pytestmark = pytest.mark.nightly("a cluster of its own, five nodes, to kill")

MAX_NEW_TOKENS = 24
KILLED_AT = 2
OPTIONS: dict[str, Any] = {"seed": 3, "temperature": 1.0, "max_new_tokens": MAX_NEW_TOKENS}


@pytest.fixture(scope="module")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """One of the four has no documents and counts half; votes are cut to 32 tokens."""
    owners = settings_of(tmp_path_factory.mktemp("four"), "ada=device", "ben=cloud", "cleo=cloud", "dan=")
    votes = ("codec.name=top_k", "codec.parameters={k = 32}")
    return (*owners, "workers.dan.weight=0.5", *votes, "link.on_peer_loss=continue")


@pytest.fixture(scope="module")
def questions() -> list[str]:
    return [asked.question for asked in read_bundled_questions()][:2]


@pytest.fixture(scope="module")
def loop(rag: Tandem) -> Loop:
    return Loop(rag.config)


@pytest.fixture(scope="module")
def undisturbed(rag: Tandem, loop: Loop, questions: list[str]) -> None:
    """With all four there, answers are those of the draft-free loop."""
    for question in questions:
        answer = rag.query(question, **OPTIONS)
        assert list(answer.token_ids) == loop.answer(question, 3, 1.0, MAX_NEW_TOKENS)
        assert not answer.is_degraded


def test_the_example_runs(
    rag: Tandem, undisturbed: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It starts a cluster of its own; here it gets this one, whose workers have the names of its three people."""
    path = str(Path(__file__).parents[2] / "examples" / "federated.py")
    launched: list[Config] = []

    def launch(config: Config) -> contextlib.AbstractContextManager[Tandem]:
        launched.append(config)
        return contextlib.nullcontext(rag)

    monkeypatch.setattr(Tandem, "launch", launch)
    monkeypatch.setattr(sys, "argv", [path])
    runpy.run_path(path, run_name="__main__")
    (config,) = launched
    assert list(config.workers) == ["ada", "ben", "cleo"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("notes read: 4 of ada, 4 of ben, 4 of cleo; drafts kept: ")
    begins = ("together: ", "notes read: ", "asked at ada: ", "ada alone: ", "ben alone: ", "cleo alone: ")
    assert all(
        line.startswith(begin) and len(line) > len(begin) for line, begin in zip(lines, begins, strict=True)
    )


@pytest.fixture(scope="module")
def rejoined(rag: Tandem, questions: list[str], undisturbed: None) -> list[Any]:
    """One worker stands still until it is lost, and comes back while the answer waits for another one."""
    seen: list[Any] = []
    with Stopped(rag, "ben") as ben, Stopped(rag, "ada") as ada:
        for event in rag.stream(questions[1], pacing="stop_and_wait", max_proposal=1, **OPTIONS):
            seen.append(event)
            match event:
                case TokenEvent(step=2):
                    ben.stop()
                case PeerEvent(is_alone=True):
                    ada.stop()  # so that the answer cannot end before ben is back
                    ben.go_on()
                case PeerEvent(is_alone=False):
                    ada.go_on()
    return seen


def test_a_worker_that_is_back_counts_again_from_a_stated_step(
    loop: Loop, questions: list[str], rejoined: list[Any]
) -> None:
    """What was logged of losses gives the same tokens again."""
    losses = [event for event in rejoined if isinstance(event, PeerEvent)]
    assert [(event.party, event.is_alone) for event in losses] == [("ben", True), ("ben", False)]
    lost, back = losses
    tokens = [event for event in rejoined if isinstance(event, TokenEvent)]
    assert [event.step for event in tokens if event.is_alone] == list(range(lost.step, back.step))

    def present(step: int) -> tuple[int, ...]:
        return (0, 2, 3) if lost.step <= step < back.step else (0, 1, 2, 3)

    wanted = loop.answer(questions[1], 3, 1.0, MAX_NEW_TOKENS, present)
    assert [event.token for event in tokens] == wanted
    assert rejoined[-1].statistics.degraded_from == (lost.step if lost.step < back.step else None)


def test_a_worker_that_is_asked_goes_on_without_the_server(
    rag: Tandem, loop: Loop, questions: list[str], rejoined: list[Any]
) -> None:
    """The server stands still and comes back to an answer that is none of its business any more."""
    asked: dict[str, Any] = {"home": "ada", "pacing": "stop_and_wait", "max_proposal": 1, **OPTIONS}
    seen: list[Any] = []
    with Stopped(rag, SERVER) as server:
        for event in rag.stream(questions[1], **asked):
            seen.append(event)
            if isinstance(event, TokenEvent) and event.step == KILLED_AT:
                server.stop()
            if isinstance(event, PeerEvent):
                server.go_on()
    (lost,) = [event for event in seen if isinstance(event, PeerEvent)]
    assert (lost.party, lost.is_alone) == (SERVER, True)
    tokens = [event for event in seen if isinstance(event, TokenEvent)]
    assert {event.aggregator for event in tokens[lost.step :]} == {"ada"}
    wanted = loop.answer(
        questions[1], 3, 1.0, MAX_NEW_TOKENS, lambda step: range(4) if step < lost.step else (0,)
    )
    assert [event.token for event in tokens] == wanted
    assert seen[-1].statistics.degraded_from == lost.step


@pytest.fixture(scope="module")
def events(rag: Tandem, questions: list[str], rejoined: list[Any]) -> list[object]:
    """The same query; the draft queue of one worker is killed once a few tokens are there."""
    victim = process_of(rag, "ben/draft_queue")
    seen: list[object] = []
    for event in rag.stream(questions[1], pacing="stop_and_wait", max_proposal=1, **OPTIONS):
        seen.append(event)
        if isinstance(event, TokenEvent) and event.step == KILLED_AT:
            victim.kill()
    return seen
