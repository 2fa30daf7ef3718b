"""The text that a draft queue adds to events; no Ray is started."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from tandem.actors.draft_queue import DraftQueueActor, EventLog
from tandem.client.request import spec_of
from tandem.corpora import WEIGHTS
from tandem.engine.tokenizer import Detokenizer, StopRule
from tandem.events import (
    ClientEvent,
    DoneEvent,
    Event,
    ProvisionalEvent,
    RetractEvent,
    SessionStatistics,
    Source,
    SourcesEvent,
)
from tandem.protocol import table
from tandem.protocol.routes import Send
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


@pytest.mark.parametrize(
    ("taken", "num_open", "remedy"),
    [(1, 1, "ask the cloud's owner to raise devices.max_queries"), (9, 2, "raise cluster.max_sessions")],
)
async def test_a_device_opens_as_many_queries_as_its_cloud_takes(
    monkeypatch: pytest.MonkeyPatch, taken: int, num_open: int, remedy: str
) -> None:
    """And no more than its own settings say; whoever is refused reads whose setting it is."""
    monkeypatch.setattr(table, "MAX_WAITING", 3 - num_open)
    queue = Queue(Party.DEVICE, "cluster.max_sessions=2")
    PLANES.append(queue)
    await queue.set_detokenizer(Detokenizer(TOKENIZER))
    queue.limit_queries(taken)
    for session in range(4):
        spec = replace(spec_of(queue.config), session=session, query="q", only=Party.DEVICE)
        await queue.open(spec.to_json())
    (refused,) = await queue.events(3, 0, 5.0, at_once=False)
    await asyncio.sleep(0)  # its timer begins
    assert len(queue.table.sessions) == num_open
    assert isinstance(refused, DoneEvent)
    assert refused.error is not None
    assert refused.error.endswith(f"wait; retry after 30 s, or {remedy}.")
