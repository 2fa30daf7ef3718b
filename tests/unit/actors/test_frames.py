"""What an actor does with frames that it cannot use, or cannot send; no Ray is started."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.actors.draft_queue import DraftQueueActor
from tandem.actors.retriever import RetrieverActor
from tandem.messages import Begin, DecoderReady, Heartbeat, RetrieveFailed, RetrieveResult, encode
from tandem.protocol.routes import Send
from tandem.topology import Party

from .conftest import Outbox, frame_of, runtime


@pytest.fixture
def queue() -> DraftQueueActor:
    actor = DraftQueueActor(Party.DEVICE, runtime())
    actor.plane = Outbox()  # type: ignore[assignment]
    return actor


@pytest.mark.parametrize("source", ["cloud/draft_queue", "device/decoder"])
def test_a_body_without_its_message_is_counted_as_malformed(queue: DraftQueueActor, source: str) -> None:
    """It is well-formed but names no session; the frame after it is still handled."""
    queue.on_frames(source, [encode(Heartbeat()), encode(frame_of(Heartbeat()))])
    assert queue.num_malformed == 1


def test_malformed_frames_cannot_fill_a_log(queue: DraftQueueActor, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever sends them decides how many there are."""
    with caplog.at_level("WARNING"):
        queue.on_frames("cloud/draft_queue", [b"nonsense"] * 1000)
    assert queue.num_malformed == 1000
    assert len(caplog.records) == 10, "the 1st, 2nd, 4th, ... 512th"


def run_retriever(text: str) -> list[Any]:
    """What a retriever sends for two queries, where the first finds a document of this text."""
    actor = RetrieverActor(Party.DEVICE, runtime())
    actor.plane = outbox = Outbox()  # type: ignore[assignment]
    answers = [
        RetrieveResult(session=session, ids=("d",), texts=(found,), scores=(0.5,), retrieve_us=1)
        for session, found in ((1, text), (2, "short"))
    ]
    for answer in answers:
        actor.dispatch([Send("decoder", answer)])
    return outbox.messages


def test_an_answer_that_cannot_be_sent_ends_its_query_alone() -> None:
    """One that is too long used to break the connection within the site."""
    failed, found = run_retriever("x" * (1 << 22))
    assert isinstance(failed, RetrieveFailed)
    assert failed.session == 1
    assert "exceeds the 4194304 bytes" in failed.reason
    assert found.texts == ("short",)


def test_a_message_meant_within_a_site_is_refused_from_the_peer(queue: DraftQueueActor) -> None:
    ready = DecoderReady(session=1, sources=(), scores=(), retrieve_us=0, prefill_us=0, notes=())
    for message in (ready, Begin(session=1, spec="{}")):
        queue.on_frames("cloud/draft_queue", [encode(message)])
    assert queue.num_malformed == 2
    queue.on_frames("device/decoder", [encode(ready)])
    assert queue.num_malformed == 2
