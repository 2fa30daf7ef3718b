"""A retriever that cannot answer one request goes on with the next; no Ray is started."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
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
    decode,
    encode,
)
from tandem.protocol.retrieval_requests import refuse_request, search_documents
from tandem.retrieval.documents import Document
from tandem.retrieval.retriever import Hit
from tandem.topology import Party

SECRET = "Mira's diary"


class Plane:
    """Remembers the messages that an actor sends."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[Any] = asyncio.Queue()

    def send(self, name: str, frame: bytes) -> None:
        assert name == "device/decoder"
        self.sent.put_nowait(decode(frame))

    async def close(self) -> None:
        pass


class Documents:
    """Finds one text, remembers its filter, and fails as a query or a text says."""

    num_documents, kind = 1, "fake"

    def __init__(self, text: str = "text") -> None:
        self.text, self.filter = text, None

    def search(self, query: str, k: int, given_texts: Any = (), *, filter: Any = None) -> list[Hit]:
        self.filter = filter
        if query == "refused":
            raise TandemError("one sentence with half a pair: \ud800")
        if filter == {"colour": "red"}:
            raise FilterError("no such key")
        return [Hit("a", Document(page_content=self.text, metadata={"source": "a.md"}), 0.5)]

    def relevance(self, ids: tuple[str, ...], text: str) -> list[float]:
        if text == "bug":
            raise ValueError(f"cannot embed {SECRET!r}")
        if text == "refused":
            raise TandemError("one sentence")
        return [0.5 for _ in ids]


def ask(
    monkeypatch: pytest.MonkeyPatch, documents: Documents, *requests: RetrieveRequest | RescoreRequest
) -> list[Any]:
    """The answers of a retriever of the device, and last the title of document a."""
    monkeypatch.setattr(
        "tandem.retrieval.factory.load_embedder",
        lambda *_, **__: SimpleNamespace(name="fake", fingerprint="f"),
    )
    monkeypatch.setattr("tandem.retrieval.factory.open_retriever", lambda *_: documents)

    async def run() -> list[Any]:
        actor = RetrieverActor(Party.DEVICE, Runtime(secret=b"", directory="unused", config=Config()))
        actor.plane = plane = Plane()  # type: ignore[assignment]
        await actor.prepare()
        actor.on_frames("device/decoder", [encode(request) for request in requests])
        answers = [await asyncio.wait_for(plane.sent.get(), 5) for _ in requests]
        titles = await actor.titles(["a"])
        await actor.close()
        return [*answers, *titles]

    return asyncio.run(run())


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
    requests = [
        RescoreRequest(session=session, digest=b"digest 8", ids=("d1",), text=text)
        for session, text in enumerate((text, "fine"))
    ]
    with caplog.at_level(logging.ERROR, "tandem"):
        answers = ask(monkeypatch, Documents(), *requests)
    assert answers[:2] == [
        RetrieveFailed(session=0, reason=reason),
        RescoreResult(session=1, digest=b"digest 8", scores=(0.5,)),
    ]
    assert SECRET not in caplog.text
    assert ("in relevance" in caplog.text) == (text == "bug"), "the log says where"


@pytest.mark.parametrize(("text", "query"), [("half \ud83d pair", "q"), ("text", "refused")])
def test_an_answer_that_cannot_be_encoded_ends_its_query_alone(
    text: str, query: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    requests = (
        RetrieveRequest(session=1, query=query, num_documents=3),
        RescoreRequest(session=2, digest=b"digest 8", ids=("a",), text="fine"),
    )
    answers = ask(monkeypatch, Documents(text), *requests)
    assert answers[:2] == [
        RetrieveFailed(
            session=1,
            reason="The retriever of the device failed on this query with UnicodeEncodeError; see its log.",
        ),
        RescoreResult(session=2, digest=b"digest 8", scores=(0.5,)),
    ]
    assert "half" not in caplog.text


@pytest.mark.parametrize(("filter", "found"), [("", None), ('{"page": [1, 2]}', {"page": [1, 2]})])
def test_a_search_keeps_to_its_filter(filter: str, found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = Documents()
    search = RetrieveRequest(session=1, query="q", num_documents=3, filter=filter)
    answer, title = ask(monkeypatch, documents, search)
    assert isinstance(answer, RetrieveResult)
    assert (answer.ids, answer.texts, answer.scores) == (("a",), ("text",), (0.5,))
    assert documents.filter == found
    assert title == "a.md"


def test_a_filter_that_cannot_be_kept_to_is_the_asker_s_fault() -> None:
    search = RetrieveRequest(session=1, query="q", num_documents=3, filter='{"colour": "red"}')
    with pytest.raises(FilterError) as caught:
        search_documents(Documents(), search)
    assert refuse_request(search, caught.value) == RetrieveFailed(
        session=1, reason="no such key", is_refused=True
    )
    assert not refuse_request(search, TandemError("the disk is gone")).is_refused
