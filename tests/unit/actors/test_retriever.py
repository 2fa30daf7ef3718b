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
from tandem.config.schema import Config
from tandem.errors import FilterError, TandemError
from tandem.messages import RetrieveFailed, RetrieveRequest, RetrieveResult
from tandem.retrieval.documents import Document
from tandem.retrieval.retriever import Hit
from tandem.topology import Party
from tests.unit.transport.conftest import until

from .conftest import Outbox, runtime

SECRET = "Mira's diary"


class Actor(RetrieverActor):
    """The real actor over a scripted index."""

    def __init__(self, scripted: Any) -> None:
        super().__init__(Party.DEVICE, runtime())
        self.scripted = scripted
        self.outbox = Outbox()
        self.plane = self.outbox  # type: ignore[assignment]

    @property
    def retriever(self) -> Any:
        return self.scripted


class Documents:
    """Finds one text, and fails as a query says."""

    def search(self, query: str, k: int, *, filter: Any = None) -> list[Hit]:
        if query == "bug":
            raise ValueError(f"cannot embed {SECRET!r}")
        if query == "refused":
            raise TandemError("one sentence with half a pair: \ud800")
        if filter == {"colour": "red"}:
            raise FilterError("no such key")
        text = f"{SECRET} \ud83d" if query == "no UTF-8" else "text"  # as a LangChain store may hold
        return [Hit("a", Document(page_content=text, metadata={"source": "a.md"}), 0.5)]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("bug", "The retriever of the device failed on this query with ValueError; see its log."),
        ("refused", "one sentence with half a pair: \\ud800"),
        (
            "no UTF-8",
            "A text cannot be written as UTF-8: character 13 is half a surrogate pair; "
            "repair the document or question that it comes from.",
        ),
    ],
)
async def test_a_failure_ends_its_query_alone(
    query: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "tandem")
    actor = Actor(Documents())
    actor.spawn(actor.serve(), "serve")
    for session, asked in enumerate((query, "fine")):
        actor.handle(RetrieveRequest(session=session, query=asked, num_documents=1), "device/decoder")
    await until(lambda: len(actor.outbox.sent) == 2)
    await actor.close()
    assert {to for to, _ in actor.outbox.sent} == {"device/decoder"}
    failed, found = actor.outbox.messages
    assert failed == RetrieveFailed(session=0, reason=reason)
    assert isinstance(found, RetrieveResult)
    assert (found.session, found.ids) == (1, ("a",))
    assert SECRET not in caplog.text
    assert ("test_retriever.py:" in "".join(caplog.messages[:1])) == (query == "bug"), "where"


@pytest.mark.parametrize(("steps", "marks"), [("auto", b"abc"), ("never", b"")])
def test_a_party_that_takes_no_steps_sends_no_marks(steps: str, marks: bytes) -> None:
    documents = Documents()
    documents.marks = lambda texts: b"abc"  # type: ignore[attr-defined]
    actor = Actor(documents)
    actor.config = Config.load(None, [f"decoding.steps={steps}"])
    request = RetrieveRequest(session=1, query="q", num_documents=3, wants_marks=True)
    assert actor.answer(request).marks == marks
    assert actor.answer(replace(request, wants_marks=False)).marks == b""
    assert Actor(Documents()).answer(request).marks == b""  # the store of a plugin


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
