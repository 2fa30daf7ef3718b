"""Queries and streams without parties: who waits for whom, what a client that leaves or stalls ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, NoReturn

import pytest

from tandem.client.answers import Trimmer
from tandem.errors import QueryError, TandemError
from tandem.events import DoneEvent, Event, SessionStatistics, TokenEvent
from tandem.plugins.server.http import SIGN, ClientLeftError, EventStream, while_connected
from tandem.plugins.server.openai import AnswerReader
from tandem.plugins.server.queries import BUFFERED_EVENTS, RunningQuery
from tests.token_events import committed

DONE = DoneEvent(reason="eos", statistics=SessionStatistics())


def token(step: int) -> TokenEvent:
    return committed(step, text=f" {step}")


class Source:
    """Events of a scripted query, and whether it was closed."""

    def __init__(self, *events: Event, error: Exception | None = None, is_endless: bool = False) -> None:
        self.events = events
        self.error = error
        self.is_endless = is_endless
        self.is_closed = False
        self.num_ended = 0

    async def stream(self) -> AsyncGenerator[Event, None]:
        try:
            for event in self.events:
                yield event
            if self.error is not None:
                raise self.error
            if self.is_endless:
                await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # a party is told: that takes a turn of the loop
            self.is_closed = True

    def start(self) -> RunningQuery:
        return RunningQuery(self.stream(), lambda event: None, self.end)

    def end(self) -> None:
        self.num_ended += 1


async def until(holds: Callable[[], bool]) -> None:
    """Wait for it, 10 s at most."""
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen")


async def never() -> dict[str, Any]:
    """A client that stays."""
    await asyncio.Event().wait()
    raise AssertionError


async def nothing() -> None:
    pass


async def gone() -> dict[str, Any]:
    await asyncio.sleep(0.01)
    return {"type": "http.disconnect"}


async def as_texts(query: RunningQuery) -> AsyncIterator[bytes]:
    async for _ in query:
        yield b"x"


@pytest.mark.asyncio
async def test_what_waits_for_a_slow_client_is_bounded() -> None:
    num_read = 0

    def count(event: Event) -> None:
        nonlocal num_read
        num_read += 1

    source = Source(*(token(step) for step in range(3 * BUFFERED_EVENTS)), DONE)
    query = RunningQuery(source.stream(), count, source.end)
    await until(lambda: num_read >= BUFFERED_EVENTS)
    await asyncio.sleep(0.05)
    assert num_read <= BUFFERED_EVENTS + 1
    assert len([event async for event in query]) == 3 * BUFFERED_EVENTS + 1


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (QueryError("The peer is lost."), "The peer is lost."),
        (KeyError("secret"), "failed on this query with KeyError"),
    ],
)
async def test_an_error_reaches_the_reader(error: Exception, sentence: str) -> None:
    source = Source(token(0), error=error)
    query = source.start()
    with pytest.raises(TandemError, match=sentence) as raised:
        [event async for event in query]
    assert "secret" not in str(raised.value)
    await query.close()
    assert source.num_ended == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("receive", [gone, never])
async def test_a_stream_ends_its_query_when_the_client_leaves_or_does_not_read(
    receive: Callable[[], Any],
) -> None:
    source = Source(*(token(step) for step in range(10)), is_endless=True)
    query = source.start()

    async def send(message: dict[str, Any]) -> None:
        if receive is never and message["type"] == "http.response.body":
            await never()

    with pytest.raises(ClientLeftError):
        await EventStream(as_texts(query), query.close, 0.05)({"type": "http"}, receive, send)  # type: ignore[arg-type]
    assert source.is_closed


@pytest.mark.asyncio
async def test_a_stream_has_its_head_at_once_and_then_a_sign_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tandem.plugins.server.http.SIGN_S", 0.04)
    sent = []

    async def texts() -> AsyncIterator[bytes]:
        for text in (b"a", b"b"):
            await asyncio.sleep(0.2)
            yield text

    async def send(message: dict[str, Any]) -> None:
        sent.append(message.get("body", b"head"))

    await EventStream(texts(), nothing, 60.0)({"type": "http"}, never, send)  # type: ignore[arg-type]
    assert (sent[0], sent[-1]) == (b"head", b"")
    assert [text for text in sent[1:-1] if text != SIGN] == [b"a", b"b"]
    between = sent.index(b"b") - sent.index(b"a") - 1
    assert all(2 <= number <= 7 for number in (sent.index(b"a") - 1, between)), sent


@pytest.mark.asyncio
async def test_a_stream_that_is_cancelled_ends_its_query() -> None:
    source = Source(token(0), is_endless=True)
    query = source.start()
    num_sent = 0

    async def send(message: dict[str, Any]) -> None:
        nonlocal num_sent
        num_sent += 1

    stream = EventStream(as_texts(query), query.close, 1.0)
    task = asyncio.ensure_future(stream({"type": "http"}, never, send))  # type: ignore[arg-type]
    await until(lambda: num_sent > 0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert source.is_closed


@pytest.mark.asyncio
async def test_work_ends_with_its_client() -> None:
    async def fail() -> NoReturn:
        raise KeyError

    assert await while_connected(never, asyncio.sleep(0, "done")) == "done"  # type: ignore[arg-type]
    with pytest.raises(KeyError):
        await while_connected(never, fail())  # type: ignore[arg-type]
    with pytest.raises(ClientLeftError):
        await while_connected(gone, asyncio.sleep(60))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "pieces", [["  a", " ", " b ", "", " "], [" ", "\n", "x"], ["a b", " c"], [" ", ""], []]
)
def test_trimmed_pieces_make_up_the_trimmed_text(pieces: list[str]) -> None:
    trimmer = Trimmer()
    shown = [trimmer.push(piece) for piece in pieces]
    assert "".join(shown) == "".join(pieces).strip()


def separate(thinking: str, pieces: list[str]) -> tuple[str, str]:
    """What is thought and what is answered, after all pieces."""
    reader = AnswerReader(thinking)
    shown = [*(reader.push(piece) for piece in pieces), reader.push("", is_last=True)]
    return "".join(piece.thought for piece in shown), "".join(piece.text for piece in shown)


@pytest.mark.parametrize(
    ("thinking", "text", "thought", "answer"),
    [
        ("", "<think>Hm.</think> Yes.", "", "<think>Hm.</think> Yes."),
        ("marked", "<think>\nHm. </think>\n\nYes. ", "Hm.", "Yes."),
        ("marked", " <think></think>Yes.", "", "Yes."),
        ("marked", "Yes. <think>No.</think>", "", "Yes. <think>No.</think>"),
        ("marked", "<thin air", "", "<thin air"),
        ("marked", "<think", "", "<think"),
        ("marked", "<think>Hm. </thi", "Hm. </thi", ""),
        ("marked", "", "", ""),
        ("begun", "Hm. <b> </ b></think>Yes. </think>", "Hm. <b> </ b>", "Yes. </think>"),
        ("begun", "Hm. <", "Hm. <", ""),
        ("begun", "</think></think>", "", "</think>"),
    ],
)
def test_a_thought_is_separated_however_the_text_is_cut(
    thinking: str, text: str, thought: str, answer: str
) -> None:
    for size in range(1, len(text) + 2):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        assert separate(thinking, pieces) == (thought, answer)
