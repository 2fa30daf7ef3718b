"""No wake-up of the decoder's worker is lost: a thousand interleavings of one event loop, drawn from seeds.

The model runs on the loop itself and finishes after a drawn number of the loop's turns; so do messages come: before the
worker asks for a job, between question and sleep, in its sleep, as the model finishes. `test_worker_loop` has a
real thread. Nothing here waits for time: a worker that sleeps for good is found by a number of turns.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from tandem.messages import End
from tests.unit.actors.test_worker_loop import _Decoder, begin, has_drafted
from tests.unit.protocol.talk import decided

NUM_SEEDS = 1000
NUM_TOKENS = 6
MOST_TURNS = 2000
"""Turns of the loop within which any session is through; a worker that sleeps for good takes none."""


class _Stepped(_Decoder):
    """The real worker with a model that takes some turns of the loop instead of a thread."""

    async def pause(self) -> None:
        await _turns(self.rng.randrange(6))


async def _answer(actor: _Stepped, session: int, rng: random.Random) -> None:
    """Begin, commit each draft some turns after it came, end; RuntimeError if the worker sleeps for good."""
    await _turns(rng.randrange(6))
    actor.dispatch(actor.handle(begin(session, max_window=1 if rng.random() < 0.7 else 16), "q"))
    for step in range(NUM_TOKENS):
        for _ in range(MOST_TURNS):
            if has_drafted(actor, session, step):
                break
            await asyncio.sleep(0)
        else:
            raise RuntimeError(f"step {step} is not drafted")
        await _turns(rng.randrange(8))
        token = rng.choice([7, 7, 8])
        commit = decided(step, token, session=session, is_last=step == NUM_TOKENS - 1)
        actor.dispatch(actor.handle(commit, "q"))
    await _turns(rng.randrange(6))
    actor.dispatch(actor.handle(End(session=session), "q"))


async def _turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def _interleaving(seed: int) -> None:
    rng = random.Random(seed)
    actor = _Stepped(rng)
    actor.spawn(actor.work(), "work")
    num_sessions = rng.choice([1, 1, 2, 3])
    try:
        await asyncio.gather(*(_answer(actor, session, rng) for session in range(num_sessions)))
        await _turns(MOST_TURNS // 10)
        closed = actor.engine.closed
        assert sorted(closed) == [str(session) for session in range(num_sessions)]
    finally:
        await actor.close()


def test_no_wake_up_is_lost_in_any_interleaving() -> None:
    async def main() -> None:
        for seed in range(NUM_SEEDS):
            await _interleaving(seed)

    asyncio.run(main())


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
            await _interleaving(seed)

    with pytest.raises((RuntimeError, AssertionError)):
        asyncio.run(main())
