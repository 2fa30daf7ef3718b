"""A retriever that cannot answer one request goes on with the next; no Ray is started."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tandem.actors.base import Runtime
from tandem.actors.retriever import RetrieverActor
from tandem.config import Config
from tandem.errors import TandemError
from tandem.messages import NotFound, Relevance, Score
from tandem.protocol.sends import Send
from tandem.side import Side

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
    actor = RetrieverActor(Side.DEVICE, Runtime(secret=b"", directory="unused", config=Config()))
    actor._retriever = Scorer()
    dispatched: asyncio.Queue[list[Send]] = asyncio.Queue()
    monkeypatch.setattr(actor, "dispatch", dispatched.put_nowait)

    async def run() -> list[Any]:
        actor.spawn(actor._serve(), "serve")
        for session, asked in enumerate((text, "fine")):
            message = Score(session=session, digest=b"digest 8", ids=("d1",), text=asked)
            actor.handle(message, "device/decoder")
        sends = [await asyncio.wait_for(dispatched.get(), 5) for _ in range(2)]
        for task in actor._tasks:
            task.cancel()
        return [send.message for (send,) in sends]

    with caplog.at_level(logging.ERROR, "tandem"):
        answers = asyncio.run(run())
    assert answers == [
        NotFound(session=0, reason=reason),
        Relevance(session=1, digest=b"digest 8", scores=(0.5,)),
    ]
    assert SECRET not in caplog.text
    assert ("in relevance" in caplog.text) == (text == "bug"), "the log says where"
