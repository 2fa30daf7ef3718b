"""A retriever that cannot answer one request goes on with the next; no Ray is started."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from tandem.actors.base import Runtime
from tandem.actors.retriever import RetrieverActor
from tandem.config import Config
from tandem.errors import FilterError, TandemError
from tandem.protocol.messages import (
    RescoreRequest,
    RescoreResult,
    RetrieveFailed,
    RetrieveRequest,
    RetrieveResult,
    encode,
)
from tandem.protocol.outbox import Send
from tandem.retrieval.documents import Document
from tandem.retrieval.retriever import Hit
from tandem.topology import Party

SECRET = "Mira's diary"


class Actor(RetrieverActor):
    """The real actor over a scripted index; `sent` is what it dispatched."""

    def __init__(self, scripted: Any) -> None:
        super().__init__(Party.DEVICE, Runtime(secret=b"", directory="unused", config=Config()))
        self.scripted = scripted
        self.sent: asyncio.Queue[Any] = asyncio.Queue()

    @property
    def retriever(self) -> Any:
        return self.scripted

    def dispatch(self, sends: list[Send]) -> None:
        for send in sends:
            encode(send.message)
            self.sent.put_nowait(send.message)


async def answers(actor: Actor, *requests: RescoreRequest | RetrieveRequest) -> list[Any]:
    """What the actor's loop answers to requests, in order."""
    actor.spawn(actor.serve(), "serve")
    for request in requests:
        actor.handle(request, "device/decoder")
    sent = [await asyncio.wait_for(actor.sent.get(), 5) for _ in requests]
    await actor.close()
    return sent


class Scorer:
    """Fails on a text as its name says."""

    def relevance(self, ids: tuple[str, ...], text: str) -> list[float]:
        if text == "bug":
            raise ValueError(f"cannot embed {SECRET!r}")
        if text == "refused":
            raise TandemError("one sentence")
        return [0.5 for _ in ids]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("bug", "The retriever of the device failed on this query with ValueError; see its log."),
        ("refused", "one sentence"),
    ],
)
def test_a_failure_ends_its_query_alone(text: str, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    requests = [
        RescoreRequest(session=session, digest=b"digest 8", ids=("d1",), text=asked)
        for session, asked in enumerate((text, "fine"))
    ]
    with caplog.at_level(logging.ERROR, "tandem"):
        sent = asyncio.run(answers(Actor(Scorer()), *requests))
    assert sent == [
        RetrieveFailed(session=0, reason=reason),
        RescoreResult(session=1, digest=b"digest 8", scores=(0.5,)),
    ]
    assert SECRET not in caplog.text
    assert ("in relevance" in caplog.text) == (text == "bug"), "the log says where"


class Index:
    """Remembers the filter of a search."""

    def __init__(self, text: str = "text") -> None:
        self.text = text

    def search(self, query: str, k: int, *, filter: Any = None) -> list[Hit]:
        self.filter = filter
        if filter == {"colour": "red"}:
            raise FilterError("no such key")
        return [Hit("a", Document(page_content=self.text, metadata={"source": "a.md"}), 0.5)]


@pytest.mark.parametrize(("filter", "parsed"), [("", None), ('{"page": [1, 2]}', {"page": [1, 2]})])
def test_a_search_keeps_to_its_filter(filter: str, parsed: Any) -> None:
    actor = Actor(Index())
    result = actor.answer(RetrieveRequest(session=1, query="q", num_documents=3, filter=filter))
    assert isinstance(result, RetrieveResult)
    assert (result.ids, result.texts, result.scores) == (("a",), ("text",), (0.5,))
    assert actor.retriever.filter == parsed
    assert asyncio.run(actor.titles(["a"])) == ["a.md"]


def test_a_filter_that_cannot_be_kept_to_is_the_asker_s_fault() -> None:
    search = RetrieveRequest(session=1, query="q", num_documents=3, filter='{"colour": "red"}')
    (refused,) = asyncio.run(answers(Actor(Index()), search))
    assert refused == RetrieveFailed(session=1, reason="no such key", is_refused=True)


def test_an_answer_that_cannot_be_encoded_fails_its_query_alone() -> None:
    """Half a surrogate pair, as a LangChain store may hold: no UTF-8 can carry it."""
    index = Index("half \ud83d a character")
    actor = Actor(index)
    search = RetrieveRequest(session=1, query="q", num_documents=1)

    async def run() -> list[Any]:
        actor.spawn(actor.serve(), "serve")
        actor.handle(search, "device/decoder")
        failed = await asyncio.wait_for(actor.sent.get(), 5)
        index.text = "a whole one"
        actor.handle(replace(search, session=2), "device/decoder")
        answered = await asyncio.wait_for(actor.sent.get(), 5)
        await actor.close()
        return [failed, answered]

    failed, answered = asyncio.run(run())
    assert isinstance(failed, RetrieveFailed)
    assert failed.reason == (
        "The retriever of the device failed on this query with UnicodeEncodeError; see its log."
    )
    assert isinstance(answered, RetrieveResult)
