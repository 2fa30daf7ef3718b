"""A retriever that cannot answer one request goes on with the next; no Ray is started."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandem.actors import retriever as module
from tandem.actors.retriever import RetrieverActor
from tandem.config.parties import PartyConfig
from tandem.errors import Code, Fault, FilterError, TandemError
from tandem.messages import (
    RetrieveFailed,
    RetrieveRequest,
    RetrieveResult,
    decode,
)
from tandem.retrieval import Embedder, build_index
from tandem.retrieval.documents import Document
from tandem.retrieval.retriever import Hit
from tandem.topology import Party
from tests.unit.retrieval.conftest import WordEmbedder

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


@pytest.mark.parametrize(("filter", "parsed"), [("", None), ('{"page": [1, 2]}', {"page": [1, 2]})])
def test_a_search_keeps_to_its_filter(filter: str, parsed: Any) -> None:
    actor = Actor(Documents())
    search = RetrieveRequest(session=1, query="q", num_documents=3, filter=filter)
    (result,) = asyncio.run(answers(actor, search))
    assert isinstance(result, RetrieveResult)
    assert (result.ids, result.texts, result.scores) == (("a",), ("text",), (0.5,))
    assert actor.retriever.filter == parsed
    known = {"title": "a.md", "text": "text", "page": None, "metadata": {"source": "a.md"}}
    assert asyncio.run(actor.passages(["a", "b"])) == [known, {}]


def test_a_retriever_remembers_a_bounded_number_of_passages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REMEMBERED", 1)
    documents = Documents()
    actor = Actor(documents)
    search = RetrieveRequest(session=1, query="q", num_documents=3)
    actor.answer(search)
    monkeypatch.setattr(documents, "search", lambda *_, **__: [Hit("b", Document(page_content="more"), 0.5)])
    actor.answer(search)
    assert [bool(passage) for passage in asyncio.run(actor.passages(["a", "b"]))] == [False, True]


def test_a_party_without_documents_embeds_nothing() -> None:
    with pytest.raises(TandemError, match="has no embedder"):
        asyncio.run(Actor(Documents()).embed(["text"]))


def test_a_filter_that_cannot_be_kept_to_is_the_asker_s_fault() -> None:
    search = RetrieveRequest(session=1, query="q", num_documents=3, filter='{"colour": "red"}')
    (refused,) = asyncio.run(answers(Actor(Documents()), search))
    fault = Fault(code=Code.INVALID, option="device_filter")
    assert refused == RetrieveFailed(session=1, reason="no such key", fault=fault)
    assert fault.is_refusal
    assert not TandemError("the disk is gone").fault.is_refusal


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


async def test_an_index_that_changes_is_used_from_the_next_request_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Embedder, "load", lambda *_, **__: WordEmbedder())
    texts = [
        Document(page_content=f"{animal} games", metadata={"source": animal}) for animal in ("owl", "fox")
    ]
    build_index(texts[:1], tmp_path, WordEmbedder())
    actor = RetrieverActor(Party.DEVICE, runtime(f"device.index={tmp_path}"))
    search = RetrieveRequest(session=1, query="owl games", num_documents=4)
    await actor.prepare()
    before = actor.answer(search)
    assert isinstance(before, RetrieveResult)
    assert before.texts == ("owl games",)
    build_index(texts[1:], tmp_path, WordEmbedder())
    after = actor.answer(search)
    assert isinstance(after, RetrieveResult)
    assert after.texts == ("fox games",)
    assert [known["text"] for known in await actor.passages([*before.ids, *after.ids])] == [
        "owl games",
        "fox games",
    ]
    await asyncio.sleep(0)  # its loop begins
    await actor.close()


async def test_a_request_that_repeats_an_unanswered_one_is_answered_once() -> None:
    """A coordinator reminds a decoder that is only slow, which then asks again."""
    actor = Actor(Documents())
    request = RetrieveRequest(session=1, query="q", num_documents=1)
    for _ in range(3):
        actor.handle(request, "device/decoder")
    actor.spawn(actor.serve(), "serve")
    await asyncio.wait_for(actor.sent.get(), 60)
    actor.handle(replace(request, session=2), "device/decoder")
    second = await asyncio.wait_for(actor.sent.get(), 60)
    assert second.session == 2, "the repetitions were answered, too"
    actor.handle(request, "device/decoder")
    assert (await asyncio.wait_for(actor.sent.get(), 60)).session == 1, (
        "an answer that was lost is given again"
    )
    await actor.close()
