"""The text that a draft queue adds to events; no Ray is started."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from tandem.actors.draft_queue import DraftQueueActor, EventLog, HostQueue
from tandem.actors.retriever import RetrieverActor
from tandem.client.request import spec_of
from tandem.config.schema import DevicesConfig, SamplingParams
from tandem.corpora import WEIGHTS
from tandem.engine.tokenizer import Detokenizer, StopRule
from tandem.errors import Code, Fault
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
from tandem.joining.handshakes import queue_of
from tandem.messages import (
    Begin,
    Cancel,
    DecoderReady,
    Heartbeat,
    LinkFrame,
    Open,
    RetrieveFailed,
    RetrieveResult,
    Sources,
    encode,
)
from tandem.modes import SessionSpec
from tandem.protocol import admission, table
from tandem.protocol.routes import Send
from tandem.topology import Party
from tandem.transport.port import LinkCounters
from tandem_lab.simulation.specs import make_spec
from tandem_lab.simulation.watched import Display
from tests.token_events import committed
from tests.unit.transport.conftest import PLANES

from .conftest import Outbox, frame_of, runtime


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


PHONE, LAPTOP = queue_of("phone"), queue_of("laptop")


class Sent(Outbox):
    """What the cloud has sent."""

    def bodies_to(self, name: str) -> list[Any]:
        return [message.body for to, message in self.sent if to == name]

    def begun(self) -> list[int]:
        """Sessions that were given to the cloud's decoder."""
        return [
            message.session
            for to, message in self.sent
            if to == "cloud/decoder" and isinstance(message, Begin)
        ]


class Hosting:
    """The actor, its outbox and its devices' frames."""

    def __init__(self, *settings: str) -> None:
        self.outbox = Sent()
        self.queue = HostQueue(Party.CLOUD, runtime(*settings))
        self.queue.plane = self.outbox  # type: ignore[assignment]
        PLANES.append(self.queue)

    def hear(self, source: str, body: Any, session: int) -> None:
        self.queue.on_frames(source, [encode(frame_of(body, session))])

    def open(self, source: str, session: int, **changes: Any) -> None:
        asked = {"query": "?", "documents": {"device": 1, "cloud": 1}, **changes}
        self.hear(source, Open(spec=replace(make_spec(session=session), **asked).to_json()), session)

    def refusals(self, source: str) -> list[str]:
        return [body.reason for body in self.outbox.bodies_to(source) if isinstance(body, Cancel)]


async def test_each_device_hears_of_its_own_queries_only() -> None:
    hosting = Hosting()
    hosting.open(PHONE, 1)
    hosting.open(LAPTOP, 2)
    assert hosting.outbox.begun() == [1, 2]
    to = {
        name
        for name, message in hosting.outbox.sent
        if isinstance(message, LinkFrame) and message.session == 1
    }
    assert to == {PHONE}
    before = len(hosting.outbox.sent)
    hosting.queue.on_connected(LAPTOP)
    resent = hosting.outbox.sent[before:]
    assert {message.session for _, message in resent} <= {2}
    assert {name for name, _ in resent} <= {LAPTOP}


async def test_a_foreign_frame_touches_nothing() -> None:
    """Not even one that would end the query, or open another under its number."""
    hosting = Hosting()
    hosting.open(PHONE, 1)
    sent = len(hosting.outbox.sent)
    for body in (
        Cancel(reason="I am not the phone."),
        Heartbeat(),
        Open(spec=make_spec(session=1).to_json()),
    ):
        hosting.hear(LAPTOP, body, 1)
    assert hosting.queue.num_foreign == 3
    assert len(hosting.outbox.sent) == sent
    assert list(hosting.queue.table.sessions) == [1]
    hosting.hear(PHONE, Cancel(reason="It is over."), 1)
    assert not hosting.queue.table.sessions


async def test_a_frame_of_no_query_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """None is kept for later: a device's frames come in order, and what has a number comes again."""
    hosting = Hosting()
    for _ in range(9):
        hosting.hear(PHONE, Heartbeat(), 7)
    assert hosting.queue.table.num_early_frames == 0
    assert hosting.queue.num_foreign == 9
    said = "cloud/draft_queue dropped a frame of @phone/draft_queue for a query that it has not opened, {} so far"
    assert [line for line in caplog.messages if "dropped" in line] == [said.format(n) for n in (1, 2, 4, 8)]


