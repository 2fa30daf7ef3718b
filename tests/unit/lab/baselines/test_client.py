"""Calls to the laboratory's actors, against scripted ones: time limits, whole answers, treatments."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tandem.config.schema import Config
from tandem.errors import QueryError, TandemError
from tandem.events import DoneEvent, Event, SessionStatistics
from tandem.topology import PARTIES, Party
from tandem_lab.baselines import client
from tandem_lab.baselines.client import Baselines, Call
from tandem_lab.baselines.experiments import Treatment
from tandem_lab.baselines.sequences import SequenceResult

QUESTION = "Which game should Mira try?"
LIMIT_S = 0.3
STEPS = SequenceResult((5, 6, 7, 8), (b"5", b"6", b"7", b"8"), -1.5)


async def never(*_: object) -> Any:
    await asyncio.sleep(60)


async def nothing(*_: object) -> None:
    return None


class Actor:
    """Methods by name; others never answer. Records its calls."""

    def __init__(self, **methods: Callable[..., Any]) -> None:
        self.methods = methods
        self.calls: list[tuple[Any, ...]] = []

    async def call(self, name: str, *values: Any) -> Any:
        self.calls.append((name, *values))
        return await self.methods.get(name, never)(*values)


def queue(*events: Event) -> Actor:
    async def fetch(session: int, after: int, wait_s: float, at_once: bool) -> list[Event]:
        return list(events[after:])

    return Actor(events=fetch, open=nothing, cancel=nothing, treat=nothing, delay_frames=nothing)


def done(reason: Any = "eos", num_tokens: int = 2, error: str | None = None) -> DoneEvent:
    return DoneEvent(
        reason=reason, statistics=SessionStatistics(num_tokens=num_tokens), error=error, session=9
    )


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RPC_GRACE_S", 0.1)


def make(*settings: str, **cloud: Actor) -> tuple[Baselines, dict[Party, dict[str, Actor]]]:
    parties = {
        party: {kind: Actor() for kind in ("draft_queue", "decoder", "retriever")} for party in PARTIES
    }
    parties[Party.CLOUD].update(cloud)
    tandem: Any = SimpleNamespace(
        config=Config.load(None, [f"cluster.query_timeout_s={LIMIT_S}", *settings]),
        described={party: {"decode_line": [], "eos_token_ids": [0]} for party in PARTIES},
    )

    def call_of(party: Party) -> Call:
        return lambda role, method, *values: parties[party][role].call(method, *values)

    return Baselines(tandem, {party: call_of(party) for party in PARTIES}), parties


async def four_steps(*_: object) -> SequenceResult:
    return STEPS


@pytest.mark.parametrize(
    "ask",
    [
        lambda baselines: baselines.write_answer(QUESTION, Party.CLOUD),
        lambda baselines: baselines.fetch_texts(QUESTION, 3),
        lambda baselines: baselines.fetch_caches(["a text"]),
        lambda baselines: baselines.treat({Party.CLOUD: Treatment(keeps_distributions=True)}),
    ],
)
def test_a_time_limit_holds_where_no_call_comes_back(ask: Callable[[Baselines], Any]) -> None:
    baselines, _ = make()
    began_s = time.monotonic()
    with pytest.raises(QueryError, match=r"did not answer within 0\.3 s"):
        ask(baselines)
    assert time.monotonic() - began_s < 3.0


def test_a_written_answer_that_failed_says_why_at_once() -> None:
    async def refuse(*_: object) -> None:
        raise TandemError("Distributions are kept for the last 4 queries.")

    for fetch in (four_steps, never, refuse):
        failed = queue(done("failed", 2, "The documents are gone."))
        baselines, _ = make(draft_queue=failed, decoder=Actor(fetch_sequence=fetch))
        began_s = time.monotonic()
        with pytest.raises(QueryError, match=r"^The documents are gone\.$"):
            baselines.write_answer(QUESTION, Party.CLOUD)
        assert time.monotonic() - began_s < LIMIT_S


def test_a_treatment_is_sent_where_it_changes() -> None:
    actors = {kind: Actor(treat=nothing) for kind in ("draft_queue", "decoder", "retriever")}
    baselines, parties = make(**actors)
    treatment = Treatment(concat_documents=True)
    for _ in range(2):
        baselines.treat({Party.CLOUD: treatment})
    baselines.treat({})
    assert all(actor.calls == [("treat", treatment), ("treat", Treatment())] for actor in actors.values())
    assert not any(actor.calls for actor in parties[Party.DEVICE].values())
