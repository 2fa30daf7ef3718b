"""The Python API against scripted actors: time limits over a link that is dead, and whole answers in one call."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import pytest

from tandem.client import ask as asking
from tandem.client.ask import Asker
from tandem.client.tandem import Tandem
from tandem.config.schema import Config
from tandem.errors import Code, QueryError
from tandem.events import DoneEvent, Event, SessionStatistics, SourcesEvent, collect
from tandem.sites.port import Deployment, SitePort
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.specs import make_spec

from .cli.conftest import token

QUESTION = "Which game should Mira try?"
LIMIT_S = 0.3


async def never(*_: object) -> Any:
    await asyncio.sleep(60)


async def nothing(*_: object) -> None:
    return None


class Actor:
    """Methods by name; one that is not given never answers. Records the names of what was called."""

    def __init__(self, **methods: Callable[..., Any]) -> None:
        self.methods = methods
        self.called: list[str] = []


class Site(SitePort):
    """A party of such actors."""

    def __init__(self, actors: dict[str, Actor]) -> None:
        self.actors = actors

    async def call(self, role: str, method: str, *arguments: Any) -> Any:
        actor = self.actors[role]
        actor.called.append(method)
        return await actor.methods.get(method, never)(*arguments)


class Scripted(Deployment):
    """Such sites as what a client asks."""

    async def status(self, config: Config) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.loop.close()


Make = Callable[..., tuple[Tandem, dict[Party, dict[str, Actor]]]]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr(asking, "RPC_GRACE_S", 0.1)
    opened: list[Tandem] = []

    def tandem() -> tuple[Tandem, dict[Party, dict[str, Actor]]]:
        roles = ("draft_queue", "decoder", "retriever")
        parties = {party: {role: Actor() for role in roles} for party in PARTIES}
        described = {party: {"decode_line": [], "eos_token_ids": [0]} for party in PARTIES}
        config = Config.load(None, [f"cluster.query_timeout_s={LIMIT_S}"])
        sites = {party: Site(parties[party]) for party in PARTIES}
        opened.append(Tandem(config, Scripted(sites=sites, described=described)))
        return opened[-1], parties

    yield tandem
    for each in opened:
        each.close()


@pytest.mark.parametrize(
    "ask",
    [
        lambda rag: rag.query(QUESTION, only="cloud"),
        lambda rag: list(rag.stream(QUESTION, only="cloud", timeout_s=LIMIT_S)),
        lambda rag: rag.query(QUESTION),
    ],
)
def test_a_time_limit_holds_where_no_call_comes_back(make: Make, ask: Callable[[Tandem], Any]) -> None:
    rag, parties = make()
    began_s = time.monotonic()
    with pytest.raises(QueryError, match=r"must begin within 0\.3 s, this one did not"):
        ask(rag)
    assert time.monotonic() - began_s < 3.0
    cancelled = [actors["draft_queue"].called.count("cancel") for actors in parties.values()]
    assert sorted(cancelled) == [0, 1]


def speaking(*pauses_s: float, hangs: bool = False) -> Actor:
    """Writes a token after each pause, then ends, or says nothing more; and no call comes back any more if it hangs."""
    began_s, is_cancelled = time.monotonic(), asyncio.Event()
    times = list(accumulate(pauses_s))

    async def fetch(session: int, after: int, wait_s: float, at_once: bool) -> list[Event]:
        end_s = time.monotonic() + wait_s
        while True:
            said = [
                token(step, f" {step}") for step, at in enumerate(times) if time.monotonic() - began_s >= at
            ]
            if is_cancelled.is_set():
                await (never() if hangs else nothing())
                said.append(DoneEvent(reason="cancelled", statistics=SessionStatistics(sent_bytes=9)))
            if (said[after:] and not at_once) or is_cancelled.is_set() or time.monotonic() > end_s:
                return said[after:]
            await asyncio.sleep(0.01)

    async def cancel(session: int) -> None:
        is_cancelled.set()

    return Actor(events=fetch, open=nothing, sources=nothing, cancel=cancel)


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize(
    "ask", [lambda rag: rag.query(QUESTION), lambda rag: collect(list(rag.stream(QUESTION)), 0)]
)
def test_only_silence_is_limited_and_what_was_written_is_the_answer(
    make: Make, ask: Callable[[Tandem], Any], hangs: bool
) -> None:
    """Five tokens, each well within the limit, take three times as long."""
    rag, parties = make()
    parties[Party.DEVICE]["draft_queue"] = home = speaking(*[0.6 * LIMIT_S] * 5, hangs=hangs)
    answer = ask(rag)
    assert (answer.text, answer.reason) == ("0 1 2 3 4", "length")
    assert [note[:64] for note in answer.notes] == [
        "The answer ends after 5 tokens, since nothing came for 0.3 s; ra"
    ]
    assert answer.statistics.sent_bytes == (0 if hangs else 9)
    assert home.called.count("cancel") == 1


DONE = DoneEvent(reason="eos", statistics=SessionStatistics(num_tokens=2), session=9)


def queue(*events: Event) -> Actor:
    async def fetch(session: int, after: int, wait_s: float, at_once: bool) -> list[Event]:
        return list(events[after:])

    return Actor(events=fetch, open=nothing, sources=nothing, cancel=nothing)


def test_a_query_calls_its_home_only(make: Make) -> None:
    """No call crosses the link, so none can wait for a cloud that is away."""
    rag, parties = make()
    answered = SourcesEvent(party=Party.CLOUD, sources=(), retrieve_s=0.0, prefill_s=0.0)

    async def sources(session: int, wait_s: float, party: Party) -> SourcesEvent | None:
        return answered if party is Party.CLOUD else None

    parties[Party.DEVICE]["draft_queue"] = queue(DONE)
    parties[Party.DEVICE]["draft_queue"].methods["sources"] = sources
    events = list(rag.stream(QUESTION))
    assert events == [answered, DONE]
    assert [name for actor in parties[Party.CLOUD].values() for name in actor.called] == []
    with pytest.raises(QueryError):
        rag.query(QUESTION, only="cloud")
    assert "open" in parties[Party.CLOUD]["draft_queue"].called, "a party that is asked solo is its own home"


CLOSED = r"^This Tandem is closed; create a new one with Tandem.launch or Tandem.connect.$"


async def first_event(rag: Tandem) -> Event:
    return await anext(rag.astream(QUESTION))


@pytest.mark.filterwarnings("error")
def test_after_close_there_is_one_sentence_and_no_warning(make: Make) -> None:
    rag, _ = make()
    rag.close()
    uses: tuple[Callable[[], Any], ...] = (
        lambda: rag.query(QUESTION),
        lambda: next(rag.stream(QUESTION)),
        lambda: asyncio.run(rag.aquery(QUESTION)),
        lambda: asyncio.run(first_event(rag)),
        lambda: rag.batch([QUESTION]),
        rag.status,
    )
    for use in uses:
        with pytest.raises(QueryError, match=CLOSED):
            use()
    gc.collect()  # a coroutine that was never awaited warns when it goes


@pytest.mark.filterwarnings("error")
def test_closing_ends_a_stream_that_is_half_read(make: Make) -> None:
    rag, parties = make()
    parties[Party.DEVICE]["draft_queue"] = home = queue(*(token(step, "a") for step in range(3)))
    stream = rag.stream(QUESTION)
    next(stream)
    rag.close()
    assert home.called.count("cancel") == 1
    with pytest.raises(QueryError, match=CLOSED):
        next(stream)
    del stream
    gc.collect()


class Asked(SitePort):
    """Answers by the name of the method, otherwise with an empty list, and notes what it was asked."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str, tuple[Any, ...]]] = []

    async def call(self, role: str, method: str, *arguments: Any) -> Any:
        self.asked.append((role, method, arguments))
        return self.answers.get(method, [])