async def test_so_many_queries_per_device() -> None:
    """Twice those that it may ask at once, and no device answers by itself what was refused."""
    hosting = Hosting("devices.max_queries=2")
    for session in (1, 2, 3, 4, 5):
        hosting.open(PHONE, session)
    hosting.open(LAPTOP, 6)
    assert hosting.outbox.begun() == [1, 2, 3, 4, 6]
    reason = "This device has 4 queries open at the cloud, as many as it may; wait for one to end."
    busy = Fault(code=Code.BUSY, retry_after_s=1)
    assert Cancel(reason=reason, fault=busy) in hosting.outbox.bodies_to(PHONE)
    assert len(hosting.refusals(PHONE)) == 1
    assert hosting.refusals(LAPTOP) == []
    hosting.hear(PHONE, Cancel(reason="It is over."), 1)
    hosting.open(PHONE, 7)
    assert hosting.outbox.begun() == [1, 2, 3, 4, 6, 7]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sampling": SamplingParams(max_new_tokens=101)}, "at most 100 for max_new_tokens (got 101)"),
        ({"documents": {"device": 9, "cloud": 6}}, "at most 5 for num_documents of the cloud (got 6)"),
        (
            {"query": "é" * 51},
            "at most 100 for the length of question, history, system prompt and stop texts in bytes (got 102)",
        ),
        ({"sampling": SamplingParams(max_new_tokens=9, stop=("x" * 99, "y" * 9))}, "stop texts in bytes"),
    ],
)
async def test_a_query_that_asks_for_too_much(
    changes: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "MAX_DOCUMENTS", 5)
    monkeypatch.setattr(admission, "MAX_QUESTION_BYTES", 100)
    monkeypatch.setattr(DevicesConfig, "max_answer_tokens", 100)
    hosting = Hosting()
    hosting.open(PHONE, 1, **changes)
    (refusal,) = hosting.refusals(PHONE)
    assert said in refusal
    assert not hosting.outbox.begun()
    assert not hosting.queue.open_by_device()


async def test_the_next_query_is_of_the_device_with_the_fewest_open() -> None:
    """The phone's third and fourth query came first, the laptop's only one is opened before them."""
    hosting = Hosting("cluster.max_sessions=2")
    for session in (1, 2, 3, 4):
        hosting.open(PHONE, session)
    hosting.open(LAPTOP, 5)
    assert hosting.outbox.begun() == [1, 2]
    hosting.hear(PHONE, Cancel(reason="It is over."), 1)
    assert hosting.outbox.begun() == [1, 2, 5]
    hosting.hear(PHONE, Cancel(reason="It is over."), 2)
    assert hosting.outbox.begun() == [1, 2, 5, 3]


async def test_a_malformed_frame_and_a_malformed_query_are_counted() -> None:
    hosting = Hosting()
    hosting.queue.on_frames(PHONE, [b"garbage"])
    assert hosting.queue.num_malformed == 1
    hosting.hear(PHONE, Open(spec="{}"), 3)
    (refusal,) = hosting.refusals(PHONE)
    assert "spec of a session is malformed" in refusal
    spec = SessionSpec.from_json(make_spec(session=4).to_json())
    hosting.hear(PHONE, Open(spec=spec.to_json()), 5)
    assert len(hosting.refusals(PHONE)) == 2, "another number than its frame's"
    assert not hosting.outbox.begun()


@pytest.fixture
def queue() -> DraftQueueActor:
    actor = DraftQueueActor(Party.DEVICE, runtime())
    actor.plane = Outbox()  # type: ignore[assignment]
    return actor


@pytest.mark.parametrize("source", ["cloud/draft_queue", "device/decoder"])
def test_a_body_without_its_message_is_counted_as_malformed(queue: DraftQueueActor, source: str) -> None:
    """It is well-formed but names no session; the frame after it is still handled."""
    queue.on_frames(source, [encode(Heartbeat()), encode(frame_of(Heartbeat()))])
    assert queue.num_malformed == 1


def test_malformed_frames_cannot_fill_a_log(queue: DraftQueueActor, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever sends them decides how many there are."""
    with caplog.at_level("WARNING"):
        queue.on_frames("cloud/draft_queue", [b"nonsense"] * 1000)
    assert queue.num_malformed == 1000
    assert len(caplog.records) == 10, "the 1st, 2nd, 4th, ... 512th"


def run_retriever(text: str) -> list[Any]:
    """What a retriever sends for two queries, where the first finds a document of this text."""
    actor = RetrieverActor(Party.DEVICE, runtime())
    actor.plane = outbox = Outbox()  # type: ignore[assignment]
    answers = [
        RetrieveResult(session=session, ids=("d",), texts=(found,), scores=(0.5,), retrieve_us=1)
        for session, found in ((1, text), (2, "short"))
    ]
    for answer in answers:
        actor.dispatch([Send("decoder", answer)])
    return outbox.messages


def test_an_answer_that_cannot_be_sent_ends_its_query_alone() -> None:
    """One that is too long used to break the connection within the site."""
    failed, found = run_retriever("x" * (1 << 22))
    assert isinstance(failed, RetrieveFailed)
    assert failed.session == 1
    assert "exceeds the 4194304 bytes" in failed.reason
    assert found.texts == ("short",)


def test_a_message_meant_within_a_site_is_refused_from_the_peer(queue: DraftQueueActor) -> None:
    found = Sources(party=0, ids=(), retrieve_us=0, prefill_us=0, notes=())
    ready = DecoderReady(session=1, sources=found, scores=())
    for message in (ready, Begin(session=1, spec="{}")):
        queue.on_frames("cloud/draft_queue", [encode(message)])
    assert queue.num_malformed == 2
    queue.on_frames("device/decoder", [encode(ready)])
    assert queue.num_malformed == 2
