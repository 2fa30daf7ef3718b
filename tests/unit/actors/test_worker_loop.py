"""The decoder's worker loop, without Ray and without a model: no wake-up is lost, whatever the interleaving.

The loop asks for a job, sleeps where there is none and is woken by messages; a message that comes while the model
computes, or between question and sleep, must not be slept over. A thousand interleavings of one event loop are drawn
from seeds, and some with a real thread; loops that sleep over a message are found.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tandem.actors.decoder import DecoderActor
from tandem.aggregation.rules import Step
from tandem.errors import TandemError
from tandem.messages import Begin, DecoderFailed, DecoderReady, End, Local
from tandem.protocol.decoding import DraftingSession, Forward, Job, Prefill
from tandem.protocol.routes import Send
from tandem.topology import Party
from tandem_lab.simulation.specs import make_spec
from tests.unit.protocol.talk import decided
from tests.unit.transport.conftest import PLANES, until

from .conftest import Outbox, runtime

NUM_TOKENS = 6
MOST_TURNS = 2000
"""Turns of the loop within which any session is through; a worker that sleeps for good takes none."""


class _Engine:
    def __init__(self) -> None:
        self.closed: list[str] = []

    def close(self, key: str) -> None:
        self.closed.append(key)


class _Decoder(DecoderActor):
    """The real actor with a model that takes a random time in its thread and always draws token 7."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(Party.DEVICE, runtime())
        self.outbox = Outbox()
        self.plane = self.outbox  # type: ignore[assignment]
        self.fake_engine = _Engine()
        self.description = {"weights_fingerprint": "fake"}
        self.rng = rng

    @property
    def engine(self) -> Any:
        return self.fake_engine

    async def compute(self, jobs: Sequence[Job]) -> list[list[Send] | Exception]:
        sessions = [self.table.sessions[job.session] for job in jobs]  # they may end meanwhile
        await self.pause()
        return [finish(session, job) for session, job in zip(sessions, jobs, strict=True)]

    async def pause(self) -> None:
        pause_s = self.rng.choice([0.0, 0.0, 1e-4, 1e-3])
        await self.in_thread(lambda: time.sleep(pause_s))

    def has_voted(self, session: int) -> None:
        """By a drafter that could not read three proposals."""
        self._drafters[session] = SimpleNamespace(num_malformed=3)  # type: ignore[assignment]

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Raises TimeoutError if the worker sleeps for good."""
        await until(is_true, 5.0)


class _Stepped(_Decoder):
    """With a model that takes some turns of the loop instead of a thread, so that nothing waits for time."""

    async def pause(self) -> None:
        await _turns(self.rng.randrange(6))

    async def until(self, is_true: Callable[[], bool]) -> None:
        for _ in range(MOST_TURNS):
            if is_true():
                return
            await asyncio.sleep(0)
        raise TimeoutError


async def _turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def finish(session: DraftingSession, job: Job) -> list[Send] | Exception:
    """What a decoder sends for a job."""
    if isinstance(job, Forward):
        return session.finish(job, [Step(job.step, 7, b"law", 1)])
    return session.finish_prefill(1, ())


def begin(session: int, **changes: Any) -> Begin:
    spec = make_spec(session=session, query="q", seed=0, device_documents=0, max_new_tokens=6, **changes)
    return Begin(session=session, spec=spec.to_json())


def has_drafted(actor: _Decoder, session: int, step: int) -> bool:
    drafts = (message for message in actor.outbox.messages if isinstance(message, Local))
    return any(drafted.session == session and drafted.body.step == step for drafted in drafts)


async def _answer(actor: _Decoder, session: int, rng: random.Random) -> None:
    """Begin, commit each draft some turns after it came, end. Token-wise sessions stand still with the loop: after one
    lost wake-up their next draft never comes."""
    await _turns(rng.randrange(6))
    actor.dispatch(actor.handle(begin(session, max_window=1 if rng.random() < 0.7 else 16), "q"))
    for step in range(NUM_TOKENS):
        await actor.until(lambda step=step: has_drafted(actor, session, step))  # type: ignore[misc]
        await _turns(rng.randrange(8))
        is_last = step == NUM_TOKENS - 1
        commit = decided(step, rng.choice([7, 7, 8]), session=session, is_last=is_last)
        actor.dispatch(actor.handle(commit, "q"))
    await _turns(rng.randrange(6))
    actor.dispatch(actor.handle(End(session=session), "q"))


async def _interleaving(make: type[_Decoder], seed: int) -> None:
    """Messages come before the worker asks for a job, between question and sleep, in its sleep, as the model ends."""
    rng = random.Random(seed)
    actor = make(rng)
    actor.spawn(actor.work(), "work")
    sessions = range(rng.choice([1, 1, 2, 4]))
    try:
        await asyncio.gather(*(_answer(actor, session, rng) for session in sessions))
        await actor.until(lambda: sorted(actor.engine.closed) == [*map(str, sessions)])
        assert not actor.table.sessions
    finally:
        await actor.close()
    assert (await actor.statistics()).tasks == ()


@pytest.mark.parametrize(("make", "num_seeds"), [(_Stepped, 1000), (_Decoder, 30)])
async def test_no_wake_up_is_lost_in_any_interleaving(make: type[_Decoder], num_seeds: int) -> None:
    for seed in range(num_seeds):
        await _interleaving(make, seed)


async def test_a_batch_that_fails_as_nobody_expects_fails_its_queries_alone() -> None:
    """The worker goes on: the next query is answered."""
    actor = _Stepped(random.Random(1))
    compute, has_failed = actor.compute, False

    async def fail_once(jobs: Sequence[Job]) -> list[list[Send] | Exception]:
        nonlocal has_failed
        if not has_failed:
            has_failed = True
            raise IndexError("as of another thread")
        return await compute(jobs)

    actor.compute = fail_once  # type: ignore[method-assign]
    actor.spawn(actor.work(), "work")
    try:
        actor.dispatch(actor.handle(begin(1), "q"))
        await actor.until(lambda: any(isinstance(each, DecoderFailed) for each in actor.outbox.messages))
        actor.dispatch(actor.handle(begin(2), "q"))
        await actor.until(lambda: has_drafted(actor, 2, 0))
    finally:
        await actor.close()


@pytest.mark.parametrize("where", ["before the clear", "cleared after the model"])
def test_a_worker_that_loses_one_is_found(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants: one turn between question and clear; a flag cleared after a job that a message came during."""

    async def work(self: _Stepped) -> None:
        while True:
            self.free_ended()
            job = self.table.next_job()
            if job is None:
                if where == "before the clear":
                    await asyncio.sleep(0)
                    self.wake.clear()
                await self.wake.wait()
                self.wake.clear()
                continue
            self._send(job, (await self.compute([job]))[0])
            if where != "before the clear" and self.table.next_job() is None:
                await asyncio.sleep(0)
                self.wake.clear()
                await self.wake.wait()

    monkeypatch.setattr(_Stepped, "work", work)

    async def main() -> None:
        for seed in range(40):
            await _interleaving(_Stepped, seed)

    with pytest.raises(TimeoutError):
        asyncio.run(main())


