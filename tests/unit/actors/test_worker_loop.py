"""The decoder's worker loop, without Ray and without a model: no wake-up is lost, whatever the interleaving.

The loop asks for a job, sleeps where there is none and is woken by messages; a message that comes while the model
computes, or between question and sleep, must not be slept over. `test_wake_ups` has loops that do, and finds them.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tandem.actors.base import Runtime
from tandem.actors.decoder import DecoderActor
from tandem.config.schema import Config
from tandem.messages import Begin, End, Local, decode
from tandem.protocol.decoding import DraftingSession, Forward, Job, Result
from tandem.protocol.outbox import Send
from tandem.topology import Party
from tandem_lab.simulation.specs import make_spec
from tests.unit.protocol.talk import decided


class _Outbox:
    """A data plane that keeps what it is given."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.changed = asyncio.Event()

    def send(self, to: str, frame: bytes) -> None:
        self.sent.append(decode(frame))
        self.changed.set()

    def flush(self) -> None:
        pass

    async def close(self) -> None:
        pass


class _Engine:
    def __init__(self) -> None:
        self.closed: list[str] = []

    def close(self, key: str) -> None:
        self.closed.append(key)


class _Decoder(DecoderActor):
    """The real actor with a model that takes a random time and always draws token 7."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(Party.DEVICE, Runtime(secret=b"s", directory="/nonexistent", config=Config()))
        self.outbox = _Outbox()
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
        await self.on_model_thread(lambda: time.sleep(pause_s))


def finish(session: DraftingSession, job: Job) -> list[Send] | Exception:
    """What a decoder sends for a job."""
    if isinstance(job, Forward):
        return session.finish(job, [Result(7, b"law", 1)])
    return session.finish_prefill(1, ())


def begin(session: int, **changes: Any) -> Begin:
    spec = make_spec(session=session, query="q", seed=0, device_documents=0, max_new_tokens=6, **changes)
    return Begin(session=session, spec=spec.to_json())


def has_drafted(actor: _Decoder, session: int, step: int) -> bool:
    drafts = (message for message in actor.outbox.sent if isinstance(message, Local))
    return any(drafted.session == session and drafted.body.step == step for drafted in drafts)


async def _answer(actor: _Decoder, session: int, rng: random.Random, patience_s: float) -> None:
    """Commit every draft of a session, after an arbitrary wait, until its six tokens are through."""
    for step in range(6):
        while not has_drafted(actor, session, step):
            actor.outbox.changed.clear()
            await asyncio.wait_for(actor.outbox.changed.wait(), patience_s)
        for _ in range(rng.choice([0, 1, 2, 5])):
            await asyncio.sleep(0)
        if rng.random() < 0.3:
            await asyncio.sleep(rng.random() * 1e-3)
        is_last = step == 5
        actor.dispatch(actor.handle(decided(step, 7, session=session, is_last=is_last), "q"))
    actor.dispatch(actor.handle(End(session=session), "q"))


async def _run(seed: int, num_sessions: int, patience_s: float = 5.0) -> _Decoder:
    rng = random.Random(seed)
    actor = _Decoder(rng)
    actor.spawn(actor.work(), "work")
    answers = []
    for session in range(num_sessions):
        actor.dispatch(actor.handle(begin(session, max_window=1 if rng.random() < 0.7 else 16), "q"))
        answers.append(_answer(actor, session, rng, patience_s))
        await asyncio.sleep(rng.choice([0, 0, 1e-3]))
    await asyncio.gather(*answers)
    for _ in range(100):
        if len(actor.engine.closed) == num_sessions:
            break
        await asyncio.sleep(0.01)
    return actor


@pytest.mark.parametrize("num_sessions", [1, 4])
@pytest.mark.parametrize("seed", range(15))
def test_no_wake_up_is_lost(seed: int, num_sessions: int) -> None:
    """Token-wise sessions stand still with the loop: one lost wake-up and their next draft never comes."""

    async def main() -> None:
        actor = await _run(seed, num_sessions)
        assert not actor.table.sessions
        assert sorted(actor.engine.closed) == ["0", "1", "2", "3"][:num_sessions]
        await actor.close()
        assert (await actor.statistics()).tasks == ()

    asyncio.run(main())


class _Drafter:
    num_malformed = 3


def test_proposals_that_cannot_be_read_are_counted_beyond_their_session() -> None:
    """`tandem status --all` shows the decoder's counters."""

    class Voting(_Decoder):
        def has_voted(self, session: int) -> None:
            self._drafters[session] = _Drafter()  # type: ignore[assignment]

    async def count() -> list[float]:
        actor = Voting(random.Random(0))
        actor.plane = None
        counts = []
        for session in (1, 2):
            actor.handle(begin(session), "q")
            actor.has_voted(session)
            counts.append((await actor.statistics()).extra["num_malformed_proposals"])
        actor.handle(End(session=1), "q")
        actor.free_ended()
        counts.append((await actor.statistics()).extra["num_malformed_proposals"])
        await actor.close()
        return counts

    assert asyncio.run(count()) == [3, 6, 6]


async def test_a_long_question_is_counted_while_the_loop_serves_others() -> None:
    actor = _Decoder(random.Random(0))
    goes_on = threading.Event()

    class Slow(_Engine):
        def answer_room(self, *_: object) -> int:
            return 5 if goes_on.wait(5) else 0

    actor.fake_engine = Slow()
    counting = asyncio.create_task(actor.answer_room(make_spec().to_json(), 512))
    await asyncio.sleep(0.01)
    goes_on.set()
    assert await counting == 5
    await actor.close()
