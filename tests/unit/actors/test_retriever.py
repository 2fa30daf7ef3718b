"""A retriever that cannot answer one request goes on with the next; no Ray is started."""

from __future__ import annotations

import asyncio
import logging
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
)
from tandem.protocol.outbox import Send
from tandem.protocol.retrieval_requests import refuse_request, search_documents
from tandem.retrieval.documents import Document
from tandem.retrieval.retriever import Hit
from tandem.topology import Party

SECRET = "Mira's diary"


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
def test_a_failure_ends_its_query_alone(
    text: str, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    actor = RetrieverActor(Party.DEVICE, Runtime(secret=b"", directory="unused", config=Config()))
    actor._retriever = Scorer()
    dispatched: asyncio.Queue[list[Send]] = asyncio.Queue()
    monkeypatch.setattr(actor, "dispatch", dispatched.put_nowait)

    async def run() -> list[Any]:
        actor.spawn(actor._serve(), "serve")
        for session, asked in enumerate((text, "fine")):
            message = RescoreRequest(session=session, digest=b"digest 8", ids=("d1",), text=asked)
            actor.handle(message, "device/decoder")
        sends = [await asyncio.wait_for(dispatched.get(), 5) for _ in range(2)]
        for task in actor._tasks:
            task.cancel()
        return [send.message for (send,) in sends]

    with caplog.at_level(logging.ERROR, "tandem"):
        answers = asyncio.run(run())
    assert answers == [
        RetrieveFailed(session=0, reason=reason),
        RescoreResult(session=1, digest=b"digest 8", scores=(0.5,)),
    ]
    assert SECRET not in caplog.text
    assert ("in relevance" in caplog.text) == (text == "bug"), "the log says where"


class Searched:
    """Remembers what it was searched for."""

    def search(self, query: str, k: int, given_texts: Any = (), *, filter: Any = None) -> list[Hit]:
        self.filter = filter
        if filter == {"colour": "red"}:
            raise FilterError("no such key")
        return [Hit("a", Document(page_content="text", metadata={"source": "a.md"}), 0.5)]


@pytest.mark.parametrize(("filter", "found"), [("", None), ('{"page": [1, 2]}', {"page": [1, 2]})])
def test_a_search_keeps_to_its_filter(filter: str, found: Any) -> None:
    actor = RetrieverActor(Party.DEVICE, Runtime(secret=b"", directory="unused", config=Config()))
    actor._retriever = Searched()
    answer = actor._answer(RetrieveRequest(session=1, query="q", num_documents=3, filter=filter))
    assert isinstance(answer, RetrieveResult)
    assert (answer.ids, answer.texts, answer.scores) == (("a",), ("text",), (0.5,))
    assert actor._retriever.filter == found
    assert asyncio.run(actor.titles(["a"])) == ["a.md"]


def test_a_filter_that_cannot_be_kept_to_is_the_asker_s_fault() -> None:
    search = RetrieveRequest(session=1, query="q", num_documents=3, filter='{"colour": "red"}')
    with pytest.raises(FilterError) as caught:
        search_documents(Searched(), search)  # type: ignore[arg-type]
    assert refuse_request(search, caught.value) == RetrieveFailed(
        session=1, reason="no such key", is_refused=True
    )
    assert not refuse_request(search, TandemError("the disk is gone")).is_refused
