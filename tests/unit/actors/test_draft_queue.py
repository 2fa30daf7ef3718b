"""The text that a draft queue adds to events; no Ray is started."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable
from dataclasses import replace

import pytest

from tandem.actors.draft_queue import EVENTS_KEPT_S, DraftQueueActor, EventLog
from tandem.client.request import spec_of
from tandem.corpora import WEIGHTS
from tandem.engine.tokenizer import Detokenizer, StopRule
from tandem.events import (
    ClientEvent,
    DoneEvent,
    Event,
    PlacementEvent,
    ProvisionalEvent,
    RetractEvent,
    SessionStatistics,
    Source,
    SourcesEvent,
    WaitEvent,
)
from tandem.protocol import admission
from tandem.protocol.outbox import Send
from tandem.topology import Party
from tandem.transport.port import LinkCounters
from tandem_lab.simulation.watched import Display
from tests.token_events import committed
from tests.unit.transport.conftest import PLANES

from .conftest import Outbox, runtime


class Queue(DraftQueueActor):
    """The real actor with a client and nobody else."""

    def __init__(self, party: Party, *settings: str) -> None:
        super().__init__(party, runtime(*settings))
        self.plane = Outbox()  # type: ignore[assignment]

    def peer_counters(self) -> LinkCounters:
        return LinkCounters()

    def dispatch(self, sends: list[Send]) -> None:
        for send in sends:
            if send.to == "client":
                self.on_event(send.message)


TOKENIZER = (WEIGHTS / "tokenizer.json").read_text("utf-8")
TEXT = " Mira — 漢字 🙂 naïve, 🙃🙃 then STOP and more"


@pytest.mark.parametrize("stop", [(), ("STOP",)])
def test_provisional_text_is_what_the_committed_token_will_add(stop: tuple[str, ...]) -> None:
    """Characters of several tokens and possible stop strings included; wrong proposals are retracted."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(WEIGHTS / "tokenizer.json"))
    ids = tokenizer.encode(TEXT, add_special_tokens=False).ids
    assert len(ids) > len(TEXT.split())
    rule = StopRule((), stop, len(ids), Detokenizer(tokenizer.to_str()))
    end = next(count for count in range(1, len(ids) + 1) if rule.find_reason(ids[:count]))
    for seed in range(30):
        rng, log, display = random.Random(seed), EventLog(rule, None), Display()
        shown: list[int] = []

        def tell(event: Event, log: EventLog = log, display: Display = display) -> None:
            display.add(log.with_text(event))

        for step, token in enumerate(ids[:end]):
            for ahead in range(len(shown), min(len(ids), step + rng.randrange(5))):
                is_right = rng.random() < 0.7
                shown.append(ids[ahead] if is_right else rng.randrange(3, tokenizer.get_vocab_size()))
                tell(ProvisionalEvent(step=ahead, token=shown[-1], text="", shown_at_s=0.0))
            if len(shown) > step and shown[step] != token:
                del shown[step:]
                tell(RetractEvent(step=step))
            shown += [token] if len(shown) == step else []
            tell(committed(step, token=token))
        if len(shown) > end:
            tell(RetractEvent(step=end))
        assert display.text == rule.text(ids[:end])
        assert "\ufffd" not in display.text


def test_a_queue_whose_user_sits_at_the_peer_forgets_as_well() -> None:
    """It sees no DoneEvent: its logs would stay for good."""
    queue = Queue(Party.CLOUD)
    queue.logs[7] = EventLog(StopRule((), (), 8, Detokenizer(TOKENIZER)), None)
    queue.forget_old_logs(1.0)
    assert set(queue.logs) == {7}
    queue.forget_old_logs(2.0 + EVENTS_KEPT_S)
    assert not queue.logs


def test_the_last_event_alone_names_its_session() -> None:
    actor = Queue(Party.DEVICE)
    actor.logs[7] = EventLog(StopRule((), (), 9, Detokenizer(TOKENIZER)), LinkCounters())
    done = DoneEvent(reason="eos", statistics=SessionStatistics(num_tokens=1))
    for event in (PlacementEvent(step=0, aggregator=Party.DEVICE), done):
        assert asyncio.run(actor.events(7, -1, 0.01, at_once=True)) == []
        actor.on_event(ClientEvent(7, event))
    assert asyncio.run(actor.events(7, -1, 0.01, at_once=True)) == [replace(done, session=7)]


