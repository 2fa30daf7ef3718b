"""The cloud dies under a running answer: the device goes on alone, says so, and keeps what was committed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tandem import Tandem
from tandem.errors import QueryError
from tandem.events import DoneEvent, PeerEvent, SourcesEvent, TokenEvent
from tandem.topology import Party
from tandem_lab.baselines.experiments import Experiments

from .conftest import process_of

QUESTION = "Which game should Mira try?"
OPTIONS = {"seed": 4, "temperature": 1.0, "max_new_tokens": 24}
KILLED_AT = 3
OWN_CLUSTER = "one more cluster to kill"


@pytest.fixture(
    scope="module", params=["dual", pytest.param("speculative", marks=pytest.mark.nightly(OWN_CLUSTER))]
)
def mode(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options of a query each of whose tokens, or proposals, crosses the link before the next."""
    return {
        "mode": request.param,
        "pacing": "stop_and_wait",
        "max_window": 1 if request.param == "dual" else 16,
    }


@pytest.fixture(scope="module")
def experiments(mode: dict[str, Any]) -> Experiments:
    """A slow link, so that the answer grows for seconds after the token at which the cloud dies; each mode has a
    cluster to kill."""
    return Experiments(extra_delay_s=0.25)


@pytest.fixture(scope="module")
def rag(rag: Tandem) -> Tandem:
    """The device continues alone."""
    rag.config = replace(rag.config, link=replace(rag.config.link, on_peer_loss="continue"))
    return rag


@pytest.fixture(scope="module")
def undisturbed(rag: Tandem, mode: dict[str, Any]) -> tuple[int, ...]:
    """The answer with both sides alive."""
    return rag.query(QUESTION, **OPTIONS, **mode).token_ids


@pytest.fixture(scope="module")
def events(rag: Tandem, mode: dict[str, Any], undisturbed: tuple[int, ...]) -> list[object]:
    """The same query; the cloud's draft queue is killed once a few tokens are there."""
    victim = process_of(rag, "cloud/draft_queue")
    seen: list[object] = []
    for event in rag.stream(QUESTION, **OPTIONS, **mode):
        seen.append(event)
        if isinstance(event, TokenEvent) and event.step == KILLED_AT:
            victim.kill()
    return seen


def test_the_answer_ends_and_says_from_where_it_is_degraded(events: list[object]) -> None:
    done = events[-1]
    assert isinstance(done, DoneEvent)
    assert done.reason in ("eos", "length")
    assert done.statistics.degraded_from is not None
    assert done.statistics.degraded_from > KILLED_AT
    lost = [event for event in events if isinstance(event, PeerEvent)]
    assert [event.is_alone for event in lost] == [True]


def test_committed_tokens_are_neither_lost_nor_repeated(
    events: list[object], undisturbed: tuple[int, ...]
) -> None:
    tokens = [event for event in events if isinstance(event, TokenEvent)]
    assert [event.step for event in tokens] == list(range(len(tokens)))
    together = [event.token for event in tokens if not event.is_alone]
    assert together == list(undisturbed[: len(together)])
    assert len(together) > KILLED_AT


def test_the_next_query_is_answered_by_the_device_alone(
    rag: Tandem, mode: dict[str, Any], events: list[object]
) -> None:
    later = list(rag.stream(QUESTION, seed=1, **mode))
    assert {event.party for event in later if isinstance(event, SourcesEvent)} == {Party.DEVICE}
    assert isinstance(later[-1], DoneEvent)
    assert later[-1].statistics.degraded_from == 0
    assert all(event.is_alone for event in later if isinstance(event, TokenEvent))


def test_a_dead_decoder_of_the_device_is_one_sentence(
    rag: Tandem, mode: dict[str, Any], events: list[object]
) -> None:
    process_of(rag, "device/decoder").kill()
    with pytest.raises(QueryError, match=r"^The device's decoder has stopped"):
        rag.query(QUESTION, timeout_s=20.0, **mode)
    with pytest.raises(QueryError, match=r"^The device's decoder has stopped"):
        rag.query(QUESTION, timeout_s=20.0, **mode)  # also where it was dead before
