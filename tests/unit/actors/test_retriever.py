"""A retriever that cannot answer one request goes on with the next; no Ray is started."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from tandem.actors import retriever as module
from tandem.actors.retriever import RetrieverActor
from tandem.config.parties import PartyConfig
from tandem.errors import FilterError, TandemError
from tandem.messages import (
    RetrieveFailed,
    RetrieveRequest,
    RetrieveResult,
    decode,
)
from tandem.retrieval.documents import Document
from tandem.retrieval.retriever import Hit
from tandem.topology import Party

from .conftest import Outbox, runtime

SECRET = "Mira's diary"


class Plane(Outbox):
    """Queues the messages that an actor sends."""

    def __init__(self) -> None:
        super().__init__()
        self.queued: asyncio.Queue[Any] = asyncio.Queue()

    def send(self, to: str, frame: bytes) -> None:
        assert to == "device/decoder"
        self.queued.put_nowait(decode(frame))


class Actor(RetrieverActor):
    """The real actor over a scripted index; `sent` is what it sent."""

    def __init__(self, scripted: Any) -> None:
        super().__init__(Party.DEVICE, runtime())
        self.scripted = scripted
        self.plane = plane = Plane()  # type: ignore[assignment]
        self.sent = plane.queued

    @property
    def retriever(self) -> Any:
        return self.scripted


async def answers(actor: Actor, *requests: RetrieveRequest) -> list[Any]:
    """What the actor's loop answers to requests, in order."""
    actor.spawn(actor.serve(), "serve")
    for request in requests:
        actor.handle(request, "device/decoder")
    sent = [await asyncio.wait_for(actor.sent.get(), 60) for _ in requests]
    await actor.close()
    return sent


class Documents:
    """Finds one text, remembers its filter, and fails as a query or a text says."""

    def __init__(self, text: str = "text") -> None:
        self.text = text

    def search(self, query: str, k: int, *, filter: Any = None) -> list[Hit]:
        self.filter = filter
        if query == "bug":
            raise ValueError(f"cannot embed {SECRET!r}")
        if query == "refused":
            raise TandemError("one sentence with half a pair: \ud800")
        if filter == {"colour": "red"}:
            raise FilterError("no such key")
        return [Hit("a", Document(page_content=self.text, metadata={"source": "a.md"}), 0.5)]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("bug", "The retriever of the device failed on this query with ValueError; see its log."),
        ("refused", "one sentence with half a pair: \\ud800"),
    ],
)
def test_a_failure_ends_its_query_alone(query: str, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    requests = [
        RetrieveRequest(session=session, query=asked, num_documents=1)
        for session, asked in enumerate((query, "fine"))
    ]
    with caplog.at_level(logging.ERROR, "tandem"):
        sent = asyncio.run(answers(Actor(Documents()), *requests))
    failed, found = sent
    assert failed == RetrieveFailed(session=0, reason=reason)
    assert isinstance(found, RetrieveResult)
    assert (found.session, found.ids) == (1, ("a",))
    assert SECRET not in caplog.text
    assert ("test_retriever.py:" in caplog.messages[0] if caplog.messages else False) == (query == "bug"), (
        "where"
    )


def test_a_retriever_remembers_a_bounded_number_of_passages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REMEMBERED", 1)
    documents = Documents()
    actor = Actor(documents)
    search = RetrieveRequest(session=1, query="q", num_documents=3)
    actor.answer(search)
    monkeypatch.setattr(documents, "search", lambda *_, **__: [Hit("b", Document(page_content="more"), 0.5)])
    actor.answer(search)
    assert [bool(passage) for passage in asyncio.run(actor.passages(["a", "b"]))] == [False, True]


@pytest.mark.parametrize(
    ("query", "filter", "refusal"),
    [
        ("q", '{"source": "a.md"}', []),
        ("q", '{"colour": "red"}', ["no such key", "invalid", "device_filter"]),
        ("refused", '{"source": "a.md"}', ["one sentence with half a pair: \\ud800", "failed", ""]),
        (
            "bug",
            '{"source": "a.md"}',
            ["The retriever of the device failed on this query with ValueError; see its log.", "failed", ""],
        ),
    ],
)
@pytest.mark.parametrize("privacy", [0.0, 1.0])
def test_a_client_learns_beforehand_what_would_fail(
    query: str, filter: str, refusal: list[str], privacy: float
) -> None:
    """Unless the party answers all the same."""
    actor = Actor(Documents())
    actor.config = replace(actor.config, device=PartyConfig(privacy=privacy))
    assert asyncio.run(actor.find_refusal(query, 3, filter)) == ([] if privacy else refusal)


def test_an_answer_that_cannot_be_encoded_fails_its_query_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Half a surrogate pair: no UTF-8 can carry it."""
    documents = Documents(f"{SECRET} \ud83d")  # as a LangChain store may hold
    actor = Actor(documents)
    failing = RetrieveRequest(session=1, query="q", num_documents=1)

    async def run() -> list[Any]:
        actor.spawn(actor.serve(), "serve")
        actor.handle(failing, "device/decoder")
        failed = await asyncio.wait_for(actor.sent.get(), 60)
        documents.text = "a whole one"
        actor.handle(replace(failing, session=2), "device/decoder")
        answered = await asyncio.wait_for(actor.sent.get(), 60)
        await actor.close()
        return [failed, answered]

    failed, answered = asyncio.run(run())
    assert failed == RetrieveFailed(
        session=1,
        reason="A text cannot be written as UTF-8: character 13 is half a surrogate pair; "
        "repair the document or question that it comes from.",
    )
    assert isinstance(answered, RetrieveResult)
    assert SECRET not in caplog.text
