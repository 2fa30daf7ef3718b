"""The cloud dies under a running answer: the device goes on alone, says so, and keeps what was committed."""

from __future__ import annotations

from typing import Any

import pytest

from tandem import Tandem
from tandem.errors import QueryError
from tandem.events import DoneEvent, PeerEvent, SourcesEvent, TokenEvent
from tandem.topology import Party

from .conftest import process_of

QUESTION = "Which game should Mira try?"
TOKEN_WISE: dict[str, Any] = {"max_window": 1, "on_peer_loss": "continue"}
"""Each token crosses the link before the next."""
LONG: dict[str, Any] = {"seed": 0, "temperature": 20.0, "max_new_tokens": 300, **TOKEN_WISE}
"""At this temperature the end is one token of 1,636: the answer grows for seconds after the cloud has died."""
KILLED_AT = 3


@pytest.fixture(scope="module")
def events(rag: Tandem, killed: None) -> list[object]:
    """Those of a query; the cloud's draft queue is killed once a few tokens are there."""
    victim = process_of(rag, "cloud/draft_queue")
    seen: list[object] = []
    for event in rag.stream(QUESTION, **LONG):
        seen.append(event)
        if isinstance(event, TokenEvent) and event.step == KILLED_AT:
            victim.kill()
    return seen


@pytest.fixture(scope="module")
def undisturbed(rag: Tandem) -> tuple[int, ...]:
    """The answer with both sides alive."""
    return rag.query(QUESTION, **LONG).token_ids


def test_what_was_committed_stays_and_the_answer_says_from_where_it_is_degraded(
    undisturbed: tuple[int, ...], events: list[object]
) -> None:
    done = events[-1]
    assert isinstance(done, DoneEvent)
    assert done.reason in ("eos", "length")
    assert done.statistics.degraded_from is not None
    assert done.statistics.degraded_from > KILLED_AT
    assert [event.is_alone for event in events if isinstance(event, PeerEvent)] == [True]
    tokens = [event for event in events if isinstance(event, TokenEvent)]
    assert [event.step for event in tokens] == list(range(len(tokens)))
    together = [event.token for event in tokens if not event.is_alone]
    assert together == list(undisturbed[: len(together)])
    assert len(together) > KILLED_AT


def test_the_next_query_is_answered_by_the_device_alone(rag: Tandem, events: list[object]) -> None:
    later = list(rag.stream(QUESTION, seed=1, **TOKEN_WISE))
    assert {event.party for event in later if isinstance(event, SourcesEvent)} == {Party.DEVICE}
    assert isinstance(later[-1], DoneEvent)
    assert later[-1].statistics.degraded_from == 0
    assert all(event.is_alone for event in later if isinstance(event, TokenEvent))


def test_a_dead_decoder_of_the_device_is_one_sentence(rag: Tandem, events: list[object]) -> None:
    process_of(rag, "device/decoder").kill()
    for _ in range(2):  # also where it was dead before
        with pytest.raises(QueryError, match=r"^The device's decoder has stopped"):
            rag.query(QUESTION, timeout_s=20.0, **TOKEN_WISE)