@pytest.mark.parametrize(
    ("contexts", "room", "longest", "asked"),
    [
        ({"device": 8192, "cloud": 700}, 90, 90, [700]),
        ({"device": 700, "cloud": None}, 900, 512, [700]),
        ({"device": 8192, "cloud": 8192}, 1, 512, []),
        ({"device": None, "cloud": None}, 1, 512, []),
    ],
)
def test_the_home_counts_by_the_shortest_context_and_nobody_else_is_asked(
    contexts: dict[str, int | None], room: int, longest: int, asked: list[int]
) -> None:
    """The device's filter is part of the spec, and must not reach the cloud."""
    sites = {"device": Asked(answer_room=room), "cloud": Asked(answer_room=1)}
    described = {party: {"context_length": length} for party, length in contexts.items()}
    asker = Asker(sites, str, lambda: described)
    spec = make_spec(max_new_tokens=512, device_filter='{"source": "private.md"}')
    fitted = asyncio.run(asker.fit(spec))
    assert fitted.sampling.max_new_tokens == longest
    calls = [(role, method, context) for role, method, (_, context) in sites["device"].asked]
    assert calls == [("decoder", "answer_room", context) for context in asked]
    assert sites["cloud"].asked == []


@pytest.mark.parametrize(
    ("changes", "is_refused"),
    [
        ({}, True),
        ({"device_filter": ""}, False),
        ({"device_documents": 0}, False),  # nothing is searched
    ],
)
def test_a_filter_is_tried_at_home_before_the_query_is_opened(
    changes: dict[str, Any], is_refused: bool
) -> None:
    """There is no document with the metadata of any filter."""
    site = Asked(find_refusal=["no such key", "invalid", "device_filter"])
    spec = make_spec(**{"device_filter": '{"colour": "red"}', "device_documents": 2, **changes})

    async def ask() -> None:
        async for _ in Asker({"device": site}, str).ask(spec, 0.01, at_once=True):
            pass

    with pytest.raises(QueryError) as raised:
        asyncio.run(ask())
    assert ("open" not in {method for _, method, _ in site.asked}) == is_refused
    fault = (Code.INVALID, "device_filter") if is_refused else (Code.TIMEOUT, None)
    assert (raised.value.code, raised.value.option) == fault