async def test_calls_that_overtake_the_one_that_opens_their_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray may run them in any order: without waiting an answer lacks its sources, or counts as late."""
    actor = Queue(Party.DEVICE)
    cancelled: list[int] = []
    monkeypatch.setattr(actor.table, "cancel", lambda session, now_s: cancelled.append(session) or [])
    early = (actor.sources(7, 30.0), actor.events(7, -1, 30.0, at_once=True), actor.cancel(7))
    tasks = [asyncio.create_task(call) for call in early]  # type: ignore[arg-type]
    await asyncio.sleep(0.02)
    assert not any(task.done() for task in tasks)
    actor.add_log(7, EventLog(StopRule((), (), 9, Detokenizer(TOKENIZER)), LinkCounters()))
    monkeypatch.setitem(actor.table.sessions, 7, None)  # open on this side
    documents = tuple(Source(party=Party.DEVICE, id=key) for key in ("a", "b"))
    sources = SourcesEvent(party=Party.DEVICE, sources=documents, retrieve_s=0.0, prefill_s=0.0)
    done = DoneEvent(reason="eos", statistics=SessionStatistics(num_tokens=1))
    for event in (sources, done):
        actor.on_event(ClientEvent(7, event))
    found = await asyncio.wait_for(asyncio.gather(*tasks), 60)
    assert found[:2] == [sources, [replace(done, session=7)]]
    assert cancelled == [7]


async def open_queue(num_open: int, num_asked: int) -> Queue:
    """A queue that was asked so many queries, 1, 2, ..."""
    queue = Queue(Party.DEVICE, f"cluster.max_sessions={num_open}")
    PLANES.append(queue)
    await queue.set_detokenizer(Detokenizer(TOKENIZER))
    await ask_alone(queue, range(1, num_asked + 1))
    return queue


async def ask_alone(queue: Queue, sessions: Iterable[int]) -> None:
    for session in sessions:
        spec = replace(spec_of(queue.config), session=session, query="q", only=Party.DEVICE)
        await queue.open(spec.to_json())


async def test_one_query_too_many_waits_and_is_opened_in_its_turn() -> None:
    queue = await open_queue(2, 4)
    sources = asyncio.create_task(queue.sources(3, 5.0))
    await asyncio.sleep(0.01)
    opened = [set(queue.table.sessions)]
    for ended in (1, 2):
        await queue.cancel(ended)
        opened.append(set(queue.table.sessions))
    assert await queue.events(4, 0, 5.0, at_once=False) == [WaitEvent(num_ahead=1)]
    assert queue.table.num_waiting == 0
    assert not sources.done(), "its documents are awaited, as it waits itself"
    queue.forget_old_logs(time.monotonic())
    assert all(queue.logs[session].ended_s is None for session in (3, 4))
    assert opened == [{1, 2}, {2, 3}, {3, 4}]
    sources.cancel()


async def test_a_waiting_query_can_be_cancelled() -> None:
    queue = await open_queue(1, 3)
    await asyncio.sleep(0)  # its timer begins
    await queue.cancel(2)
    (last,) = await queue.events(2, -1, 5.0, at_once=True)
    await queue.cancel(1)
    assert isinstance(last, DoneEvent)
    assert (last.reason, last.session) == ("cancelled", 2)
    assert set(queue.table.sessions) == {3}


@pytest.mark.parametrize(
    ("taken", "num_open", "remedy"),
    [(1, 1, "ask the cloud's owner to raise devices.max_queries"), (9, 2, "raise cluster.max_sessions")],
)
async def test_a_device_opens_as_many_queries_as_its_cloud_takes(
    monkeypatch: pytest.MonkeyPatch, taken: int, num_open: int, remedy: str
) -> None:
    """And no more than its own settings say; whoever is refused reads whose setting it is."""
    monkeypatch.setattr(admission, "MAX_WAITING", 3 - num_open)
    queue = await open_queue(2, 0)
    queue.limit_queries(taken)
    await ask_alone(queue, range(4))
    (refused,) = await queue.events(3, 0, 5.0, at_once=False)
    await asyncio.sleep(0)  # its timer begins
    assert len(queue.table.sessions) == num_open
    assert isinstance(refused, DoneEvent)
    assert refused.error is not None
    assert refused.error.endswith(f"wait; retry after 30 s, or {remedy}.")


class _WithoutDecoder(Outbox):
    """As while a new decoder loads: the connection to it is not open yet."""

    def is_connected(self, to: str) -> bool:
        return not to.endswith("/decoder")


async def test_what_is_in_the_way_of_queries_can_be_asked() -> None:
    queue = Queue(Party.CLOUD)
    assert await queue.find_obstacle() is None
    queue.plane = _WithoutDecoder()  # type: ignore[assignment]
    assert str(await queue.find_obstacle()).startswith("The cloud's decoder has stopped; ")