async def test_proposals_that_cannot_be_read_are_counted_beyond_their_session() -> None:
    """`tandem status --json` shows the decoder's counters."""
    actor = _Decoder(random.Random(0))
    actor.plane = None
    PLANES.append(actor)
    counts = []
    for session in (1, 2):
        actor.handle(begin(session), "q")
        actor.has_voted(session)
        counts.append((await actor.statistics()).extra["num_malformed_proposals"])
    actor.handle(End(session=1), "q")
    actor.free_ended()
    counts.append((await actor.statistics()).extra["num_malformed_proposals"])
    assert counts == [3, 6, 6]


class _Broken(_Decoder):
    """Fails on the prefill of session 1, with or without an exception of its own."""

    def __init__(self, how: str) -> None:
        super().__init__(random.Random(0))
        self.how = how

    async def compute(self, jobs: Sequence[Job]) -> list[list[Send] | Exception]:
        results = await super().compute([job for job in jobs if not self._is_bad(job)])
        bad = [self._prefill_badly() for job in jobs if self._is_bad(job)]
        return [(bad if self._is_bad(job) else results).pop(0) for job in jobs]

    @staticmethod
    def _is_bad(job: Job) -> bool:
        return job.session == 1 and isinstance(job, Prefill)

    def _prefill_badly(self) -> list[Send] | Exception:
        if self.how == "an error":
            return TandemError("The file caf\udce9.txt is damaged.")
        return self.table.sessions[1].finish_prefill(1, ("The file caf\udce9.txt was not used.",))


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("an error", "The file caf\\udce9.txt is damaged."),
        ("an answer", "character 12 is half a surrogate pair; repair the document or question"),
    ],
)
async def test_half_a_character_ends_its_session_alone(how: str, reason: str) -> None:
    """File names that are not UTF-8 hold such characters."""
    actor = _Broken(how)
    actor.spawn(actor.work(), "work")
    for session in (1, 2):
        actor.dispatch(actor.handle(begin(session), "q"))
    await actor.until(lambda: any(isinstance(each, DecoderReady) for each in actor.outbox.messages))
    await actor.close()
    (failed,) = (message for message in actor.outbox.messages if isinstance(message, DecoderFailed))
    assert failed.session == 1
    assert reason in failed.reason
    assert [each.session for each in actor.outbox.messages if isinstance(each, DecoderReady)] == [2]
