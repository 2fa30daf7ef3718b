"""Many questions at once: order, bounds, failures, leaving early, Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest

from tandem.client.ask import BatchItem, answer_all, bounded
from tandem.client.tandem import Tandem
from tandem.config.schema import Config
from tandem.errors import ConfigError, QueryError
from tandem.events import Answer, DoneEvent, SessionStatistics, collect
from tandem.plugins.ray.bootstrap import Cluster
from tandem.topology import PARTIES

ANSWER = collect([DoneEvent(reason="eos", statistics=SessionStatistics())], seed=7)


class Model:
    """Answers after a while that each question names in hundredths of a second; `boom` fails, `stuck` never ends."""

    def __init__(self) -> None:
        self.num_open = self.most_open = 0
        self.asked: list[str] = []
        self.cancelled: list[str] = []

    async def ask(self, question: str) -> Answer:
        self.asked.append(question)
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        try:
            if question == "boom":
                raise QueryError("The cloud was lost.")
            await asyncio.sleep(60 if question == "stuck" else int(question) / 100)
            return ANSWER
        except asyncio.CancelledError:
            self.cancelled.append(question)
            raise
        finally:
            self.num_open -= 1


def gather(items: AsyncGenerator[BatchItem, None]) -> list[BatchItem]:
    async def read() -> list[BatchItem]:
        return [item async for item in items]

    return asyncio.run(read())


def test_answers_come_as_they_finish_and_know_their_place() -> None:
    model, told = Model(), list[tuple[int, int]]()
    items = gather(answer_all(["30", "10", "1"], model.ask, 3, lambda *counts: told.append(counts)))
    assert [(item.index, item.question) for item in items] == [(2, "1"), (1, "10"), (0, "30")]
    assert all(item.result() is item.answer for item in items)
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_a_failed_question_does_not_lose_the_others() -> None:
    items = gather(answer_all(["1", "boom", "1"], Model().ask, 1))
    assert [item.error is None for item in items] == [True, False, True]
    with pytest.raises(QueryError, match=r"^The cloud was lost\.$"):
        items[1].result()


@pytest.mark.parametrize("concurrency", [1, 3])
def test_no_more_are_open_than_asked_for(concurrency: int) -> None:
    model = Model()
    assert len(gather(answer_all(["1"] * 10, model.ask, concurrency))) == 10
    assert model.most_open == concurrency


def test_leaving_early_cancels_the_open_ones_and_asks_no_other() -> None:
    model = Model()

    async def leave() -> None:
        items = answer_all(["1", "stuck", "stuck", "9"], model.ask, 2)
        await anext(items)
        await asyncio.sleep(0)
        await items.aclose()

    asyncio.run(leave())
    assert model.num_open == 0
    assert model.asked == ["1", "stuck", "stuck"]
    assert model.cancelled == ["stuck", "stuck"]


@pytest.mark.parametrize(
    ("given", "max_sessions", "wanted"), [(8, 32, 8), (100, 32, 16), (8, 4, 2), (8, 1, 1)]
)
def test_the_parties_refuse_none(given: int, max_sessions: int, wanted: int) -> None:
    assert bounded(given, max_sessions) == wanted


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, "8", True, None])
def test_what_is_no_concurrency(concurrency: Any) -> None:
    sentence = f"concurrency must be a whole number of at least 1, but it is {concurrency!r}; correct it."
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"):
        bounded(concurrency, 32)


# ---- through the API -----------------------------------------------------------------------------------------


class AskingTandem(Tandem):
    """A Tandem whose queries a Model answers."""

    def __init__(self) -> None:
        described = {party: {"decode_line": [], "eos_token_ids": [0]} for party in PARTIES}
        super().__init__(Config(), Cluster(described=described))
        self.model = Model()

    async def aquery(self, question: str, **options: Any) -> Answer:
        return await self.model.ask(question)


def test_batch_is_checked_before_anything_is_asked() -> None:
    with AskingTandem() as rag:
        with pytest.raises(ConfigError, match="temprature does not exist"):
            rag.batch(["1"], temprature=1)  # type: ignore[call-arg]
        with pytest.raises(QueryError, match="The questions of a batch are a list"):
            rag.batch("Why?")
        assert rag.model.asked == []
        assert [item.index for item in rag.batch(iter(["1", "2"]), concurrency=1)] == [0, 1]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell starts background jobs with SIGINT ignored, and Python keeps that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_batch_is_cancelled() -> None:
    """Ctrl-C while the caller waits: every open question is cancelled before the error goes on."""
    with AskingTandem() as rag:
        items = rag.batch(["1", "stuck", "stuck"], concurrency=3)
        next(items)
        interrupt = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            next(items)
        assert rag.model.cancelled == ["stuck", "stuck"]
        assert rag.model.num_open == 0
